"""A distribution while it runs: a bar for each machine on a terminal, lines at every quarter elsewhere."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from app.follow import StepLines
from app.output import put
from app.present.units import size
from fleet.model import Operation, Swarm
from fleet.model.swarm import PeerState, SwarmPeer
from fleet.text import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

ENDED = frozenset({PeerState.DONE, PeerState.SEEDING, PeerState.FAILED, PeerState.STOPPED})
QUARTERS = 4


class Bars:
    """Shows an operation's steps as they end, and its swarm."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._steps = StepLines(self._put, stream)
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._said: dict[str, tuple[PeerState, int]] = {}
        self._banned = 0

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self._steps.close()
        if self._progress is not None:
            self._progress.stop()

    def show(self, operation: Operation, swarm: Swarm | None) -> None:
        """What is new in either."""
        if swarm is None or swarm.ended is not None or not self._is_terminal:
            self._steps.show(operation)
        if swarm is None:
            return
        for ban in swarm.bans[self._banned:]:
            self._put(f"  {visible(ban.source)} sent wrong bytes (piece {ban.piece}) to {visible(ban.node)}: "
                      "it is asked no more")
        self._banned = len(swarm.bans)
        if self._is_terminal:
            self._draw(swarm)
        else:
            for peer in swarm.peers:
                if not peer.source:
                    self._line(swarm, peer)

    def _put(self, line: str) -> None:
        if self._progress is not None:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif self._stream is sys.stdout:
            put(line)
        else:
            print(line, file=self._stream, flush=True)

    def _line(self, swarm: Swarm, peer: SwarmPeer) -> None:
        quarter = QUARTERS * peer.done_bytes // swarm.size if swarm.size else 0
        now = peer.state, min(quarter, QUARTERS) if peer.state is PeerState.PULLING else 0
        if self._said.get(peer.node) == now or peer.state is PeerState.WAITING:
            return
        self._said[peer.node] = now
        about = f": {visible(peer.problem.what, limit=200)}" if peer.problem else ""
        share = f" {100 * peer.done_bytes // swarm.size}%" if peer.state is PeerState.PULLING else ""
        self._put(f"  {visible(peer.node)}: {peer.state.value}{share}{about}")

    def _draw(self, swarm: Swarm) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn

        if self._progress is None:
            self._steps.close()
            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[about]}"), console=Console(file=self._stream), auto_refresh=False,
                redirect_stdout=False, redirect_stderr=False)
            self._progress.start()
        for peer in swarm.peers:
            if peer.node not in self._bars:
                self._bars[peer.node] = self._progress.add_task(escape(visible(peer.node)), total=swarm.size, about="")
            self._progress.update(self._bars[peer.node], completed=peer.done_bytes, about=escape(about(swarm, peer)))
        self._progress.refresh()


def about(swarm: Swarm, peer: SwarmPeer) -> str:
    """A peer in a few words: what it does and how fast."""
    if peer.problem is not None:
        return f"{peer.state.value}: {visible(peer.problem.what, limit=100)}"
    if peer.source:
        return f"sent {size(swarm.sent_by_source)}, {size(int(peer.up))}/s"
    parts = [peer.state.value]
    if peer.state not in ENDED and peer.down:
        parts.append(f"{size(int(peer.down))}/s")
    if peer.eta is not None and peer.state not in ENDED:
        parts.append(f"{peer.eta:.0f} s left")
    return ", ".join(parts)
