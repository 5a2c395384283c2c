"""What Split, Models, Proxy and Swarm write to a real terminal while much changes; no clock is part of a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_terminal_bytes import run_in_terminal

# Bytes of a frame. Swarm: 100 kB/s at 2 Hz with 30 machines and 5,000 pieces; Proxy: 20 kB/s at 2 Hz with 50 live
# requests; Split and Models: 10 kB/s at 1 Hz while every node's figures move.
BUDGETS = {"swarm": 50_000, "proxy": 10_000, "split": 10_000, "models": 10_000}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("columns", "lines", "colours"), [(120, 40, ""), (80, 24, "truecolor")])
def test_every_screen_stays_within_its_bytes(tmp_path: Path, columns: int, lines: int, colours: str) -> None:
    measured, _ = run_in_terminal(tmp_path / "report.json", columns, lines, "room_meter.py", COLORTERM=colours)
    for room, budget in BUDGETS.items():
        frames = measured[room]
        assert isinstance(frames, list) and max(frames) <= budget, (room, frames)
        assert measured[f"{room} idle"] == 0, room
    assert min(measured["proxy"]) > 0 and min(measured["swarm"]) > 0, "something was measured"
    assert measured["hidden"] == [0] * 6, "screens that are not seen do not paint"
