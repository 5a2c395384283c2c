"""A node that claims to be another one, and what is run unasked to reach one."""

from __future__ import annotations

import pytest

from fleet.config.schema import FleetConfig, NodeConfig
from fleet.discovery.addresses import split_host_port
from fleet.discovery.finder import Finder
from fleet.discovery.identity import Registry
from fleet.discovery.sightings import Sighting, Source, clean_name, from_config
from fleet.model import Address


def _registry() -> Registry:
    known = Registry(own_networks=(), hostname="desk")
    known.saw(*(from_config(NodeConfig(name, addresses=(host,)), 0.0)
                for name, host in (("atlas", "10.20.0.4"), ("bolt", "10.20.0.5"))))
    return known


def test_a_node_that_claims_another_ones_machine_id_and_host_name_stays_itself() -> None:
    known = _registry()
    known.identify("atlas", 1.0, address=Address("10.20.0.4"), fingerprint="A", machine_id="m1", hostname="atlas")
    known.identify("bolt", 2.0, address=Address("10.20.0.5"), fingerprint="B", machine_id="m1", hostname="atlas")
    assert set(known.nodes) == {"atlas", "bolt"}
    assert [a.host for a in known.nodes["atlas"].addresses] == ["10.20.0.4"]


def test_two_names_of_one_machine_with_one_host_key_are_one_node_all_the_same() -> None:
    known = _registry()
    for name, host in (("atlas", "10.20.0.4"), ("bolt", "10.20.0.5")):
        known.identify(name, 1.0, address=Address(host), fingerprint="A", machine_id="m1", hostname="atlas")
    assert len(known.nodes) == 1


def test_a_proxy_command_is_not_run_unasked() -> None:
    finder = Finder(FleetConfig(), emit=lambda event: None, clock=lambda: 5.0)
    heard = Sighting(Source.MDNS, "nas", (Address("10.20.0.9", source="mdns"),), 1.0, key="k", host="nas.local.")
    finder._pass_on(finder._registry.saw(
        Sighting(Source.SSH_CONFIG, "box", (Address("10.20.0.7"),), 1.0, through="nc %h %p"),
        Sighting(Source.SSH_CONFIG, "nas", (Address("nas.local"),), 1.0, through="nc %h %p"), heard))
    assert not finder.is_at_home("box") and not finder.is_at_home("nas")


@pytest.mark.parametrize("name", [
    "-oProxyCommand=x", "--help", "a;b", "$(x)", "a b", "a\nb", "\x1b[2J", "\u202ex", "[red]"])
def test_a_name_from_the_network_is_one_word_and_no_option(name: str) -> None:
    cleaned = clean_name(name)
    assert not cleaned.startswith("-") and cleaned.isprintable() and " " not in cleaned
    assert not set(cleaned) & set("$;&|<>`'\"\\/*?")


@pytest.mark.parametrize("text", [
    "fe80::1%eth0 ssh-ed25519 AAAA", "fe80::1%eth0\nhost ssh-ed25519 AAAA", "[fe80::1%a b]:22", "*", "*.lan", "|1|x|y",
    "@cert-authority", "a,b", "!a", "fe80::1%" + "x" * 400])
def test_no_address_is_more_than_one_name_in_known_hosts(text: str) -> None:
    assert split_host_port(text) is None
