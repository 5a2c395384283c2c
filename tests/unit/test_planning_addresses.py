"""Which address a worker binds: IPv4, on a network that the head is on too."""

import pytest

from fleet.errors import PlanRefused
from fleet.model import Address, Interface, LinkKind, Node, NodeReading
from fleet.planning.addresses import worker_address

WIRED, WIFI, VPN, BRIDGE = LinkKind.WIRED, LinkKind.WIFI, LinkKind.VPN, LinkKind.CONTAINER


def node(name: str, *interfaces: Interface, used: str = "") -> Node:
    return Node(name, address=Address(used) if used else None, reading=NodeReading(interfaces=interfaces))


def on(kind: LinkKind, *addresses: str, up: bool = True) -> Interface:
    return Interface(f"if-{kind.value}", kind, addresses, up=up)


HEAD = node("atlas", on(WIRED, "10.0.0.2/24"), on(VPN, "100.64.0.2/10"))


def test_loopback_on_the_head_itself():
    assert worker_address(HEAD, HEAD) == "127.0.0.1"


@pytest.mark.parametrize(("interfaces", "expected"), [
    ((on(WIFI, "10.0.0.9/24"), on(WIRED, "10.0.0.3/24")), "10.0.0.3"),
    ((on(WIRED, "192.168.7.3/24"), on(WIFI, "10.0.0.9/24")), "10.0.0.9"),
    ((on(VPN, "100.64.0.3/10"), on(WIRED, "192.168.7.3/24")), "100.64.0.3"),
    ((on(BRIDGE, "10.0.0.200/24"), on(WIFI, "10.0.0.9/24")), "10.0.0.9"),
    ((on(WIRED, "10.0.0.3/24", up=False), on(WIFI, "10.0.0.9/24")), "10.0.0.9"),
    ((on(WIRED, "fe80::1%eth0", "2001:db8::3/64", "10.0.0.3"),), "10.0.0.3"),
    ((on(WIRED, "no address", "10.0.0.3/99", "10.0.0.4/24"),), "10.0.0.4"),
])
def test_the_best_network_that_both_are_on(interfaces, expected):
    assert worker_address(node("bolt", *interfaces), HEAD) == expected


def test_of_two_equal_ones_that_which_we_use_ourselves():
    bolt = node("bolt", on(WIRED, "10.0.0.3/24", "10.0.0.4/24"), used="10.0.0.4")
    assert worker_address(bolt, HEAD) == "10.0.0.4"


def test_the_address_that_we_use_where_no_interface_is_known():
    assert worker_address(node("bolt", used="10.0.0.7"), HEAD) == "10.0.0.7"


@pytest.mark.parametrize("bolt", [
    node("bolt", on(WIRED, "2001:db8::3/64", "fe80::1/64"), used="2001:db8::3"), node("bolt", used="bolt.local"),
    node("bolt", on(BRIDGE, "172.17.0.1/16")), node("bolt", used="127.0.0.1"), Node("bolt")])
def test_a_worker_without_ipv4_is_refused(bolt):
    with pytest.raises(PlanRefused, match=r"bolt has no IPv4 address that atlas could dial") as caught:
        worker_address(bolt, HEAD)
    assert "rpc_address" in caught.value.remedy and caught.value.code == "no-ipv4"


@pytest.mark.parametrize("wished", ["2001:db8::3", "bolt.local", "10.0.0", "[::1]"])
def test_a_wish_that_is_no_ipv4_is_refused_before_anything_starts(wished):
    with pytest.raises(PlanRefused, match="is no IPv4 address"):
        worker_address(node("bolt"), HEAD, wished)


def test_a_wish_wins():
    assert worker_address(node("bolt", on(WIRED, "10.0.0.3/24")), HEAD, "192.168.1.5") == "192.168.1.5"
