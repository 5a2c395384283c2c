"""How an upstream is, by asking it: health, slots, models. Each kind of server is asked what it answers cheaply.

A llama-server that sleeps is woken by `/slots`, so it is asked for `/health`, `/props` and `/v1/models` alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress

from fleet.proxy.exchange import BackendKind
from fleet.proxy.upstream import Upstream
from fleet.proxy.wire import Head, WireError
from fleet.runtimes.head_answers import error_message, mapping, read_props, text

PROBE_TIMEOUT = 2.0
BODY_LIMIT = 4 * 1024 * 1024
MOST_MODELS = 1024
SOONEST = 0.05                 # seconds between two probes, whoever asks for one
FULL_EVERY = 6                 # probes of health until slots and models are asked for again
_HEALTH = {BackendKind.LLAMA_SERVER: "/health", BackendKind.VLLM: "/health", BackendKind.OLLAMA: "/api/version"}


async def ask(upstream: Upstream, path: str, *, timeout: float = PROBE_TIMEOUT) -> tuple[int, bytes]:
    """GET `path` of an upstream: status and body. Raises WireError."""
    place, key = upstream.place, upstream.settings.key
    head = (f"GET {place.prefix}{path} HTTP/1.1\r\nhost: {place.host_header}\r\naccept: application/json\r\n"
            + (f"authorization: Bearer {key}\r\n" if key else "") + "connection: close\r\n\r\n").encode()
    try:
        async with asyncio.timeout(timeout):
            connection = await upstream.pool.get(fresh=True)
            try:
                await connection.send("GET", head, b"")
                got: Head = await connection.head()
                body = bytearray()
                while part := await connection.part():
                    body += part
                    if len(body) > BODY_LIMIT:
                        raise WireError("garbage", f"It answers {path} with more than {BODY_LIMIT >> 20} MiB.")
                return got.status, bytes(body)
            finally:
                upstream.pool.drop(connection)
    except TimeoutError as error:
        raise WireError("silent", f"It gave no answer to {path} within {timeout:g} s.") from error


async def probe(upstream: Upstream, *, full: bool, timeout: float = PROBE_TIMEOUT) -> None:
    """Ask an upstream how it is, and write down what it says. Never raises."""
    try:
        status, body = await ask(upstream, _HEALTH.get(upstream.settings.backend, "/v1/models"), timeout=timeout)
    except WireError as error:
        upstream.health.probe_failed(error.code, error.message, running=upstream.running)
        return
    if status == 503:
        upstream.health.loading(error_message(_json(body)) or "It is loading its model.")
        return
    if status >= 500:
        upstream.health.probe_failed("error", f"It answers with HTTP {status}.", running=upstream.running)
        return
    if full or not upstream.models:
        try:
            await _learn(upstream, timeout)
        except WireError as error:
            upstream.health.probe_failed(error.code, error.message, running=upstream.running)
            return
    upstream.health.probe_answered()


async def _learn(upstream: Upstream, timeout: float) -> None:
    slots = context = None
    build, sleeping = "", False
    if upstream.settings.backend is BackendKind.LLAMA_SERVER:
        status, body = await ask(upstream, "/props", timeout=timeout)
        if status == 200:
            props = read_props(_json(body))
            slots, context, build, sleeping = props.slots, props.context, props.build_info, props.is_sleeping
    status, body = await ask(upstream, "/v1/models", timeout=timeout)
    models = read_models(_json(body)) if status == 200 else ()
    upstream.learn(slots=slots, context=context, build=build, models=models, sleeping=sleeping)


def read_models(answer: object) -> tuple[str, ...]:
    """The names of /v1/models."""
    data = mapping(answer).get("data")
    if not isinstance(data, list):
        return ()
    names = (text(mapping(entry).get("id"))[:512] for entry in data[:MOST_MODELS])
    return tuple(dict.fromkeys(name for name in names if name))


async def keep_probing(upstream: Upstream, interval: float, changed: Callable[[Upstream], None]) -> None:
    """Probe an upstream for ever; `changed` is called after each probe that found another state than before.

    A broken or loading one is asked every half second or so, and at once when the fleet tells news of it: whoever
    waits for it should not wait for us.
    """
    count = 0
    while True:
        before = (upstream.health.state, upstream.models, upstream.slots)
        await probe(upstream, full=count % FULL_EVERY == 0 or before[0] != "ready")
        count += 1
        if before != (upstream.health.state, upstream.models, upstream.slots):
            changed(upstream)
        hurry = upstream.health.state != "ready"
        await asyncio.sleep(SOONEST)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(interval, 0.5) if hurry else interval):
                await upstream.look.wait()
        upstream.look.clear()


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
