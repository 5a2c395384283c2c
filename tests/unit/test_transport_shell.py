"""What goes to a node's shell and how its answer is read, in whatever pieces it comes."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fleet.nodes import shell


def in_pieces(data: bytes, cuts: list[int]):
    edges = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(noise=st.binary(max_size=3000), payload=st.binary(max_size=500), cuts=st.lists(st.integers(0), max_size=20))
def test_what_precedes_the_mark_is_dropped_however_it_is_cut(noise, payload, cuts):
    begin = shell.Beginning()
    sent = noise + b"\n" + shell.MARK + b" 4711\n" + payload
    assert b"".join(map(begin.feed, in_pieces(sent, cuts))) == payload
    assert begin.pid == 4711


def test_noise_without_end_is_not_kept():
    begin = shell.Beginning()
    for _ in range(1000):
        assert begin.feed(b"x" * 10_000) == b""
    assert begin.pid is None and len(begin.noise) <= shell.NOISE_LIMIT and len(begin.said) <= 200


def test_what_the_shell_said_instead_is_one_printable_line():
    begin = shell.Beginning()
    begin.feed(b"\x1b[31mThis account\n\n is not available.\x07\n")
    assert begin.said == "?[31mThis account is not available.?"


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0), max_size=20), limit=st.integers(1, 50))
def test_lines_do_not_depend_on_how_they_come(data, cuts, limit):
    whole, cut = shell.Lines(limit), shell.Lines(limit)
    pieces = in_pieces(data, cuts)
    assert whole.feed(data) + whole.end() == [line for piece in pieces for line in cut.feed(piece)] + cut.end()


def test_the_remote_command_holds_nothing_that_a_login_shell_reads_its_own_way():
    inner = shell.REMOTE_COMMAND.partition("'")[2].rpartition("'")[0]
    assert not set(inner) & set("'\\!\n")


async def test_half_a_script_does_not_run(tmp_path):
    sent = shell.request('touch "$1"; echo more', [str(tmp_path / "made")])
    process = await asyncio.create_subprocess_exec(
        *shell.LOCAL_ARGV, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE)
    await process.communicate(sent[:-4])
    assert process.returncode and not (tmp_path / "made").exists()
