"""What the repair of a stream costs for one event: `python tests/bench/repair.py`. Microseconds, medians of 9 runs."""

from __future__ import annotations

import statistics
import time

from fleet.proxy.exchange import RepairSettings
from fleet.proxy.repair import StreamRepair
from fleet.proxy.sse import SseSplitter

TAIL = (b'"created":1796088167,"id":"chatcmpl-73jdkX2IwtKfqrM7rylX7f3GY2cChTsZ","model":"gemma-3-270m-q4_k_m",'
        b'"system_fingerprint":"b1-571d0d5","object":"chat.completion.chunk"}\n\n')
CHAT = b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" word"}}],' + TAIL
TOOL = (b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"id":"a","type":"function",'
        b'"function":{"name":"f","arguments":"{}"}}]}}],' + TAIL)
MESSAGES = (b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
            b'"delta":{"type":"text_delta","text":" word"}}\n\n')
EVENTS = 20_000
RUNS = 9


def repair(kind: str, chunk: bytes) -> float:
    """Seconds of one event."""
    stream = StreamRepair(RepairSettings(), kind=kind, client_wants_usage=False)
    begin = time.perf_counter()
    for _ in range(EVENTS):
        stream.feed(chunk)
    return (time.perf_counter() - begin) / EVENTS


def split(chunk: bytes) -> float:
    """Seconds of one event that is cut out and not looked at."""
    splitter = SseSplitter()
    begin = time.perf_counter()
    for _ in range(EVENTS):
        splitter.feed(chunk)
    return (time.perf_counter() - begin) / EVENTS


if __name__ == "__main__":
    cases = {"cut out only": lambda: split(CHAT),
             "chat, nothing to repair": lambda: repair("chat", CHAT),
             "messages, nothing to repair": lambda: repair("messages", MESSAGES),
             "chat, CRLF": lambda: repair("chat", CHAT.replace(b"\n", b"\r\n")),
             "chat, tool call without index": lambda: repair("chat", TOOL)}
    for name, measure in cases.items():
        print(f"{name:32} {statistics.median(measure() for _ in range(RUNS)) * 1e6:8.2f} us")
