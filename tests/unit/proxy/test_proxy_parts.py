"""The parts of the proxy by themselves: health, routing, the HTTP client, figures."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import ConfigError
from fleet.proxy.control import Control, read_upstreams
from fleet.proxy.exchange import (
    ApiKind,
    Call,
    Caller,
    Exchange,
    ExchangeState,
    ProxySettings,
    RepairSettings,
    UpstreamSettings,
)
from fleet.proxy.outgoing import request_body
from fleet.proxy.pool import place_of
from fleet.proxy.proxy import Proxy
from fleet.proxy.records import Records
from fleet.proxy.routing import Conversations, Routes, choose, prefix_marks
from fleet.proxy.upstream import Breaker, Health, HealthMachine, Upstream
from fleet.proxy.wire import Connection
from tests.unit.proxy.scripted import ask, proxied, tell, told, upstream


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def machine(clock: Clock) -> HealthMachine:
    return HealthMachine(Breaker(failures=3, seconds=5.0), clock)


def some(name: str, clock: Clock | None = None, **about: object) -> Upstream:
    given = UpstreamSettings(name, "http://127.0.0.1:1", **{"models": ("m",), **about})      # type: ignore[arg-type]
    made = Upstream(given, Breaker(), clock or Clock())
    made.health.answered()
    return made


def test_a_server_that_is_silent_while_requests_run_is_busy_and_not_dead():
    health = machine(Clock())
    health.answered()
    for _ in range(10):
        health.probe_failed("silent", "no answer", running=1)
    assert health.state is Health.READY
    for _ in range(3):
        health.probe_failed("silent", "no answer", running=0)
    assert health.state is Health.BROKEN


def test_a_broken_server_is_tried_by_one_request_when_its_time_is_over():
    clock = Clock()
    health = machine(clock)
    for _ in range(3):
        health.failed("dropped", "it died")
    assert health.state is Health.BROKEN and not health.available()
    clock.now += 5.1
    assert health.available()
    health.begin_trial()
    assert health.state is Health.TRIAL and not health.available()
    health.failed("dropped", "it died again")
    clock.now += 5.1
    assert not health.available()                # twice as long now
    clock.now += 5.0
    health.begin_trial()
    health.answered()
    assert health.state is Health.READY and health.available()


def test_a_probe_heals_a_closed_door_and_makes_one_that_broke_off_show_what_it_can():
    health = machine(Clock())
    health.failed("refused", "nobody listens")
    assert health.state is Health.BROKEN
    health.probe_answered()
    assert health.state is Health.READY
    for _ in range(3):
        health.failed("dropped", "it died")
    health.probe_answered()
    assert health.state is Health.TRIAL and health.available()
    health.begin_trial()
    health.end_trial()                           # its client left: no evidence
    assert health.available()


def test_a_loading_server_gets_nothing_until_it_says_otherwise():
    health = machine(Clock())
    health.loading("Loading model")
    assert not health.available()
    health.probe_answered()
    assert health.available()


def test_the_conversation_goes_where_it_is_cached_unless_that_is_full():
    one, two = some("one", slots=2), some("two", slots=2)
    one.take(1)
    assert choose((one, two)) is two
    assert choose((one, two), sticky="one") is one
    one.take(1)
    assert choose((one, two), sticky="one") is two
    two.held = True
    assert choose((one, two)) is None


def test_the_longest_known_prefix_decides():
    clock = Clock()
    talks = Conversations(60, clock)
    first = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]}
    more = {"messages": [*first["messages"], {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}
    other = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "else"}]}
    talks.remember(prefix_marks(first, "m"), "one")
    assert talks.find(prefix_marks(more, "m")) == "one"
    assert talks.find(prefix_marks(other, "m")) == ""         # a system message alone is shared by all
    assert talks.find(prefix_marks(more, "another")) == ""
    talks.remember(prefix_marks(more, "m"), "two")
    assert talks.find(prefix_marks(more, "m")) == "two"
    clock.now += 61
    assert talks.find(prefix_marks(more, "m")) == ""


def test_names_lead_to_upstreams_by_model_alias_and_group():
    routes = Routes({"gpt-4": "m", "loop": "loop"}, "m")
    routes.upstreams = {up.name: up for up in (some("one"), some("two", group="big"), some("three", models=("n",)))}
    assert [up.name for up in routes.target("m").upstreams] == ["one", "two"]
    assert [up.name for up in routes.target("gpt-4").upstreams] == ["one", "two"]
    assert [up.name for up in routes.target("big").upstreams] == ["two"]
    assert [up.name for up in routes.target("").upstreams] == ["one", "two"]
    assert [up.name for up in routes.target("n").upstreams] == ["three"]
    assert routes.target("loop").upstreams == routes.target("unknown").upstreams == ()


def test_a_single_llama_server_takes_any_name_as_it_does_directly():
    routes = Routes({}, "")
    routes.upstreams = {"one": some("one")}
    assert routes.target("gpt-3.5-turbo").upstreams


def test_a_body_changes_only_where_it_must():
    body = b'{"model": "alias", "messages": [],  "x": 1}'
    call = Call(ApiKind.CHAT, "/v1/chat/completions", body, parsed=json.loads(body))
    one = some("one", models=("m",), group="big")
    assert json.loads(request_body(call, one, "m", RepairSettings()))["model"] == "m"
    same = Call(ApiKind.CHAT, "/", body.replace(b"alias", b"m"), parsed={"model": "m"})
    assert request_body(same, one, "m", RepairSettings()) is same.body
    twice = b'{"model": "other", "model": "m"}'
    limited = Call(ApiKind.CHAT, "/", twice, caller=Caller("k", ("m",)), parsed=json.loads(twice))
    assert request_body(limited, one, "m", RepairSettings()) == b'{"model":"m"}'


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://u:p@h", "http://h/?q", "http://h:99999", "http://h\r\n"])
def test_an_upstream_that_is_no_address_is_refused(url):
    with pytest.raises(ConfigError):
        place_of(url)


def test_the_path_of_an_upstream_stays_before_ours():
    assert place_of("http://h/v1").prefix == ""
    assert place_of("https://h/openai/v1/").prefix == "/openai"
    assert (place_of("https://h").port, place_of("http://[::1]:8080").host_header) == (443, "[::1]:8080")


@pytest.mark.parametrize("wrong", [
    {}, [1], [{"name": "a"}], [{"name": "a", "url": "http://h", "slots": 0}],
    [{"name": "a", "url": "http://h", "x": 1}],
    [{"name": "a", "url": "http://h", "backend": "other"}], [{"name": "a", "url": "http://h", "key": "a\nb"}],
    [{"name": "a", "url": "http://h", "weight": True}], [{"name": "a", "url": "http://h", "models": "m"}],
])
def test_upstreams_that_are_wrong_are_named(wrong):
    with pytest.raises(ConfigError):
        read_upstreams(wrong)


ANSWERS = [
    (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
     b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", b"hello"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n", b"hello"),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ANSWERS), st.lists(st.integers(1, 120), max_size=12))
async def test_an_answer_reads_the_same_however_it_is_cut(answer, cuts):
    raw, body = answer
    connection = Connection()

    class Nowhere(asyncio.Transport):
        def write(self, data: bytes) -> None:
            """Nobody reads it."""

        def abort(self) -> None:
            """Nothing to end."""

    connection.connection_made(Nowhere())
    await connection.send("GET", b"GET / HTTP/1.1\r\n\r\n", b"")
    begin = 0
    for end in sorted({min(cut, len(raw)) for cut in cuts} | {len(raw)}):
        if end > begin:
            connection.data_received(raw[begin:end])
            begin = end
    assert (await connection.head()).status in (200, 204)
    assert b"".join([part async for part in connection.parts()]) == body
    assert connection.reusable


def test_the_ring_is_bounded_and_keeps_bodies_only_where_asked():
    clock = Clock()
    records = Records(3, clock, keep_bodies=True, wall=lambda: 1.0)
    for number in range(10):
        exchange = records.begin(Exchange("", ApiKind.CHAT, "/", "m", body=b"%d" % number, upstream="one"))
        records.end(exchange, ExchangeState.DONE)
    assert len(records.ring) == len(records.bodies) == 3
    assert list(records.bodies.values()) == [b"7", b"8", b"9"]
    assert records.sums["m", "one"].by_state == {"done": 10}


async def test_metrics_models_and_events_tell_of_a_request():
    async with upstream(tell) as up, proxied(up) as proxy:
        listening = proxy.proxy.records.events.listen()
        assert (await anext(listening)).startswith(b":")
        await told(proxy, ask(stream=True))
        seen = await anext(listening)
        await listening.aclose()
        assert seen.startswith(b"event: request\n") and b'"tokens":2' in seen
        text = (await told(proxy, b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")).body.decode()
        assert 'quarterdeck_proxy_requests_total{model="m",upstream="m",state="done"} 1' in text
        assert 'quarterdeck_proxy_upstream_state{upstream="m",state="ready"} 1' in text
        assert 'quarterdeck_proxy_time_to_first_byte_seconds_bucket{model="m",upstream="m",le="+Inf"} 1' in text
        models = await told(proxy, b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert [entry["id"] for entry in models.json()["data"]] == ["m"]
        missing = await told(proxy, b"GET /nothing HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert missing.status == 404


@pytest.mark.parametrize(("client", "server", "status"), [
    ("127.0.0.1", "127.0.0.1", 401), ("::1", "::1", 401), ("10.0.0.4", "10.0.0.4", 401), ("10.0.0.5", "10.0.0.4", 404),
    ("", "", 404), ("10.0.0.5", "", 404)])
def test_the_control_interface_is_for_this_machine_alone(client: str, server: str, status: int) -> None:
    problem = Control(Proxy(ProxySettings()), "token").check(client, [], server)
    assert problem is not None and problem.status == status
