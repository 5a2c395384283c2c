"""A stand-in for llama-server on a GPU: no model, its protocol, and a fixed time for every pass.

    python tests/bench/standin.py --pass-ms 50 [--agree 0.8] [--slots 9]         prints its port

A pass takes that long for up to 64 tokens of all slots together, and as long again for each 64 more. Slots keep what
they have read, and a prompt goes to the one that shares most of it, as in llama-server. The next token is made of the
last ones by hashing, so every server says the same; one that `--agree`s less says another token now and then. Served
are /completion (a list of prompts, streams), /v1/completions (with logprobs), /tokenize, /detokenize, /props, /slots,
/v1/models, /metrics and /health.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from zlib import crc32

BATCH = 64
WORDS = 30000
ROUGH = 0.0015             # seconds: asyncio wakes on whole milliseconds, which would be 2% of a pass
SEEN = 3                   # tokens that the next one is made of


def next_token(tokens: list[int], agree: float) -> int:
    """What comes after these; a server that agrees less has another opinion at some places."""
    tail = repr(tokens[-SEEN:]).encode()
    wrong = crc32(b"drift" + tail) % 1000 >= agree * 1000
    return 100 + crc32((b"other" if wrong else b"") + tail) % WORDS


def text_of(token: int) -> str:
    """Every token is a word of its own."""
    return f" w{token}"


def tokens_of(text: str) -> list[int]:
    """Words of ours by their number, others by a hash."""
    return [int(word[1:]) if re.fullmatch(r"w\d{1,6}", word) else 100 + crc32(word.encode()) % WORDS
            for word in text.split()]


@dataclass(eq=False)
class Job:
    """One prompt that is continued in a slot."""

    tokens: list[int]
    left: int
    slot: int = -1
    unread: int = 0
    read: int = 0
    seconds: float = 0.0       # that its prompt was read in
    said: list[int] = field(default_factory=list)
    until: list[float] = field(default_factory=list)       # the ends of the passes that said it, loop clock
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Machine:
    """Slots, a queue, and the passes."""

    def __init__(self, pass_seconds: float, agree: float, slots: int, *, each_token: bool) -> None:
        self.pass_seconds, self.agree, self.each_token = pass_seconds, agree, each_token
        self.slots: list[list[int]] = [[] for _ in range(slots)]
        self.busy: dict[int, Job] = {}
        self.queue: deque[Job] = deque()
        self.wake = asyncio.Event()
        self.passes = 0
        self.until = self.arrived = 0.0      # ends of the last pass, and of the last question's head: loop clock

    def submit(self, tokens: list[int], count: int) -> Job:
        """Queue a prompt."""
        if not self.busy and not self.queue:
            self.until = self.arrived
        job = Job(list(tokens), max(1, count))
        self.queue.append(job)
        self.wake.set()
        return job

    async def over(self, job: Job, token: int) -> None:
        """Wait for the pass that said this token of a job."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(job.until[token] - loop.time() - ROUGH)
        time.sleep(max(0.0, min(2 * ROUGH, job.until[token] - loop.time())))      # noqa: ASYNC251  for that much

    def drop(self, job: Job) -> None:
        """Nobody waits for it any more."""
        if job in self.queue:
            self.queue.remove(job)
        if self.busy.get(job.slot) is job:
            del self.busy[job.slot]

    def _seat(self) -> None:
        while self.queue and len(self.busy) < len(self.slots):
            job = self.queue.popleft()
            free = [slot for slot in range(len(self.slots)) if slot not in self.busy]
            job.slot = max(free, key=lambda slot: _common(self.slots[slot], job.tokens))
            shared = min(_common(self.slots[job.slot], job.tokens), len(job.tokens) - 1)
            job.unread = job.read = len(job.tokens) - shared
            self.busy[job.slot] = job

    async def run(self) -> None:
        """Pass after pass."""
        loop = asyncio.get_running_loop()
        while True:
            self._seat()
            if not self.busy:
                self.wake.clear()
                await self.wake.wait()
                continue
            jobs = list(self.busy.values())
            count = sum(max(1, job.unread) for job in jobs)
            passes = 1 if self.each_token else -(-count // BATCH)
            self.passes += passes
            # From the end of the pass before, or from when the question came: what this process needs to wake and to
            # read JSON is no time of a GPU. Only where it is late by much a pass begins when it begins.
            self.until = max(self.until, loop.time() - self.pass_seconds / 4) + passes * self.pass_seconds
            for job in jobs:
                job.seconds = job.seconds or passes * self.pass_seconds
                token = next_token(job.tokens, self.agree)
                self.slots[job.slot] = list(job.tokens)
                job.unread = 0
                job.tokens.append(token)
                job.said.append(token)
                job.until.append(self.until)
                job.left -= 1
                job.news.set()           # its answer is made ready now, and goes out when the pass is over
            await asyncio.sleep(self.until - loop.time())
            for job in jobs:
                if not job.left and self.busy.get(job.slot) is job:
                    del self.busy[job.slot]


def _common(one: list[int], other: list[int]) -> int:
    """Tokens at the beginning of both. By halves: a loop over all of them would take a part of a pass."""
    same, end = 0, min(len(one), len(other)) + 1
    while end - same > 1:
        middle = (same + end) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            end = middle
    return same


class Serving:
    """HTTP around a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, request after request."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.machine.arrived = asyncio.get_running_loop().time()
                found = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(found[1])) if found else b""
                await self.answer(head.split(b" ", 2)[1].decode(), json.loads(body) if body else {}, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, path: str, asked: dict, writer: asyncio.StreamWriter) -> None:
        """One request."""
        slots = len(self.machine.slots)
        said: object = {"status": "ok"}
        kind = "application/json"
        if path == "/props":
            said = {"default_generation_settings": {"n_ctx": 65536, "params": {"speculative.types": "none"}},
                    "total_slots": slots, "model_alias": "standin", "build_info": "standin", "chat_template": ""}
        elif path == "/v1/models":
            said = {"object": "list", "data": [{"id": "standin", "object": "model", "meta": {
                "n_vocab": WORDS + 100, "n_ctx": 65536}}]}
        elif path == "/slots":
            said = [{"id": slot, "n_ctx": 65536, "speculative": False, "is_processing": slot in self.machine.busy}
                    for slot in range(slots)]
        elif path == "/metrics":
            kind, said = "text/plain", f"llamacpp:n_decode_total {self.machine.passes}\n"
        elif path == "/tokenize":
            said = {"tokens": tokens_of(asked["content"])}
        elif path == "/detokenize":
            said = {"content": "".join(map(text_of, asked["tokens"]))}
        elif path == "/completion":
            if asked.get("stream"):
                await self.stream(asked, writer)
                return
            said = await self.complete(asked)
        elif path == "/v1/completions":
            said = await self.openai(asked)
        data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s"
                     % (kind.encode(), len(data), data))

    async def _done(self, prompts: list[list[int]], count: int) -> list[Job]:
        jobs = [self.machine.submit(prompt, count) for prompt in prompts]
        try:
            for job in jobs:
                while job.left:
                    job.news.clear()
                    await job.news.wait()
        finally:
            for job in jobs:
                if job.left:
                    self.machine.drop(job)
        return jobs

    async def complete(self, asked: dict) -> str:
        """All at once: an object for one prompt, a list for several."""
        prompt = asked["prompt"]
        if isinstance(prompt, str):
            prompt = tokens_of(prompt)
        several = bool(prompt) and isinstance(prompt[0], list)
        jobs = await self._done(prompt if several else [prompt], asked.get("n_predict", 16))
        found = [_said(index, job) for index, job in enumerate(jobs)]
        data = json.dumps(found if several and len(found) > 1 else found[0])
        for job in jobs:
            await self.machine.over(job, -1)
        return data

    async def stream(self, asked: dict, writer: asyncio.StreamWriter) -> None:
        """Token by token."""
        prompt = asked["prompt"] if isinstance(asked["prompt"], list) else tokens_of(asked["prompt"])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        job, told = self.machine.submit(prompt, asked.get("n_predict", 16)), 0
        try:
            while job.left or told < len(job.said):
                if told == len(job.said):
                    job.news.clear()
                    await job.news.wait()
                    continue
                token = job.said[told]
                told += 1
                event = {"index": 0, "content": text_of(token), "tokens": [token], "stop": False,
                         "tokens_predicted": told}
                data = _chunk(event)
                await self.machine.over(job, told - 1)
                writer.write(data)
                await writer.drain()
            last = {"index": 0, "content": "", "tokens": [], "stop": True, "stop_type": "limit",
                    "tokens_predicted": told, "timings": {"predicted_n": told}}
            writer.write(_chunk(last) + b"0\r\n\r\n")
            await writer.drain()
        finally:
            if job.left:
                self.machine.drop(job)

    async def openai(self, asked: dict) -> dict:
        """A completion as OpenAI has it."""
        prompt = asked["prompt"] if isinstance(asked["prompt"], list) else tokens_of(asked["prompt"])
        job, = await self._done([prompt], asked.get("max_tokens", 16))
        await self.machine.over(job, -1)
        content = [{"id": token, "token": text_of(token), "logprob": -0.1, "top_logprobs": []} for token in job.said]
        return {"object": "text_completion", "model": "standin", "choices": [{
            "index": 0, "text": "".join(map(text_of, job.said)), "finish_reason": "length",
            "logprobs": {"content": content} if asked.get("logprobs") else None}],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(job.said),
                      "total_tokens": len(prompt) + len(job.said)}}


def _chunk(event: dict) -> bytes:
    data = b"data: %s\n\n" % json.dumps(event).encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _said(index: int, job: Job) -> dict:
    return {"index": index, "content": "".join(map(text_of, job.said)), "tokens": job.said, "stop": True,
            "stop_type": "limit", "id_slot": job.slot, "tokens_predicted": len(job.said),
            "timings": {"prompt_n": job.read, "prompt_ms": job.seconds * 1000, "predicted_n": len(job.said)},
            "timings/prompt_n": job.read, "timings/cache_n": 0, "timings/prompt_ms": job.seconds * 1000}


async def main(options: argparse.Namespace) -> None:
    """Serve until it is ended."""
    machine = Machine(options.pass_ms / 1000, options.agree, options.slots, each_token=options.draft)
    server = await asyncio.start_server(Serving(machine).connection, "127.0.0.1", options.port, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server, asyncio.TaskGroup() as group:
        group.create_task(machine.run())
        group.create_task(server.serve_forever())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pass-ms", type=float, default=50.0)
    parser.add_argument("--agree", type=float, default=1.0)
    parser.add_argument("--slots", type=int, default=9)
    parser.add_argument("--draft", action="store_true", help="a pass takes as long however much it reads")
    try:
        asyncio.run(main(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(0)
