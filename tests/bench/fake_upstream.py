"""A fast fake of an OpenAI-compatible server, for benchmarks and tests of the proxy: no model, just its timing.

    python tests/bench/fake_upstream.py [--port N]       prints its port

`max_tokens` of a chat is how many parts it streams, `rate` (parts a second; 0 = at once) how fast. `first` (seconds)
is the wait before the first. One timer wakes all streams, so that it costs little beside what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

TICK = 0.01


def chunk(text: str, finish: str | None = None) -> bytes:
    """One event of a chat, as llama-server writes it."""
    delta = {"content": text} if finish is None else {}
    return b"data: " + json.dumps({
        "choices": [{"finish_reason": finish, "index": 0, "delta": delta}], "created": 1796000000,
        "id": "chatcmpl-2c9fDd0WZqJ6cqoSaH5c2wpSsF7ocXBC", "model": "fake", "system_fingerprint": "b1-571d0d5",
        "object": "chat.completion.chunk"}, separators=(",", ":")).encode() + b"\n\n"


TOKEN = chunk(" token")
LAST = chunk("", "stop")
USAGE = (b'data: {"choices":[],"created":1796000000,"id":"chatcmpl-2c9fDd0WZqJ6cqoSaH5c2wpSsF7ocXBC","model":"fake",'
         b'"object":"chat.completion.chunk","usage":{"completion_tokens":%d,"prompt_tokens":7,"total_tokens":%d}}\n\n')
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    """A chunk of HTTP."""
    return b"%x\r\n%s\r\n" % (len(data), data)


FRAMED = framed(TOKEN)


class Fake(asyncio.Protocol):
    """One connection."""

    server: Server

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = b""
        self.transport: asyncio.Transport | None = None
        self.left = 0
        self.due = 0.0
        self.gap = 0.0
        self.usage = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections -= 1
        if self in self.server.streams:
            self.server.streams.discard(self)
            self.server.cut += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4:end + 4 + length]
            self.buffer = self.buffer[end + 4 + length:]
            self.answer(head.split(b" ", 2)[1].split(b"?")[0], body)

    def whole(self, value: object) -> None:
        """A JSON answer."""
        body = json.dumps(value).encode()
        assert self.transport is not None
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                             % (len(body), body))

    def answer(self, path: bytes, body: bytes) -> None:
        """One request."""
        if path == b"/v1/models":
            self.whole({"object": "list", "data": [{"id": "fake", "object": "model", "owned_by": "bench"}]})
        elif path == b"/health":
            self.whole({"status": "ok"})
        elif path == b"/props":
            self.whole({"total_slots": 4096, "model_alias": "fake", "default_generation_settings": {"n_ctx": 4096}})
        elif path in (b"/v1/chat/completions", b"/v1/completions"):
            self.chat(json.loads(body))
        else:
            self.whole({})

    def chat(self, asked: dict) -> None:
        """A stream, or a whole answer."""
        self.server.requests += 1
        count = int(asked.get("max_tokens", 16))
        usage = {"completion_tokens": count, "prompt_tokens": 7, "total_tokens": count + 7}
        if not asked.get("stream"):
            self.whole({"choices": [{"index": 0, "finish_reason": "stop",
                                     "text": " token" * count,
                                     "message": {"role": "assistant", "content": " token" * count}}],
                        "id": "chatcmpl-1", "model": "fake", "object": "chat.completion", "usage": usage})
            return
        self.usage = USAGE % (count, count + 7) if (asked.get("stream_options") or {}).get("include_usage") else b""
        rate, first = float(asked.get("rate", 0)), float(asked.get("first", 0))
        assert self.transport is not None
        if not rate and not first:
            self.transport.write(HEAD + FRAMED * count)
            self.end()
            return
        self.left, self.gap = count, 1 / rate if rate else 0.0
        now = self.server.loop.time()
        if first:
            self.transport.write(HEAD)
            self.due = now + first
        else:
            self.transport.write(HEAD + FRAMED)
            self.left -= 1
            self.due = now + self.gap
        self.server.streams.add(self)

    def tick(self, now: float) -> None:
        """What is due by now."""
        assert self.transport is not None
        count = 0
        while self.left and self.due <= now:
            count += 1
            self.left -= 1
            self.due += self.gap
        if count:
            self.transport.write(FRAMED * count)
        if not self.left:
            self.server.streams.discard(self)
            self.end()

    def end(self) -> None:
        """The end of a stream."""
        assert self.transport is not None
        self.transport.write(framed(LAST) + (framed(self.usage) if self.usage else b"") + framed(DONE) + b"0\r\n\r\n")


class Server:
    """All connections, and what is counted."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.streams: set[Fake] = set()
        self.connections = 0
        self.requests = 0
        self.cut = 0                     # streams whose reader left
        self.port = 0

    async def run(self, port: int = 0) -> None:
        """Serve until cancelled."""
        server = await self.loop.create_server(lambda: Fake(self), "127.0.0.1", port, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        print(self.port, flush=True)
        async with server:
            while True:
                await asyncio.sleep(TICK)
                now = self.loop.time()
                for stream in tuple(self.streams):
                    stream.tick(now)


async def main(port: int) -> None:
    """Serve on `port`."""
    await Server().run(port)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    try:
        asyncio.run(main(options.port))
    except KeyboardInterrupt:
        sys.exit(0)
