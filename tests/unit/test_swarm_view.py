"""What `swarm pull` shows: bars on a terminal, lines elsewhere; names of models are no markup and move no cursor."""

from __future__ import annotations

import io
import json
import sys

import pytest

from app.swarm_view import View
from fleet.node.progress import Banned, Note, PeerChange, PeerLine, Progress

MIB = 1 << 20
URL = "http://10.0.0.7:9080"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(done: int, name: str = "m.gguf", phase: str = "pulling") -> Progress:
    peer = PeerLine(URL, "up", 8, 2.0 * MIB, done, "")
    return Progress(phase, name, "ab" * 32, 8, done // MIB, 8 * MIB, done, 2.0 * MIB, 0.0, (8 * MIB - done) / MIB,
                    (peer,))


def test_without_a_terminal_there_is_a_line_for_every_tenth(capsys) -> None:
    with View(json=False) as view:
        for done in range(0, 8 * MIB + 1, 64 * 1024):
            view(progress(done))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert lines[5] == "pulling m.gguf  50%  4 of 8 pieces, 2 MiB/s, 4 s left, 1 of 1 peers"


def test_with_json_every_record_is_a_line(capsys) -> None:
    with View(json=True) as view:
        view(progress(MIB))
        view(Note("x\x1b[2J"))
        view.say("for people")
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["event"] for record in told] == ["progress", "note"]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_peers_and_manifests_say_moves_no_cursor_and_is_no_markup(monkeypatch, terminal: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with View(json=False) as view:
        view(progress(MIB, name="[/nope]\x1b[2Jx"))
        view(Banned("http://[/red]:1", 5, "sent \x1b]0;title\x07 bytes"))
        view(PeerChange(URL, "away", "\x1b[31m"))
        view({"event": "wrong", "pieces": [1, 2], "count": 2})
        view({"event": "sent", "bytes": MIB, "up": 0.0})
        view.hashing("[bold]", MIB, 2 * MIB)
    shown = out.getvalue()
    assert "[/nope]" in shown and "[/red]" in shown and "wrong or missing: 2 pieces (1, 2)" in shown
    assert "\x1b[2J" not in shown and "\x1b]0;" not in shown and "\x1b[31m" not in shown
