"""Traces of every kind, and files that only claim to be one."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_trace import made, stored

from fleet.errors import ModelFileError
from fleet.experts import trace as shims
from fleet.experts import traces
from fleet.experts.trace import Routed, Trace
from fleet.experts.traces import check_model, read_any, trace_of_file
from fleet.models.experts import ByteRange, ExpertLayer, Experts, ExpertTensor

HEAD = struct.pack("=8s4IQ", b"QDMOETRC", 1, 3, 8, 1, 0)


def routes(trace: Trace) -> str:
    return "".join(f"{at // trace.layers} {one.layer} {' '.join(map(str, one.rows[0]))}\n"
                   for at, one in enumerate(trace.passes))


def test_the_three_kinds_say_the_same(tmp_path: Path):
    trace = made(tokens=20)
    lines = "".join(json.dumps({"position": 0, "layer": one.layer, "experts": one.rows[0], "misses": 1}) + "\n"
                    for one in trace.passes)
    for number, data in enumerate((stored(trace), routes(trace).encode(), lines.encode())):
        path = tmp_path / str(number)
        path.write_bytes(data)
        found = trace_of_file(str(path))
        assert found.passes == trace.passes and found.layers == trace.layers and found.decode_rows == 1


def test_a_line_that_was_being_written_is_left_out():
    assert read_any(b"0 0 1 2\n0 1 3 4\n1 0 1").passes == (Routed(0, ((1, 2),)), Routed(1, ((3, 4),)))


@pytest.mark.parametrize(("data", "sentence"), [
    (b"", "no routing trace"), (b"GGUF\3\0\0\0", "no routing trace"), (b"layer,expert\n0,1\n", "no routing trace"),
    (b"0 0 1\n0 zero 1\n", "line 2"), (b"0 0 1\n0 0\n", "line 2"), (b"0 0 -1\n", "line 1"), (b"0 600 1\n", "line 1"),
    (b"0 0 70000\n", "line 1"), (b'{"layer": 0}\n', "line 1"), (b'{"layer": true, "experts": [1]}\n', "line 1"),
    (b'{"layer": 0, "experts": ["1"]}\n', "line 1"), (b"{" * 9000 + b"\n", "line 1"), (b"1" * 70_000 + b"\n", "line 1"),
    (b"1" * 5000 + b" 0 1\n", "line 1"),                            # a number too long for int()
    (HEAD + struct.pack("=HHI2H", 0, 2, 1, 7, 8), "names expert 8 of 8"),
    (struct.pack("=8s4IQ", b"QDMOETRC", 1, 1 << 30, 8, 1, 0), "which no model has"),
    (struct.pack("=8s4IQ", b"QDMOETRC", 2, 3, 8, 1, 0), "version 2"),
    (HEAD + struct.pack("=HHI", 0, 2, 0), "at byte"), (HEAD + struct.pack("=HHI", 3, 2, 1), "at byte"),
])
def test_what_is_no_trace_is_refused_with_a_sentence(data: bytes, sentence: str):
    with pytest.raises(ModelFileError, match=sentence):
        read_any(data)


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(shims, "MOST_PASSES", 5)
    monkeypatch.setattr(traces, "MOST_PASSES", 5)
    for data in (stored(made(tokens=3)), routes(made(tokens=3)).encode()):
        with pytest.raises(ModelFileError, match="too large"):
            read_any(data)
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(shims.MOST_BYTES + 1)                       # sparse: nothing of it is read
    with pytest.raises(ModelFileError, match="too large"):
        trace_of_file(str(huge))


def test_what_is_no_file_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    for name in ("none", "fifo", "", "a\0b"):
        with pytest.raises(ModelFileError):
            trace_of_file(str(tmp_path / name))


@given(st.binary(max_size=300), st.sampled_from([b"", b"1 ", b"{", HEAD]))
def test_no_bytes_break_the_reader(data: bytes, start: bytes):
    try:
        found = read_any(start + data)
    except ModelFileError:
        return
    assert all(0 <= expert < found.experts for one in found.passes for row in one.rows for expert in row)


def test_a_trace_of_another_model_is_refused():
    def model(layers: int, experts: int, used: int) -> Experts:
        tensor = ExpertTensor("blk.0.ffn_up_exps.weight", "up", experts, ByteRange(0, 0, 100))
        return Experts(experts, used, 0, tuple(ExpertLayer(layer, experts, (tensor,)) for layer in range(layers)))

    trace = made(layers=4, experts=32, used=4, tokens=50)
    check_model(trace, model(4, 32, 4))
    for other in (model(3, 32, 4), model(4, 16, 4), model(4, 32, 8)):
        with pytest.raises(ModelFileError, match="another model"):
            check_model(trace, other)
