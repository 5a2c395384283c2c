"""Upstreams that do as a test tells them, and clients that leave when they like: real sockets on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from fleet.proxy.exchange import HoldSettings, ProxySettings, UpstreamSettings
from fleet.proxy.serve import Running, running

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass
class Asked:
    """One request as the upstream got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Script = Callable[[Asked, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def event(text: str, finish: str | None = None) -> bytes:
    """A chunk of a chat."""
    return b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [
        {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]}).encode() + b"\n\n"


def framed(data: bytes) -> bytes:
    """A chunk of HTTP."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(said: object, status: int = 200) -> bytes:
    """A JSON answer."""
    body = json.dumps(said).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        status, len(body), body)


async def tell(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A short chat, streamed where that was asked for."""
    if json.loads(asked.body).get("stream"):
        writer.write(HEAD + b"".join(map(framed, (event("one"), event(" two"), event("", "stop"), DONE, b""))))
    else:
        writer.write(whole({"choices": [{"index": 0, "message": {"role": "assistant", "content": "one two"},
                                         "finish_reason": "stop"}],
                            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}))
    await writer.drain()


async def hang(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """No answer, until the proxy leaves."""
    await reader.read()


async def hang_after_one(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One token and no more, until the proxy leaves."""
    writer.write(HEAD + framed(event("one")))
    await reader.read()


async def die_after_one(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One token, and the connection breaks off."""
    writer.write(HEAD + framed(event("one")))
    await writer.drain()
    writer.transport.abort()


@dataclass
class Scripted:
    """A server on a random port. GETs are answered as a healthy llama-server with `slots` does."""

    script: Script = tell
    slots: int = 4
    model: str = "m"
    loading: bool = False
    asked: list[Asked] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    port: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def settings(self) -> UpstreamSettings:
        """For the proxy."""
        return UpstreamSettings(self.model, f"http://127.0.0.1:{self.port}", connect_timeout=2.0)

    async def until(self, wanted: Callable[[], bool]) -> None:
        """Wait for something that requests change."""
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(wanted)

    async def _note(self, by: int) -> None:
        async with self.changed:
            self.running += by
            self.most_running = max(self.most_running, self.running)
            self.changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while (asked := await read_request(reader)) is not None:
                if asked.method == "GET":
                    writer.write(self._about(asked.path))
                    continue
                self.asked.append(asked)
                await self._note(1)
                try:
                    await self.script(asked, reader, writer)
                finally:
                    await self._note(-1)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _about(self, path: str) -> bytes:
        if self.loading:
            return whole({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503)
        if path == "/v1/models":
            return whole({"object": "list", "data": [{"id": self.model}]})
        if path == "/props":
            return whole({"total_slots": self.slots, "model_alias": self.model})
        return whole({"status": "ok"})


async def read_request(reader: asyncio.StreamReader) -> Asked | None:
    """The next request; None at the end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rest)}
    method, path, _ = line.split(" ", 2)
    return Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


@asynccontextmanager
async def upstream(script: Script = tell, **about: object) -> AsyncIterator[Scripted]:
    """A scripted server that listens."""
    scripted = Scripted(script, **about)                             # type: ignore[arg-type]
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0, backlog=2048)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()


@asynccontextmanager
async def proxied(*upstreams: Scripted | UpstreamSettings, **settings: object) -> AsyncIterator[Running]:
    """A proxy in front of them that knows them already; nothing may be left in it at the end."""
    configured = tuple(up.settings if isinstance(up, Scripted) else up for up in upstreams)
    given = {"hold": HoldSettings(gone_seconds=0.1), "probe_interval": 0.1, "drain_seconds": 2.0, **settings}
    async with running(ProxySettings(port=0, upstreams=configured, **given)) as proxy:       # type: ignore[arg-type]
        await eventually(lambda: all(up.health.state != "unknown" for up in proxy.proxy.routes.upstreams.values()))
        yield proxy
        await nothing_left(proxy)


async def nothing_left(proxy: Running) -> None:
    """Wait until no request, slot or connection of one is held any more."""
    ups = proxy.proxy.routes.upstreams.values()
    await eventually(lambda: not proxy.proxy.records.live and not proxy.proxy.gate.waiting and not any(
        up.running or up.connections for up in ups))


async def eventually(wanted: Callable[[], bool]) -> None:
    """Wait for what tells of no event."""
    async with asyncio.timeout(20):
        while True:
            if wanted():
                return
            await asyncio.sleep(0.01)


def ask(stream: bool = False, path: str = "/v1/chat/completions", headers: str = "", **fields: object) -> bytes:
    """A chat request, as bytes."""
    body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}],
                       **fields}).encode()
    return (f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{headers}"
            f"content-length: {len(body)}\r\n\r\n").encode() + body


@dataclass
class Reply:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict:
        """The body."""
        return json.loads(self.body)


class Client:
    """One connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> Reply:
        """Status and headers."""
        async with asyncio.timeout(30):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rest = raw.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rest)}
        return Reply(int(line.split(" ")[1]), headers, b"")

    async def part(self) -> bytes:
        """One chunk of a chunked body, b"" for the last."""
        async with asyncio.timeout(30):
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def reply(self) -> Reply:
        """All of the answer."""
        reply = await self.head()
        async with asyncio.timeout(30):
            if "content-length" in reply.headers:
                reply.body = await self.reader.readexactly(int(reply.headers["content-length"]))
            else:
                while part := await self.part():
                    reply.body += part
        return reply

    async def leave(self) -> None:
        """Close the connection."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def client(proxy: Running, sends: bytes = b"") -> AsyncIterator[Client]:
    """A connection on which something was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    made = Client(reader, writer)
    writer.write(sends)
    try:
        yield made
    finally:
        await made.leave()


async def told(proxy: Running, sends: bytes) -> Reply:
    """One request and its answer."""
    async with client(proxy, sends) as asking:
        return await asking.reply()


def with_limits(settings: UpstreamSettings, **limits: object) -> UpstreamSettings:
    """The same upstream with other limits."""
    return replace(settings, **limits)                               # type: ignore[arg-type]
