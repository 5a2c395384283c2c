"""The cut into events is the same however the bytes arrive, changes none of them, and keeps a bound."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.proxy.sse import Event, SseSplitter, parse_event

PARTS = (b"data: a", b"\n", b"\r", b"\r\n", b"\n\n", b": x", "\u00e9".encode(), b"\xff", b"event")
STREAMS = st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def blocks_of(pieces: list[bytes], limit: int = 1 << 20) -> tuple[list[bytes], bytes, bool]:
    splitter = SseSplitter(limit)
    blocks = [block for piece in pieces for block in splitter.feed(piece)]
    return blocks, splitter.rest(), splitter.overflowed


@pytest.mark.parametrize(("stream", "expected", "rest"), [
    (b"data: 1\n\ndata: 2\n\n", [b"data: 1\n\n", b"data: 2\n\n"], b""),
    (b"data: 1\r\n\r\ndata: 2\r\n\r\nd", [b"data: 1\r\n\r\n", b"data: 2\r\n\r\n"], b"d"),
    (b"data: 1\r\rdata: 2\r\rx", [b"data: 1\r\r", b"data: 2\r\r"], b"x"),
    (b"data: 1\n\r\nx", [b"data: 1\n\r\n"], b"x"),
    (b"data: 1\r\n", [], b"data: 1\r\n"),
    (b"data: 1\n\n\ndata: 2\n\n", [b"data: 1\n\n", b"\ndata: 2\n\n"], b""),
])
def test_events_end_at_an_empty_line_of_any_kind(stream: bytes, expected: list[bytes], rest: bytes) -> None:
    assert blocks_of([stream]) == (expected, rest, False)


def test_a_cr_at_the_end_waits_for_its_lf() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: 1\r\n\r") == []
    assert splitter.feed(b"\n") == [b"data: 1\r\n\r\n"]


@given(STREAMS, st.lists(st.integers(0, 400), max_size=12))
def test_cuts_do_not_matter_and_no_byte_is_lost(stream: bytes, places: list[int]) -> None:
    whole = blocks_of([stream])
    assert blocks_of(cut(stream, places)) == whole
    assert blocks_of([bytes([byte]) for byte in stream]) == whole
    assert b"".join(whole[0]) + whole[1] == stream


@given(st.binary(max_size=300))
def test_any_bytes_are_an_event_of_some_kind(block: bytes) -> None:
    assert isinstance(parse_event(block), Event)
    blocks, rest, _ = blocks_of([block])
    assert b"".join(blocks) + rest == block


def test_an_event_that_never_ends_is_not_kept() -> None:
    splitter = SseSplitter(limit=1000)
    for _ in range(100):
        assert splitter.feed(b"data: " + b"x" * 100) == []
    assert splitter.overflowed and splitter.rest() == b""
    assert splitter.feed(b"\n\ndata: 1\n\n") == []
    assert blocks_of([b"x" * 2000 + b"\n\n"], limit=1000) == ([], b"", True)


def test_lines_are_read_as_the_standard_has_them() -> None:
    assert parse_event("\ufeffevent: a\ndata:1\ndata:  2\n: c\nid: 7\nnothing\n\n".encode()) == Event("a", "1\n 2", "c")
    assert parse_event(b"data\n\n") == Event("", "")
    assert parse_event(b"error: {}\n\n").error == "{}"
    assert parse_event("data: a\u2028b\n\n".encode()).data == "a\u2028b"
