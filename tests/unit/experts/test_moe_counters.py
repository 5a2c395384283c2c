"""What the shim's files say, read by somebody who does not believe them."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import ModelFileError
from fleet.experts.counters import Tally, read_counters
from fleet.experts.shim import source
from fleet.experts.trace import Routed, read_trace
from fleet.models.tensor_types import tensor_types

HEAD = struct.Struct("=8s10I19Q24x")


def stats(*, magic: bytes = b"QDMOESTA", version: int = 1, layers: int = 2, experts: int = 3, flags: int = 3,
          cells: int = 6) -> bytes:
    head = HEAD.pack(magic, version, HEAD.size, 16, layers, experts, 2, flags, 77, 4096, 1, 1000, 5 * 10**9, 6 * 10**9,
                     40, 10, 20, 15, 2000, 500, 4, 8, 2, 800, 600, 900, 3 * 10**9, 0, 7, 9)
    return head + b"".join(struct.pack("=4I", n, n, 0, 0) for n in range(cells))


def test_the_reader_and_the_c_file_agree_on_the_layout():
    text = source().decode()
    head = text[text.index("struct head {"):text.index("struct cell {")]
    words = len(re.findall(r"^ +uint32_t", head, re.M))
    names = sum(line.count(",") + 1 for line in re.findall(r"^ +uint64_t ([^;\[]*);", head, re.M))
    assert HEAD.size == 8 + 4 * words + 8 * names + 8 * int(re.search(r"reserved\[(\d)\]", head)[1])


def test_counters_are_read():
    counters = read_counters(stats())
    assert (counters.pid, counters.layers, counters.experts, counters.used, counters.unread) == (77, 2, 3, 2, 7)
    assert (counters.passes, counters.assumed) == (40, 9)
    assert counters.decode == Tally(10, 20, 15, 2000, 500) and counters.prompt.missing == 600
    assert counters.decode.hit_rate == 0.75 and counters.decode.byte_hit_rate == 0.75
    assert counters.decode.missing_per_token == 50 and counters.prefetched == 900 and counters.spent == 3
    assert counters.cell(1, 2) == (5, 5, 0, 0) and counters.exact and counters.prefetches
    with pytest.raises(IndexError):
        counters.cell(2, 0)


def test_what_was_added_since_is_a_difference():
    later = Tally(14, 30, 20, 3000, 700)
    assert later.since(Tally(10, 20, 15, 2000, 500)) == Tally(4, 10, 5, 1000, 200)
    assert Tally(0, 0, 0, 0, 0).hit_rate is None and Tally(0, 0, 0, 0, 0).missing_per_token is None


@pytest.mark.parametrize("flag", [4, 8])
def test_hits_that_cannot_be_known_are_not_exact(flag: int):
    assert not read_counters(stats(flags=flag)).exact


@pytest.mark.parametrize("data", [b"", b"QDMOESTA", stats(magic=b"QDMOESTX"), stats(version=2), stats(cells=5),
                                  stats(layers=0), stats(layers=0xFFFF_FFFF, experts=0xFFFF_FFFF)])
def test_a_file_of_something_else_is_told(data: bytes):
    with pytest.raises(ModelFileError):
        read_counters(data)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_readers(data: bytes):
    for read, start in ((read_counters, b"QDMOESTA" + struct.pack("=I", 1)), (read_trace, b"QDMOETRC")):
        for text in (data, start + data):
            try:
                read(text)
            except ModelFileError:
                continue


def trace(*passes: tuple[int, list[list[int]]]) -> bytes:
    head = struct.pack("=8s4IQ", b"QDMOETRC", 1, 3, 8, 1, 0)
    return head + b"".join(struct.pack(f"=HHI{len(rows) * len(rows[0])}H", layer, len(rows[0]), len(rows),
                                       *(expert for row in rows for expert in row)) for layer, rows in passes)


def test_a_trace_is_read_and_a_torn_end_left_out():
    data = trace((1, [[3, 4], [5, 6]]), (2, [[7, 0]]), (1, [[1, 2]]), (2, [[2, 3]]))
    found = read_trace(data)
    assert found.passes[0] == Routed(1, ((3, 4), (5, 6))) and len(found.passes) == 4
    # A prompt goes through its last layer with one row: it is no decoding for that.
    assert [routed.rows for routed in found.decoding()] == [((1, 2),), ((2, 3),)]
    assert len(read_trace(data[:-1]).passes) == 3
    with pytest.raises(ModelFileError):
        read_trace(trace((5, [[1]])))


def test_the_shim_knows_the_sizes_of_today_s_types():
    rows = source().decode().partition("BLOCKS[] = {")[2].partition("};")[0]
    table = dict(re.findall(r"\{(\d+), (\d+, \d+)\}", rows))
    for number, kind in tensor_types().items():
        if str(number) in table:
            assert table[str(number)] == f"{kind.values}, {kind.bytes}", kind.name
    named = {kind.name: str(number) for number, kind in tensor_types().items()}
    assert {named[name] for name in ("F32", "F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "IQ2_XXS",
                                     "MXFP4")} <= table.keys()
