"""Which of the machines that were found are signed in to unasked."""

import pytest

from fleet.config.schema import FleetConfig
from fleet.discovery.finder import Finder
from fleet.discovery.sightings import Sighting, Source
from fleet.events import NodeFound, NodeLeft
from fleet.model import Address


def finder_that_saw(*sightings):
    events = []
    finder = Finder(FleetConfig(), emit=events.append, clock=lambda: 5.0)
    finder._pass_on(finder._registry.saw(*sightings))
    return finder, events


def alias(name, host, jump=""):
    return Sighting(Source.SSH_CONFIG, name, (Address(host, 22, source="ssh_config"),), 1.0, jump=jump)


@pytest.mark.parametrize(("host", "jump", "at_home"), [
    ("192.168.1.7", "", True), ("10.0.0.4", "", True), ("nas.local", "", True), ("fd00::7", "", True),
    ("198.51.100.0.example.com", "", False), ("8.8.8.8", "", False), ("10.0.0.4", "bastion", False),
    ("build.corp.example", "", False),
])
def test_only_machines_of_the_house_are_signed_in_to_unasked(host, jump, at_home):
    finder, _ = finder_that_saw(alias("box", host, jump))
    assert finder.is_at_home("box") is at_home


def test_a_machine_that_announces_itself_is_of_the_house():
    heard = Sighting(Source.MDNS, "kitchen", (Address("192.0.2.9", 22),), 1.0, host="kitchen.local")
    finder, _ = finder_that_saw(heard)
    assert finder.is_at_home("kitchen")


def test_who_says_goodbye_is_told_of_once():
    heard = Sighting(Source.MDNS, "kitchen", (Address("192.0.2.9", 22),), 1.0, key="k", host="kitchen.local")
    finder, events = finder_that_saw(heard)
    for at in (2.0, 3.0):
        finder._pass_on(finder._registry.lost(Source.MDNS, "k", at, goodbye=True))
    left = [event for event in events if isinstance(event, NodeLeft)]
    assert [event.name for event in left] == ["kitchen"]
    assert "goodbye" in left[0].problem.what
    assert isinstance(events[0], NodeFound)
