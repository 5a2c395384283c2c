"""The way between two nodes: measured by their own python3, read without trust, alarmed when it falls."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib import resources

import pytest

from fleet.chronicle import notices
from fleet.events import LinksMeasured
from fleet.model import Interface, Link, LinkKind, Node, NodeReading, Severity, Snapshot
from fleet.nodes.links import measure_ways, read_way
from fleet.nodes.local import LocalTransport
from fleet.reduce import reduce

BURST = resources.files("fleet.nodes").joinpath("burst.py").read_text("utf-8")


async def test_a_way_is_measured_over_real_sockets():
    here = LocalTransport("here")
    found = await measure_ways(here, {"a": (here, "127.0.0.1"), "b": (here, "127.0.0.1")})
    assert found.keys() == {"a", "b"}
    for way in found.values():
        assert way.why == "" and 0 < way.round_trip < 1 and way.bytes_per_second > 1e6


async def test_an_address_that_the_node_does_not_have_is_said_and_the_others_are_measured():
    here = LocalTransport("here")
    found = await measure_ways(here, {"bad": (here, "203.0.113.7"), "good": (here, "127.0.0.1")})
    assert found["bad"].why and found["good"].why == ""


async def test_a_node_without_python_says_so():
    class Bare(LocalTransport):
        async def lines(self, script, arguments=(), *, limit=8192):
            async for line in super().lines(f"PATH=/nowhere\ncommand() {{ false; }}\n{script}", arguments, limit=limit):
                yield line
    found = await measure_ways(LocalTransport("here"), {"a": (Bare("bare"), "127.0.0.1")})
    assert "python3" in found["a"].why


async def test_nothing_is_left_behind_when_the_measurement_is_cancelled():
    here = LocalTransport("here")
    task = asyncio.ensure_future(measure_ways(here, {"a": (here, "127.0.0.1")}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("line", ["", "way", "way 1", "way -1.0 5", "way nan inf", "way 0.000000000 5",
                                  "way 99.0 5", "way 0.001 99999999999999", "way 0.001 5 5", "none refused",
                                  "way 0.001\x1b[31m 5", "w" * 100_000])
def test_figures_that_make_no_sense_are_no_figures(line):
    way = read_way(line)
    assert way.why and way.round_trip == 0 and len(way.why) <= 200


def test_a_server_that_nobody_visits_ends_by_itself():
    code = BURST.replace("LIFETIME = 4.0", "LIFETIME = 0.1")
    done = subprocess.run([sys.executable, "-I", "-c", code, "serve", "127.0.0.1"], capture_output=True, text=True,
                          timeout=30, check=False)
    assert done.stdout.startswith("port ") and done.returncode != 0 and "Traceback" not in done.stderr


# ---------------------------------------------------------------------------------------------
# What is remembered, and when it is said that something is wrong


def snapshot(*kinds: LinkKind, speed: int | None = 1_000_000_000) -> Snapshot:
    interfaces = tuple(Interface(f"if{number}", kind, ("10.0.0.1/24",), speed if kind is LinkKind.WIRED else None)
                       for number, kind in enumerate(kinds))
    reading = NodeReading(interfaces=interfaces)
    return Snapshot(nodes={name: Node(name, reading=reading) for name in ("head", "worker")})


def link(rate: float, kind: LinkKind = LinkKind.WIRED) -> Link:
    return Link(0.0004, rate, kind, 1.0, rate, "head", "worker")


def after(state: Snapshot, *measured: Link) -> Snapshot:
    for one in measured:
        state = reduce(state, LinksMeasured(1.0, (one,)))
    return state


def test_the_newest_measurement_counts_and_the_best_stays_known():
    state = after(snapshot(), link(100e6), link(20e6))
    assert state.link("head", "worker").bytes_per_second == 20e6
    assert state.link("head", "worker").best == 100e6
    assert len(state.links) == 1


def lines(before: Snapshot, now: Snapshot) -> list[str]:
    return [text for severity, text, node in notices(before, now) if severity is Severity.WARNING and node == "worker"]


def test_a_link_that_has_fallen_is_said_once():
    good = after(snapshot(LinkKind.WIRED), link(110e6))
    assert lines(snapshot(LinkKind.WIRED), good) == []
    bad = after(good, link(30e6))
    (line,) = lines(good, bad)
    assert "fallen to 240 Mbit/s" in line and "880" in line
    assert lines(bad, bad) == []


def test_wifi_is_said_where_both_have_a_cable():
    both = snapshot(LinkKind.WIRED, LinkKind.WIFI)
    (line,) = lines(both, after(both, link(25e6, LinkKind.WIFI)))
    assert "wifi" in line and "rpc_address" in line
    only = snapshot(LinkKind.WIFI)
    assert lines(only, after(only, link(25e6, LinkKind.WIFI))) == []


def test_a_cable_that_carries_far_less_than_it_promises_is_said():
    (line,) = lines(snapshot(LinkKind.WIRED), after(snapshot(LinkKind.WIRED), link(11e6)))
    assert "88 Mbit/s" in line and "1000" in line


def test_what_is_as_promised_or_was_never_promised_is_not_said():
    for state, measured in ((snapshot(LinkKind.WIRED), link(100e6)),
                            (snapshot(LinkKind.WIRED, speed=None), link(1e6)),
                            (snapshot(LinkKind.WIRED, speed=10_000_000_000), link(300e6)),
                            (snapshot(LinkKind.WIRED), link(0.0))):
        assert lines(state, after(state, measured)) == []
