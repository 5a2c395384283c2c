"""Machines that announce themselves: bounds on what they say, and real multicast on loopback."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from zeroconf import ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from fleet.discovery.identity import Registry
from fleet.discovery.mdns import Announcer, Browser
from fleet.discovery.services import (
    OWN_SERVICE,
    SSH_SERVICE,
    WORKSTATION_SERVICE,
    Found,
    Lost,
    choose_interfaces,
    found,
)
from fleet.model import Interface, LinkKind

NET = Path(__file__).parent.parent / "data" / "net"
HOME = (
    Interface("lo", LinkKind.LOOPBACK, ("127.0.0.1/8",)),
    Interface("eth0", LinkKind.WIRED, ("10.20.0.2/24", "fe80::2%eth0/64")),
    Interface("wlan0", LinkKind.WIFI, ("10.20.1.2/24",)),
    Interface("docker0", LinkKind.CONTAINER, ("172.17.0.1/16",)),
    Interface("tailscale0", LinkKind.VPN, ("100.64.0.2/32",)),
    Interface("eth1", LinkKind.WIRED, ("10.20.5.2/24",), up=False),
    Interface("usb0", LinkKind.WIRED, ("fe80::9%usb0/64",)),
)
PATIENCE = 20.0     # seconds until a test gives up; nothing waits that long when it works


# ---- which interfaces


def test_by_default_every_interface_that_reaches_the_home_is_asked_on() -> None:
    assert choose_interfaces((), HOME) == (("10.20.0.2", "10.20.1.2", "fe80::9%usb0"), ())


def test_the_setting_names_interfaces_or_addresses() -> None:
    assert choose_interfaces(("wlan0", "127.0.0.1", "fe80::2", "docker0"), HOME)[0] == (
        "10.20.1.2", "127.0.0.1", "fe80::2%eth0", "172.17.0.1")


def test_an_interface_that_is_not_there_is_told_with_those_that_are() -> None:
    addresses, (problem,) = choose_interfaces(("eth9", "eth0"), HOME)
    assert addresses == ("10.20.0.2",) and "eth9" in problem.what and "wlan0" in problem.remedy


async def test_without_any_interface_there_is_a_problem_and_no_crash() -> None:
    async with Browser(own=tuple) as browser, Announcer("x", 1, {}, own=tuple) as announcer:
        assert [p.code for p in (*browser.problems, *announcer.problems)] == ["mdns-no-interface"] * 2


# ---- what an answer says


def read_avahi(line: str) -> Found | None:
    """An answer as `avahi-browse -rp` shows it, put through the same bounds as zeroconf's."""
    fields = line.split(";", 9)
    txt = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1])), fields[9]).encode("latin-1")
    pairs = [entry.partition(b"=") for entry in re.findall(rb'"(.*?)"', txt)]
    instance = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1])), fields[3])
    return found(SSH_SERVICE, f"{instance}.{fields[4]}.{fields[1]}.{fields[2]}", fields[6] + ".", [fields[7]], 22,
                 {key: value if sep else None for key, sep, value in pairs})


def test_a_machine_on_several_interfaces_is_one_node_by_its_wired_address() -> None:
    lines = (NET / "avahi_browse_rp.txt").read_text().splitlines()
    answers = [answer for line in lines if line.startswith("=") and (answer := read_avahi(line))]
    assert answers[3].properties == {"role": "worker", "proto": "", "name": "Küche"}
    assert answers[4].properties == {}
    known = Registry(own_networks=HOME)
    known.saw(*(answer.sighting(float(place)) for place, answer in enumerate(answers)))
    assert set(known.nodes) == {"kitchen", "kitchen-2"}       # `attic` speaks by 169.254 alone, and we have none
    assert [a.host for a in known.nodes["kitchen"].addresses] == ["10.20.0.14"]
    known.identify("kitchen", 9.0, fingerprint="SHA256:k")
    known.identify("kitchen-2", 9.0, fingerprint="SHA256:k")
    assert set(known.nodes) == {"kitchen"} and "kitchen-2" in known.nodes["kitchen"].aliases
    assert [a.host for a in known.nodes["kitchen"].addresses] == ["10.20.0.14", "10.20.1.14"]


def test_only_an_ssh_service_tells_the_port_of_sshd() -> None:
    def port(service: str, told: int, **properties: str) -> int:
        return Found(service, "k", "a.local.", ("10.0.0.1",), told, properties).sighting(0.0).addresses[0].port
    assert port(SSH_SERVICE, 2222) == 2222 and port(SSH_SERVICE, 0) == 22
    assert port(WORKSTATION_SERVICE, 9) == 22 and port(OWN_SERVICE, 8088) == 22
    assert port(OWN_SERVICE, 8088, ssh="2200") == 2200 and port(OWN_SERVICE, 8088, ssh="99999") == 22


def test_our_own_service_speaks_for_the_machine_that_it_names() -> None:
    seen = Found(OWN_SERVICE, "k", "desk-quarterdeck-8088.local.", ("10.0.0.1",), 8088, {"node": "desk"}).sighting(0.0)
    assert (seen.name, seen.host) == ("desk", "desk.local.")


