"""Which address of a machine is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.discovery.addresses import kind_of, rank
from fleet.discovery.interfaces import own_interfaces, read_ip_json
from fleet.model import Address, Interface, LinkKind

NET = Path(__file__).parent.parent / "data" / "net"
HOME = (
    Interface("lo", LinkKind.LOOPBACK, ("127.0.0.1/8",)),
    Interface("eth0", LinkKind.WIRED, ("10.20.0.2/24", "fe80::2%eth0/64")),
    Interface("wlan0", LinkKind.WIFI, ("10.20.1.2/24",)),
    Interface("docker0", LinkKind.CONTAINER, ("172.17.0.1/16",)),
    Interface("br-0123456789ab", LinkKind.CONTAINER, ("172.20.0.1/16",)),
    Interface("tailscale0", LinkKind.VPN, ("100.64.0.2/32",)),
)


def hosts(*addresses: str, own: tuple[Interface, ...] = HOME, local: bool = False) -> list[str]:
    return [a.host for a in rank([Address(host) for host in addresses], own_networks=own, local=local)]


@pytest.mark.parametrize(("name", "ip", "kind"), [
    ("eth0", "10.0.0.1", LinkKind.WIRED), ("enp3s0", "10.0.0.1", LinkKind.WIRED), ("en0", "10.0.0.1", LinkKind.WIRED),
    ("br0", "10.0.0.1", LinkKind.WIRED), ("vmbr0", "10.0.0.1", LinkKind.WIRED), ("br-lan", "10.0.0.1", LinkKind.WIRED),
    ("bridge0", "10.0.0.1", LinkKind.WIRED), ("bridge100", "192.168.64.1", LinkKind.CONTAINER),
    ("wlp3s0", "10.0.0.1", LinkKind.WIFI), ("wlan0", "10.0.0.1", LinkKind.WIFI),
    ("tailscale0", "100.64.0.9", LinkKind.VPN), ("wg0", "10.9.0.1", LinkKind.VPN), ("utun3", "10.9.0.1", LinkKind.VPN),
    ("docker0", "10.0.0.1", LinkKind.CONTAINER), ("br-0123456789ab", "172.18.0.1", LinkKind.CONTAINER),
    ("veth12ab@if3", "10.0.0.1", LinkKind.CONTAINER), ("virbr0", "192.168.122.1", LinkKind.CONTAINER),
    ("podman1", "10.88.0.1", LinkKind.CONTAINER), ("cni0", "10.42.0.1", LinkKind.CONTAINER),
    ("", "172.17.0.1", LinkKind.CONTAINER), ("eth0", "172.17.0.9", LinkKind.WIRED),
    ("", "172.18.0.1", LinkKind.UNKNOWN), ("", "10.1.2.3", LinkKind.UNKNOWN), ("", "100.100.1.1", LinkKind.VPN),
    ("", "fd7a:115c:a1e0::9", LinkKind.VPN), ("lo", "127.0.0.1", LinkKind.LOOPBACK), ("", "::1", LinkKind.LOOPBACK),
    ("enp9s0", "169.254.8.8", LinkKind.LINK_LOCAL), ("eth0", "fe80::1", LinkKind.LINK_LOCAL),
    ("", "atlas.local", LinkKind.UNKNOWN), ("", "", LinkKind.UNKNOWN),
])
def test_an_interface_name_or_a_range_tells_what_carries_an_address(name: str, ip: str, kind: LinkKind) -> None:
    assert kind_of(name, ip) is kind


def test_wired_comes_before_wifi_before_vpn_before_what_is_not_known() -> None:
    assert hosts("203.0.113.9", "100.64.0.9", "10.20.1.14", "10.20.0.14") == [
        "10.20.0.14", "10.20.1.14", "100.64.0.9", "203.0.113.9"]


def test_container_addresses_are_never_used() -> None:
    assert hosts("172.17.0.1", "172.20.0.5") == []
    assert hosts("172.17.0.1", own=()) == []


def test_a_lan_in_dockers_range_works_where_our_own_interface_says_that_it_is_one() -> None:
    assert hosts("172.17.3.4", own=(Interface("eth0", LinkKind.WIRED, ("172.17.0.2/16",)),)) == ["172.17.3.4"]


def test_fe80_is_used_with_its_scope_alone_and_after_the_v4_address() -> None:
    assert hosts("fe80::14", "fe80::14%eth0", "10.20.0.14") == ["10.20.0.14", "fe80::14%eth0"]
    assert hosts("fe80::14%docker0") == []


def test_169_254_needs_such_an_address_at_both_ends() -> None:
    assert hosts("169.254.8.8") == []
    cable = (*HOME, Interface("enp9s0", LinkKind.WIRED, ("169.254.1.1/16",)))
    assert hosts("169.254.8.8", own=cable) == ["169.254.8.8"]


def test_loopback_is_for_this_machine_alone() -> None:
    assert hosts("127.0.0.1", "localhost", "::1", "0.0.0.0", "224.0.0.1") == []
    assert hosts("127.0.0.1", local=True) == ["127.0.0.1"]


def test_a_pinned_address_comes_first_and_is_never_left_out() -> None:
    pinned = Address("172.17.0.9", pinned=True, source="fleet.yaml")
    ranked = rank([Address("10.20.0.14"), pinned, Address("172.17.0.9")], own_networks=HOME)
    assert [a.host for a in ranked] == ["172.17.0.9", "10.20.0.14"]
    assert ranked[0].pinned


def test_the_same_host_and_port_is_given_once() -> None:
    assert len(rank([Address("a.lan"), Address("A.lan", source="mdns"), Address("a.lan", 2222)])) == 2


def test_ip_json_tells_each_interface_and_its_kind() -> None:
    read = read_ip_json((NET / "ip_json_addresses.json").read_text())
    assert [(i.name, i.kind, i.up) for i in read] == [
        ("lo", LinkKind.LOOPBACK, True), ("eth0", LinkKind.WIRED, True), ("wlp3s0", LinkKind.WIFI, True),
        ("docker0", LinkKind.CONTAINER, False), ("tailscale0", LinkKind.VPN, True), ("enp9s0", LinkKind.WIRED, True)]
    assert read[1].addresses == ("10.20.0.14/24", "fe80::a00:27ff:fe00:14%eth0/64")
    offered = [Address(text.partition("/")[0], kind=kind_of(i.name, text.partition("/")[0]))
               for i in read for text in i.addresses]
    assert [a.host for a in rank(offered, own_networks=HOME)] == [
        "10.20.0.14", "10.20.1.14", "100.64.0.9", "fe80::a00:27ff:fe00:14%eth0"]
    cable = (*HOME, Interface("enp1s0", LinkKind.WIRED, ("169.254.1.1/16",)))
    assert "169.254.8.8" in [a.host for a in rank(offered, own_networks=cable)]


@pytest.mark.parametrize("text", ["", "{}", "[", "[1, null, {\"ifname\": 3}]", "[" * 100_000,
                                  '[{"ifname": "x", "addr_info": [{"local": "nonsense"}, 7, {"local": null}]}]'])
def test_ip_json_that_is_no_such_thing_gives_no_addresses(text: str) -> None:
    assert all(not interface.addresses for interface in read_ip_json(text))


def test_this_machine_has_a_loopback_interface() -> None:
    mine = own_interfaces()
    assert any(i.kind is LinkKind.LOOPBACK and "127.0.0.1/8" in i.addresses for i in mine)


ADDRESSES = st.lists(st.builds(Address, host=st.sampled_from(
    ["10.20.0.14", "10.20.1.14", "100.64.0.9", "172.17.0.1", "fe80::1", "fe80::1%eth0", "169.254.1.2", "127.0.0.1",
     "atlas.local", "2001:db8::1", "203.0.113.1", "", "::ffff:10.20.0.9"]), port=st.sampled_from([22, 2222]),
    source=st.sampled_from(["fleet.yaml", "mdns", "probe", ""]), pinned=st.booleans()), max_size=8)


@given(ADDRESSES, st.randoms())
def test_the_order_given_does_not_matter(addresses: list[Address], random: object) -> None:
    shuffled = list(addresses)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert rank(shuffled, own_networks=HOME) == rank(addresses, own_networks=HOME)
    assert rank(rank(addresses, own_networks=HOME), own_networks=HOME) == rank(addresses, own_networks=HOME)
