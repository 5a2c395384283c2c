"""One machine is one node, whatever it is called and however it is reached."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config.schema import NodeConfig
from fleet.discovery.identity import Registry
from fleet.discovery.sightings import Sighting, Source, by_hand, clean_name, from_config, this_machine
from fleet.errors import ConfigError
from fleet.events import NodeForgotten, NodeFound
from fleet.model import Address, Interface, LinkKind

HOME = (
    Interface("lo", LinkKind.LOOPBACK, ("127.0.0.1/8",)),
    Interface("eth0", LinkKind.WIRED, ("10.20.0.2/24",)),
    Interface("wlan0", LinkKind.WIFI, ("10.20.1.2/24",)),
    Interface("docker0", LinkKind.CONTAINER, ("172.17.0.1/16",)),
)


def registry(*sightings: Sighting, machine_id: str = "") -> Registry:
    known = Registry(own_networks=HOME, hostname="desk", machine_id=machine_id)
    known.saw(*sightings)
    return known


def mdns(name: str, *hosts: str, at: float = 0.0, service: str = "_ssh._tcp", port: int = 22) -> Sighting:
    return Sighting(Source.MDNS, name, tuple(Address(host, port, source=Source.MDNS) for host in hosts), at,
                    key=f"{name}.{service}.local.", host=f"{name}.local.")


def alias(name: str, host: str, port: int = 22, *, user: str = "", jump: str = "") -> Sighting:
    return Sighting(Source.SSH_CONFIG, name, (Address(host, port, source=Source.SSH_CONFIG),), 0.0, user=user,
                    jump=jump)


def node(name: str, *addresses: str, local: bool = False) -> Sighting:
    return from_config(NodeConfig(name, addresses=addresses, local=local), 0.0)


# ---- the same machine


def test_services_of_one_mdns_host_name_are_one_node_with_the_wired_address_first() -> None:
    known = registry(mdns("kitchen", "172.17.0.1"), mdns("kitchen", "fe80::14", service="_workstation._tcp"),
                     mdns("kitchen", "10.20.1.14", "10.20.0.14", "fe80::14%eth0", service="_quarterdeck._tcp"))
    assert list(known.nodes) == ["kitchen"]
    assert [a.host for a in known.nodes["kitchen"].addresses] == ["10.20.0.14", "10.20.1.14", "fe80::14%eth0"]


def test_a_machine_that_only_its_container_bridge_speaks_for_is_none() -> None:
    assert registry(mdns("ghost", "172.17.0.1", "127.0.0.1", "fe80::1")).nodes == {}


def test_the_configured_name_wins_over_the_alias_over_the_mdns_name() -> None:
    known = registry(mdns("kitchen", "10.20.0.14"))
    assert list(known.nodes) == ["kitchen"]
    assert known.saw(alias("box1", "10.20.0.14", user="ops")) == (
        NodeFound(0.0, "box1", (Address("10.20.0.14", 22, LinkKind.WIRED, "ssh_config"),), ("ssh_config", "mdns"),
                  ("kitchen", "kitchen.local")), NodeForgotten(0.0, "kitchen", "box1"))
    known.saw(node("atlas", "10.20.0.14"))
    atlas = known.nodes["atlas"]
    assert list(known.nodes) == ["atlas"] and atlas.aliases == ("box1", "kitchen", "kitchen.local")
    assert atlas.configured and atlas.user == "ops" and atlas.addresses[0].pinned
    assert atlas.sources == ("fleet.yaml", "ssh_config", "mdns")


def test_a_node_without_an_address_is_the_alias_of_its_name_or_else_the_mdns_host() -> None:
    known = registry(node("atlas"), alias("atlas", "10.20.0.14", user="ops"), mdns("bolt", "10.20.0.15"), node("bolt"))
    assert set(known.nodes) == {"atlas", "bolt"}
    assert known.nodes["atlas"].addresses[0].host == "10.20.0.14" and known.nodes["atlas"].user == "ops"
    assert known.nodes["bolt"].addresses[0].host == "10.20.0.15"


def test_an_alias_that_only_sounds_like_an_mdns_host_stays_another_machine() -> None:
    known = registry(alias("atlas", "203.0.113.5"), mdns("atlas", "10.20.0.14"))
    assert set(known.nodes) == {"atlas", "atlas.local"}


@pytest.mark.parametrize("proof", [{"fingerprint": "SHA256:abc"}, {"machine_id": "m1"},
                                   {"machine_id": "m1", "hostname": "Kitchen.lan"}])
def test_a_host_key_or_a_machine_id_makes_two_names_one_node(proof: dict[str, str]) -> None:
    known = registry(mdns("kitchen", "10.20.0.14"), mdns("kitchen-2", "10.20.1.14"))
    assert len(known.nodes) == 2
    assert known.identify("kitchen", 1.0, address=Address("10.20.0.14"), **proof) == ()
    events = known.identify("kitchen-2", 2.0, address=Address("10.20.1.14"), **proof)
    assert [type(event) for event in events] == [NodeFound, NodeForgotten]
    assert events[1] == NodeForgotten(2.0, "kitchen-2", "kitchen")
    assert [a.host for a in known.nodes["kitchen"].addresses] == ["10.20.0.14", "10.20.1.14"]


def test_cloned_machine_ids_and_host_keys_do_not_merge_machines_that_call_themselves_differently() -> None:
    known = registry(mdns("pi1", "10.20.0.14"), mdns("pi2", "10.20.0.15"))
    for name in ("pi1", "pi2"):
        known.identify(name, 1.0, machine_id="same", hostname=name)
        known.identify(name, 2.0, fingerprint="SHA256:same")
    assert set(known.nodes) == {"pi1", "pi2"}


def test_another_host_key_at_an_address_is_another_machine() -> None:
    known = registry(mdns("old", "10.20.0.14"), alias("box", "10.20.0.99"))
    known.identify("old", 1.0, address=Address("10.20.0.14"), fingerprint="A")
    known.identify("box", 1.0, fingerprint="A")
    assert set(known.nodes) == {"box"}
    known.identify("box", 2.0, address=Address("10.20.0.14"), fingerprint="B")
    assert set(known.nodes) == {"box", "old"}


def test_an_address_that_dhcp_gave_to_another_machine_does_not_merge_it_with_the_lost_one() -> None:
    known = registry(mdns("old", "10.20.0.14"))
    known.lost(Source.MDNS, "old._ssh._tcp.local.", 5.0, goodbye=False)
    known.saw(mdns("new", "10.20.0.14", at=6.0))
    assert set(known.nodes) == {"old", "new"} and known.nodes["old"].gone_since == 5.0
    known.identify("new", 7.0, address=Address("10.20.0.14"), fingerprint="B")
    assert set(known.nodes) == {"old", "new"}


def test_equal_addresses_behind_different_hops_are_different_machines() -> None:
    known = registry(alias("a", "192.168.1.5", jump="hop1"), alias("b", "192.168.1.5", jump="hop2"),
                     alias("c", "192.168.1.5", jump="hop1"))
    assert set(known.nodes) == {"a", "b"} and known.nodes["a"].aliases == ("c",)
    assert known.nodes["a"].jump == "hop1"


def test_another_port_is_another_machine_until_it_proves_to_be_the_same() -> None:
    known = registry(alias("vm1", "127.0.0.1", 2201), alias("vm2", "127.0.0.1", 2202))
    assert set(known.nodes) == {"vm1", "vm2"} and not any(n.local for n in known.nodes.values())
    assert [a.host for a in known.nodes["vm1"].addresses] == ["127.0.0.1"]


# ---- this machine


@pytest.mark.parametrize("sighting", [
    node("helm", local=True), node("helm", "127.0.0.1"), node("helm", "10.20.0.2"), node("helm", "desk"),
    node("desk"), alias("me", "localhost"), mdns("desk", "10.20.0.2", "172.17.0.1"), by_hand("10.20.1.2", 0.0)])
def test_our_own_addresses_and_name_are_this_machine(sighting: Sighting) -> None:
    known = registry(this_machine("desk.lan", 0.0), sighting)
    (only,) = known.nodes.values()
    assert only.local and [a.host for a in only.addresses] == ["10.20.0.2", "10.20.1.2"]
    assert only.name == (sighting.name if sighting.source is Source.CONFIG else "desk")


def test_our_own_machine_id_is_this_machine() -> None:
    known = registry(this_machine("desk", 0.0), alias("far", "203.0.113.7"), machine_id="m0")
    known.identify("far", 1.0, machine_id="m0")
    assert list(known.nodes) == ["desk"] and known.nodes["desk"].local and known.nodes["desk"].aliases == ("far",)


def test_a_container_with_our_machine_id_and_a_name_of_its_own_is_not_this_machine() -> None:
    known = registry(this_machine("desk", 0.0), alias("box", "127.0.0.1", 2222), machine_id="m0")
    known.identify("box", 1.0, machine_id="m0", hostname="c0ffee")
    assert set(known.nodes) == {"desk", "box"} and not known.nodes["box"].local


def test_another_machines_docker_bridge_is_not_ours() -> None:
    known = registry(this_machine("desk", 0.0), mdns("kitchen", "172.17.0.1", "10.20.0.14"))
    assert set(known.nodes) == {"desk", "kitchen"} and not known.nodes["kitchen"].local


# ---- coming and going


def test_a_goodbye_is_dropped_after_a_minute_and_a_silent_one_after_ten() -> None:
    known = registry(mdns("a", "10.20.0.3"), mdns("b", "10.20.0.4"), mdns("c", "10.20.0.5"), mdns("d", "10.20.0.6"))
    known.reached("d", 1.0)
    known.lost(Source.MDNS, "a._ssh._tcp.local.", 10.0, goodbye=True)
    for name in "bd":
        known.lost(Source.MDNS, f"{name}._ssh._tcp.local.", 10.0, goodbye=False)
    assert known.nodes["a"].gone_since == 10.0 and known.nodes["a"].said_goodbye and not known.nodes["b"].said_goodbye
    assert known.prune(69.0) == ()
    assert known.prune(70.0) == (NodeForgotten(70.0, "a", ""),)
    assert known.prune(609.0) == ()
    assert known.prune(610.0) == (NodeForgotten(610.0, "b", ""),)
    assert known.prune(1e9) == () and set(known.nodes) == {"c", "d"}


def test_a_machine_that_is_in_use_is_no_ghost_however_its_mdns_behaves() -> None:
    known = registry(mdns("a", "10.20.0.3"))
    known.lost(Source.MDNS, "a._ssh._tcp.local.", 10.0, goodbye=True)
    known.reached("a", 65.0)
    assert known.prune(71.0) == () and "a" in known.nodes
    assert known.prune(125.0) == (NodeForgotten(125.0, "a", ""),)


def test_what_the_user_named_is_never_pruned() -> None:
    known = registry(node("a", "10.20.0.3"), alias("b", "10.20.0.4"), by_hand("10.20.0.5", 0.0), mdns("a", "10.20.0.3"))
    known.lost(Source.MDNS, "a._ssh._tcp.local.", 1.0, goodbye=True)
    known.prune(1e9)
    assert set(known.nodes) == {"a", "b", "10.20.0.5"} and known.nodes["a"].gone_since is None
    assert known.nodes["a"].sources == ("fleet.yaml",)


def test_a_return_is_told() -> None:
    known = registry(mdns("a", "10.20.0.3"))
    known.lost(Source.MDNS, "a._ssh._tcp.local.", 10.0, goodbye=True)
    events = known.saw(mdns("a", "10.20.0.3", at=20.0))
    assert [(type(e), e.name) for e in events] == [(NodeFound, "a")] and known.nodes["a"].gone_since is None
    assert known.saw(mdns("a", "10.20.0.3", at=21.0)) == ()


def test_an_older_sighting_and_a_goodbye_from_before_change_nothing() -> None:
    known = registry(mdns("a", "10.20.0.3", at=10.0))
    known.saw(mdns("a", "10.20.0.9", at=5.0))
    known.lost(Source.MDNS, "a._ssh._tcp.local.", 9.0, goodbye=True)
    assert known.nodes["a"].addresses[0].host == "10.20.0.3" and known.nodes["a"].gone_since is None


def test_a_file_read_again_replaces_what_it_said() -> None:
    known = registry(node("a", "10.20.0.3"), node("b", "10.20.0.4"), mdns("kitchen", "10.20.0.3"))
    events = known.replace(Source.CONFIG, [node("c", "10.20.0.4")], 9.0)
    assert {(type(e), e.name, getattr(e, "into", "")) for e in events} == {
        (NodeFound, "kitchen", ""), (NodeFound, "c", ""), (NodeForgotten, "a", "kitchen"), (NodeForgotten, "b", "")}
    assert known.withdraw(Source.CONFIG, "c", 10.0) == (NodeForgotten(10.0, "c", ""),)


def test_a_flood_of_names_is_bounded() -> None:
    known = Registry(own_networks=HOME)
    known.saw(*(mdns(f"n{place}", f"10.20.{place // 250}.{place % 250 + 1}") for place in range(1500)))
    assert len(known.nodes) <= 512


@pytest.mark.parametrize("text", ["", "a b", "@host", "-l@host", "user@", "host:0", "a/b", "ho\nst", "u\x1b@h"])
def test_a_typed_address_that_is_none_is_told_so(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        by_hand(text, 0.0)


def test_a_typed_address_is_a_pinned_one() -> None:
    seen = by_hand("ops@10.0.0.4:2222", 0.0)
    assert (seen.name, seen.user, seen.addresses) == (
        "10.0.0.4:2222", "ops", (Address("10.0.0.4", 2222, source="by hand", pinned=True),))


@given(st.text(max_size=200))
def test_a_name_from_the_network_becomes_one_word(text: str) -> None:
    name = clean_name(text)
    assert len(name) <= 63 and name.isprintable() and not name.startswith("-") and " " not in name


# ---- order


HOSTS = st.sampled_from(["10.20.0.3", "10.20.0.4", "10.20.0.2", "172.17.0.1", "127.0.0.1", "a", "b", "desk", "a.local",
                         "fe80::1", "169.254.1.1", "203.0.113.9"])
NAMES = st.sampled_from(["a", "b", "c", "desk"])
SIGHTINGS = st.lists(st.one_of(
    st.builds(lambda n, h, at, s: mdns(n, *h, at=at, service=s), NAMES, st.lists(HOSTS, max_size=3),
              st.sampled_from([0.0, 1.0, 2.0]), st.sampled_from(["_ssh._tcp", "_workstation._tcp"])),
    st.builds(alias, NAMES, HOSTS, st.sampled_from([22, 2222])),
    st.builds(lambda n, h: node(n, *h), NAMES, st.lists(HOSTS.filter(lambda h: h != "fe80::1"), max_size=2)),
    st.builds(lambda h: by_hand(h, 0.0), HOSTS),
    st.just(this_machine("desk", 0.0))), max_size=8)
LOSSES = st.lists(st.tuples(NAMES, st.sampled_from([0.5, 1.5, 2.5]), st.booleans()), max_size=3)


@given(SIGHTINGS, LOSSES, st.randoms(use_true_random=False))
def test_the_order_of_what_is_seen_does_not_matter(sightings: list[Sighting], losses: list[tuple[str, float, bool]],
                                                   chance: random.Random) -> None:
    steps: list[object] = [*sightings, *losses]
    ends = []
    for _ in range(3):
        known = Registry(own_networks=HOME, hostname="desk")
        alive: set[str] = set()
        for step in steps:
            if isinstance(step, Sighting):
                events = known.saw(step)
            else:
                name, at, goodbye = step
                events = known.lost(Source.MDNS, f"{name}._ssh._tcp.local.", at, goodbye=goodbye)
            for event in events:
                if isinstance(event, NodeFound):
                    alive.add(event.name)
                else:
                    assert event.into == "" or event.into in alive
                    alive.remove(event.name)
            assert alive == set(known.nodes)
        ends.append({name: replace(known_node, heard_at=0.0) for name, known_node in known.nodes.items()})
        chance.shuffle(steps)
    assert ends[0] == ends[1] == ends[2]


@given(SIGHTINGS)
def test_every_usable_sighting_is_of_exactly_one_node(sightings: list[Sighting]) -> None:
    known = registry(*sightings)
    members = [sighting_id for known_node in known.nodes.values() for sighting_id in known_node.sightings]
    assert len(members) == len(set(members))
    assert {s.id for s in sightings if s.source is not Source.MDNS} <= set(members)
    assert sum(1 for known_node in known.nodes.values() if known_node.local) <= 1