@given(st.text(max_size=300), st.one_of(st.none(), st.text(max_size=300)), st.lists(st.text(max_size=40), max_size=40),
       st.one_of(st.none(), st.integers(-1, 99999)),
       st.dictionaries(st.binary(max_size=300), st.one_of(st.none(), st.binary(max_size=300)), max_size=60))
def test_any_answer_is_bounded(key: str, host: str | None, addresses: list[str], port: int | None,
                               properties: dict[bytes, bytes | None]) -> None:
    answer = found(OWN_SERVICE, key, host, addresses, port, properties)
    if answer is not None:
        assert len(answer.properties) <= 32 and len(answer.addresses) <= 16
        assert all(len(value) <= 255 for value in answer.properties.values())
        sighting = answer.sighting(0.0)
        assert sighting.name and len(sighting.name) <= 63 and sighting.name.isprintable()


# ---- on the wire (loopback alone)


async def next_about(browser: Browser, key: str) -> Found | Lost:
    """The next that is heard of one service; others on this machine may run the same tests."""
    async with asyncio.timeout(PATIENCE):
        async for heard in browser:
            if heard.key.lower() == key.lower():
                return heard
    raise AssertionError("the browser ended")


@asynccontextmanager
async def machine(service: str, instance: str, *, port: int = 22,
                  properties: bytes = b"") -> AsyncIterator[tuple[ServiceInfo, AsyncZeroconf]]:
    """Another machine's responder, on loopback."""
    mdns = AsyncZeroconf(interfaces=["127.0.0.1"])
    info = ServiceInfo(service, f"{instance}.{service}", port=port, properties=properties, host_ttl=1, other_ttl=4500,
                       server=f"{instance}.local.", parsed_addresses=["127.0.0.1", "10.20.0.14", "fe80::1"])
    try:
        await (await mdns.async_register_service(info))
        yield info, mdns
    finally:
        await mdns.async_close()


async def test_a_machine_that_announces_itself_is_found_and_its_goodbye_heard() -> None:
    instance = f"kitchen-{os.getpid()}"
    async with Browser(["127.0.0.1"]) as browser:
        assert browser.problems == ()
        async with machine(SSH_SERVICE, instance, port=2222, properties=b"\x05proto\x06role=w\x00") as (info, _):
            heard = await next_about(browser, info.name)
            assert isinstance(heard, Found)
            assert (heard.name, heard.port, heard.properties) == (instance, 2222, {"proto": "", "role": "w"})
            assert set(heard.addresses) == {"127.0.0.1", "10.20.0.14", "fe80::1"}
        lost = await next_about(browser, info.name)
        assert lost == Lost(SSH_SERVICE, info.name, goodbye=True)


async def test_a_machine_that_falls_silent_is_lost_without_a_goodbye() -> None:
    instance = f"attic-{os.getpid()}"
    async with (Browser(["127.0.0.1"], recheck=0.2, resolve_timeout=0.5) as browser,
                machine(SSH_SERVICE, instance) as (info, mdns)):
        assert isinstance(await next_about(browser, info.name), Found)
        # Its responder goes on to run, and says nothing any more: as with a cable pulled out.
        mdns.zeroconf.registry.async_remove(info)
        lost = await next_about(browser, info.name)
        assert lost == Lost(SSH_SERVICE, info.name, goodbye=False)
        mdns.zeroconf.registry.async_add(info)
        assert isinstance(await next_about(browser, info.name), Found)


async def test_an_announcer_is_found_under_the_name_of_its_machine_and_says_goodbye() -> None:
    name = f"proxy {os.getpid()}"
    key = f"{name}.{OWN_SERVICE}"
    async with Browser(["127.0.0.1"]) as browser:
        async with Announcer(name, 8088, {"role": "proxy", "node": "desk"}, ["127.0.0.1"]) as announcer:
            assert announcer.problems == ()
            heard = await next_about(browser, key)
            assert isinstance(heard, Found)
            assert (heard.name, heard.port, heard.addresses) == ("desk", 8088, ("127.0.0.1",))
            assert heard.properties["role"] == "proxy"
        lost = await next_about(browser, key)
        assert isinstance(lost, Lost) and lost.goodbye


async def test_a_network_that_is_joined_later_is_listened_on() -> None:
    own: list[Interface] = []
    async with (machine(SSH_SERVICE, f"late-{os.getpid()}") as (info, _),
                Browser(["lo"], own=lambda: tuple(own), interfaces_every=0.05) as browser):
        assert [problem.code for problem in browser.problems] == ["mdns-interface"]
        own.append(HOME[0])
        assert isinstance(await next_about(browser, info.name), Found)
        assert browser.problems == ()
        own.clear()
        assert await next_about(browser, info.name) == Lost(SSH_SERVICE, info.name, goodbye=False)


async def test_leaving_a_browser_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with Browser(["127.0.0.1"]):
        pass
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - before if "mdns" in task.get_name()} == set()
