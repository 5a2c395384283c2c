"""How a proxy on one node reaches the head on another."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fleet.errors import PlanRefused
from fleet.model import Address, Interface, LinkKind, Node, NodeReading, ServiceKind, ServiceRecord
from fleet.proxies.ways import Way, facts_of_way, way_to_head, ways


def record(id: str, kind: ServiceKind, port: int, bind: str, *, alive: bool = True,
           facts: Mapping[str, object] | None = None) -> ServiceRecord:
    return ServiceRecord(id, kind, 5, "t", ("x",), port, bind, alive, 0.0, f"/s/{id}", facts=facts or {})


def node(name: str, ip: str, *services: ServiceRecord, local: bool = False) -> Node:
    link = Interface("eth0", LinkKind.WIRED, (f"{ip}/24",))
    return Node(name, local=local, addresses=(Address(ip),), reading=NodeReading(interfaces=(link,), services=services))


def head(bind: str) -> ServiceRecord:
    return record("coordinator-8080", ServiceKind.COORDINATOR, 8080, bind)


def fleet(*relays: ServiceRecord) -> dict[str, Node]:
    nodes = (node("here", "10.0.0.1", *relays, local=True), node("a", "10.0.0.2"), node("b", "10.0.0.3"))
    return {node.name: node for node in nodes}


def relay(proxy: str, leads_to: str, port: int, *, alive: bool = True) -> ServiceRecord:
    name, _, head_port = leads_to.rpartition(":")
    return record(f"relay-{port}", ServiceKind.RELAY, 0, "127.0.0.1", alive=alive,
                  facts=facts_of_way(proxy, name, int(head_port), port))


@pytest.mark.parametrize(("bind", "url"), [
    ("127.0.0.1", "http://127.0.0.1:8080"), ("0.0.0.0", "http://127.0.0.1:8080"), ("::", "http://[::1]:8080"),
    ("10.0.0.3", "http://10.0.0.3:8080")])
def test_a_head_on_the_same_node_is_reached_there(bind: str, url: str) -> None:
    assert way_to_head(fleet(), "b", "b", head(bind)) == Way(url)


@pytest.mark.parametrize("bind", ["0.0.0.0", "10.0.0.3"])
def test_a_head_on_a_network_is_reached_directly(bind: str) -> None:
    assert way_to_head(fleet(), "a", "b", head(bind)) == Way("http://10.0.0.3:8080")


def test_a_head_on_its_loopback_is_reached_through_the_relay_that_leads_there() -> None:
    nodes = fleet(relay("here", "b:8080", 50252), relay("a", "b:8081", 50253), relay("a", "b:8080", 50254, alive=False),
                  relay("a", "b:8080", 50255))
    assert way_to_head(nodes, "a", "b", head("127.0.0.1")) == Way("http://127.0.0.1:50255", True)
    assert way_to_head(nodes, "here", "b", head("127.0.0.1")) == Way("http://127.0.0.1:50252", True)
    assert way_to_head(fleet(), "a", "b", head("127.0.0.1")) == Way("", True)


def test_a_head_without_an_address_is_refused() -> None:
    nodes = {**fleet(), "b": Node("b")}
    with pytest.raises(PlanRefused):
        way_to_head(nodes, "a", "b", head("0.0.0.0"))


@pytest.mark.parametrize("facts", [{"way": 5}, {"way": "b:1", "from": "a", "listens": "1"}, {"way": "b:1", "from": "a"},
                                   {"way": "b:1", "from": "a", "listens": 70000}, {"way": ["b:1"], "from": {}}])
def test_facts_that_make_no_sense_lead_nowhere(facts: dict[str, object]) -> None:
    assert not list(ways(fleet(record("relay-1", ServiceKind.RELAY, 0, "127.0.0.1", facts=facts))))
