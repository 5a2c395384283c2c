"""What a follower understands of a puller's log: the truth in parts of any length, and no harm from lies."""

from __future__ import annotations

import json
import random

from fleet.node import Banned, PeerChange, PieceDone, Progress, as_line
from fleet.node.progress import PeerLine
from fleet.swarm.told import LONGEST_LINE, MOST_BANS, MOST_FLOWS, Told, bitfield

URL = "http://10.77.0.11:9100"
LINES = [
    as_line({"event": "serving", "url": "http://10.77.0.12:9100", "port": 9100, "name": "m.gguf", "manifest": "00"}),
    as_line(Progress("pulling", "m.gguf", "00", 4, 1, 400, 150, 50.0, 10.0, 5.0,
                     (PeerLine(URL, "up", 4, 50.0, 150, ""),))),
    as_line(PieceDone(2, (URL,), 2)),
    as_line(PeerChange(URL, "joined")),
    as_line(Banned("http://10.77.0.14:9100", 3, "sent wrong bytes")),
]


def test_what_was_told_is_known_however_the_log_is_cut():
    for seed in range(20):
        told, text, rng = Told(4), "\n".join(LINES) + "\n", random.Random(seed)
        while text:
            cut = rng.randint(1, 90)
            told.feed(text[:cut])
            text = text[cut:]
        assert (told.phase, told.done_bytes, told.down, told.eta) == ("pulling", 150, 50.0, 5.0)
        assert told.have == {2} and told.have_count == 2
        assert told.flows[URL].received == 150
        assert told.bans["http://10.77.0.14:9100"].piece == 3
        assert not told.finished and told.problem is None


def test_an_end_is_told_as_done_or_as_a_problem():
    told = Told(4)
    told.feed(as_line({"event": "done", "paths": ["/m.gguf"], "received": 400, "seconds": 1.0}) + "\n")
    told.feed(as_line({"event": "sent", "bytes": 900, "up": 3.5}) + "\n")
    assert told.finished and told.received == 400 and (told.sent, told.up) == (900, 3.5)
    failed = Told(4)
    failed.feed(as_line({"event": "error", "code": "full", "what": "The disk is full.", "remedy": "Free."}) + "\n")
    assert failed.problem is not None and failed.problem.code == "full" and not failed.finished


def test_a_line_that_is_cut_or_no_json_is_passed_over():
    told = Told(4)
    told.feed('tail of a line"}\n{"event": "pie\nTraceback (most recent call last):\n[1]\n{}\n' + LINES[2] + "\n")
    assert told.have == {2}


def test_lies_are_bounded_and_made_visible():
    told = Told(4)
    peers = [{"url": f"http://10.0.0.{n}:1", "received": n} for n in range(3 * MOST_FLOWS)]
    hostile = {"event": "progress", "phase": "\x1b[2J" * 100, "have": 10**30, "done": -5, "down": float("inf"),
               "up": "much", "eta": 1e300, "peers": peers}
    told.feed(json.dumps(hostile) + "\n" + json.dumps({**hostile, "peers": 5}) + "\n")
    for number in range(3 * MOST_BANS):
        told.feed(json.dumps({"event": "banned", "url": f"u{number}", "piece": [], "why": "\r" * 9_999}) + "\n")
    for index in (-1, 4, True, None, "1", 2.0):
        told.feed(json.dumps({"event": "piece", "index": index, "have": index}) + "\n")
    assert "\x1b" not in told.phase and told.have == set() and told.have_count <= 4
    assert (told.done_bytes, told.down, told.up) == (0, 0.0, 0.0)
    assert len(told.flows) == MOST_FLOWS and len(told.bans) == MOST_BANS
    assert all(len(ban.why) <= 500 and "\r" not in ban.why for ban in told.bans.values())


def test_a_line_without_end_takes_no_memory():
    told = Told(4)
    for _ in range(20):
        told.feed("{" + "x" * LONGEST_LINE)
    told.feed("\n" + LINES[2] + "\n")
    assert told.have == {2}


def test_the_bitfield_has_the_first_piece_in_the_highest_bit():
    assert bitfield({0, 9}, 10) == bytes([0x80, 0x40])
    assert bitfield((), 0) == b""
