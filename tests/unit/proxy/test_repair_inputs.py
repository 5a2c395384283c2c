"""Streams that real servers were seen to send (tests/data/sse), whole, and cut at every byte."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from fleet.proxy.exchange import RepairSettings
from fleet.proxy.repair import StreamRepair

INPUTS = sorted((Path(__file__).parents[2] / "data" / "sse").glob("*.sse"))


def repaired(pieces: list[bytes], *, wants: bool = True) -> tuple[bytes, StreamRepair]:
    repair = StreamRepair(RepairSettings(), kind="chat", client_wants_usage=wants)
    return b"".join(map(repair.feed, pieces)) + repair.finish(None), repair


def read(name: str) -> bytes:
    return next(path for path in INPUTS if path.stem == name).read_bytes()


def chunks(out: bytes) -> list[dict[str, object]]:
    return [json.loads(line[6:]) for line in out.decode().split("\n")
            if line.startswith("data: ") and line != "data: [DONE]"]


@pytest.mark.parametrize("wants", [True, False])
@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.stem)
def test_every_cut_gives_the_same_stream(path: Path, wants: bool) -> None:
    stream = path.read_bytes()
    whole, repair = repaired([stream], wants=wants)
    told = (repair.tokens, repair.usage, repair.finished, repair.failed, repair.repairs)
    for at in range(len(stream) + 1):
        out, other = repaired([stream[:at], stream[at:]], wants=wants)
        assert out == whole
        assert (other.tokens, other.usage, other.finished, other.failed, other.repairs) == told
    assert repaired([bytes([byte]) for byte in stream], wants=wants)[0] == whole
    dice = random.Random(4)
    for _ in range(300):
        edges = [0, *sorted(dice.randrange(len(stream) + 1) for _ in range(dice.randrange(1, 20))), len(stream)]
        assert repaired([stream[a:b] for a, b in pairwise(edges)], wants=wants)[0] == whole


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.stem)
def test_every_stream_is_well_formed_when_it_is_through(path: Path) -> None:
    out, _ = repaired([path.read_bytes()])
    assert out.endswith(b"data: [DONE]\n\n") and out.count(b"[DONE]") == 1
    assert b"\r" not in out and "\ufffd" not in out.decode()
    for chunk in chunks(out):
        assert "error" in chunk or isinstance(chunk["choices"], list)


def test_keep_alive_comments_go_through_and_nothing_is_changed() -> None:
    stream = read("keepalive_comments_before_first_byte")
    out, repair = repaired([stream])
    assert out == stream and repair.repairs == () and repair.finished and repair.tokens == 1


def test_a_comment_written_as_data_is_dropped() -> None:
    out, repair = repaired([read("comment_wrapped_as_data")])
    assert b"PROCESSING" not in out and len(chunks(out)) == 1 and repair.repairs == ("comments_as_data",)


def test_empty_data_is_dropped() -> None:
    out, repair = repaired([read("empty_data_lines")])
    assert [chunk["id"] for chunk in chunks(out)] == ["c3"] and repair.repairs == ("empty_data",)


def test_usage_after_the_end_is_counted_and_kept_for_who_asked() -> None:
    stream = read("usage_after_finish_empty_choices")
    out, repair = repaired([stream])
    assert out == stream and repair.usage == {"prompt_tokens": 11, "completion_tokens": 1, "total_tokens": 12}
    out, repair = repaired([stream], wants=False)
    assert b"usage" not in out and len(chunks(out)) == 2 and repair.tokens == 1
    assert repair.usage is not None and repair.usage["prompt_tokens"] == 11


def test_a_tool_call_without_index_gets_one() -> None:
    out, repair = repaired([read("tool_call_without_index")])
    call = chunks(out)[0]["choices"][0]["delta"]["tool_calls"][0]      # type: ignore[index]
    assert call["index"] == 0 and call["function"] == {"name": "get_time", "arguments": '{"tz":"UTC"}'}
    assert repair.repairs == ("tool_call_index",) and repair.finished


def test_an_error_in_the_midst_is_told_and_ends_the_stream_without_success() -> None:
    out, repair = repaired([read("crlf_midstream_error_no_done")])
    assert [list(chunk) for chunk in chunks(out)] == [["id", "choices"], ["error"]]
    assert repair.failed and not repair.finished and "line_ends" in repair.repairs


def test_text_of_several_bytes_stays_whole() -> None:
    stream = read("reasoning_then_utf8_split_me")
    out, repair = repaired([bytes([byte]) for byte in stream])
    assert out == stream and "caf\u00e9" in out.decode() and repair.tokens == 2 and repair.finished
