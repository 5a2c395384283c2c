"""The log of one service as it grows."""

from __future__ import annotations

import asyncio
import shlex
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from app.keymap import LOGS
from app.present import services
from app.present.units import count
from app.present.words import SERVICE_SIGNS
from app.screens.base import CockpitScreen
from fleet.errors import FleetError
from fleet.model import Snapshot
from widgets.log_view import LINES_KEPT, LogView
from widgets.panel_title import PanelTitle
from widgets.spans import Line, Span, Tone, joined, line

TAIL = 400                     # lines asked for at first
BATCH = 0.5                    # seconds between repaints
WAITING_MOST = 10_000          # lines held while paused; older ones fall away


class LogScreen(CockpitScreen):
    """Lines come in batches, twice a second, through a channel of their own: never by the snapshot."""

    AUTO_FOCUS = "#log"
    BINDINGS: ClassVar[list[BindingType]] = LOGS

    def __init__(self, node: str, service: str) -> None:
        super().__init__()
        self.node = node
        self.service = service
        self.paused = False
        self._waiting: list[str] = []
        self._came = asyncio.Event()
        self._state: Line = ()
        self._ended = ""

    @property
    def command(self) -> str:
        """The shell command that shows the same."""
        return shlex.join(("quarterdeck", "logs", self.node, self.service))

    def compose_body(self) -> ComposeResult:
        """Title, log, filter."""
        yield PanelTitle("", id="log-title")
        yield LogView(id="log")
        yield self.filter_input()

    def on_mount(self) -> None:
        """Begin to read."""
        super().on_mount()
        self.query_one("#log-title", PanelTitle).light(True)
        self._title()
        self.run_worker(self._read(), group="log-read", exit_on_error=False)
        self.run_worker(self._pour(), group="log-pour", exit_on_error=False)

    async def _read(self) -> None:
        engine = self.cockpit.engine
        if engine is None:
            self._ended = "the engine does not run"
            self._title()
            return
        try:
            async for text in engine.log_lines(self.node, self.service, tail=TAIL, follow=True):
                self._waiting.append(text)
                if len(self._waiting) > WAITING_MOST:
                    del self._waiting[:WAITING_MOST // 2]
                self._came.set()
            self._ended = "the log has ended"
        except FleetError as error:
            self._ended = str(error)
        self._title()

    async def _pour(self) -> None:
        view = self.query_one("#log", LogView)
        while True:
            await self._came.wait()
            self._came.clear()
            if not self.paused:
                batch, self._waiting = self._waiting, []
                view.add(batch)
            await asyncio.sleep(BATCH)

    def show(self, snapshot: Snapshot, now: float) -> None:
        """The service's state, in the title."""
        node = snapshot.nodes.get(self.node)
        found = [service for service in node.services if service.record.id == self.service] if node else []
        self._state = SERVICE_SIGNS[found[0].state].line if found else (Span("? no such service now", Tone.WARN),)
        self._title()

    def on_log_view_changed(self) -> None:
        """Counts and switches, in the title."""
        self._title()

    def _title(self) -> None:
        view = self.query_one("#log", LogView)
        words = [count(view.shown, "line") if view.shown == view.kept else f"{view.shown} of {view.kept} lines"]
        if view.came > LINES_KEPT:
            words.append(f"last {LINES_KEPT} kept")
        words.append("following" if view.following else "not following")
        words += ["wrapped"] if view.wrapping else []
        words += ["warnings and errors"] if view.errors_only else []
        words += [f"paused, {len(self._waiting)} wait"] if self.paused else []
        ended = (Span(self._ended, Tone.WARN),) if self._ended else ()
        self.query_one("#log-title", PanelTitle).show(
            f"{self.node}  {self.service}", joined((ended, self._state, line(Span(", ".join(words), Tone.MUTED)))))

    # -- keys ---------------------------------------------------------------------------------

    def action_back(self) -> None:
        """Away with the filter, then to where it was opened."""
        box = self.query_one("#filter", Input)
        if box.display:
            box.clear()
            self._filtered("")
            return
        self.dismiss()

    def action_filter(self) -> None:
        """Open the filter's line."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self.query_one("#log", LogView).filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the log, filtered."""
        self._filtered(event.value)

    def _filtered(self, words: str) -> None:
        box = self.query_one("#filter", Input)
        box.display = bool(words)
        self.query_one("#log", LogView).filter(words)
        self.query_one("#log", LogView).focus()

    def action_pause(self) -> None:
        """Take no lines for a while."""
        self.paused = not self.paused
        self._came.set()
        self._title()

    def action_copy(self) -> None:
        """The lines that pass the filter."""
        self.cockpit.copy(self.query_one("#log", LogView).text())

    def action_copy_command(self) -> None:
        """The command that shows this log in a shell."""
        self.cockpit.copy(self.command)


def of(selected: services.Selected) -> LogScreen | None:
    """The log of what is selected; a foreign process's log is not ours to find."""
    return LogScreen(selected.node, selected.service.record.id) if selected.service is not None else None
