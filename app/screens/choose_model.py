"""Which model to serve: typed letters narrow the list; the one under the cursor is planned, to see whether it fits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from app.present import models
from app.present.models import Candidate, Fits
from widgets.entries import Heading, Paragraph
from widgets.entry_view import EntryView
from widgets.row_table import RowTable
from widgets.spans import Span, Tone, line

if TYPE_CHECKING:
    from app.face import EngineFace

RESTS = 0.3                    # seconds that the cursor rests on a model before it is planned
NOTHING = (line(Span("No model has these letters.", Tone.MUTED)),)


class ChooseModelScreen(ModalScreen[str | None]):
    """Gives what `BringUp` is to be told, or None."""

    AUTO_FOCUS = "#typed"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", id="choose-model.cancel"),
        Binding("up", "move(-1)", "Up", show=False, id="choose-model.up", priority=True),
        Binding("down", "move(1)", "Down", show=False, id="choose-model.down", priority=True),
    ]

    def __init__(self, candidates: tuple[Candidate, ...], *, engine: EngineFace | None = None) -> None:
        super().__init__()
        self._candidates = candidates
        self._engine = engine
        self._fits: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        """A line to type in, the list."""
        with Vertical(classes="dialog -wide"):
            yield EntryView((Heading("Which model?"),), id="said")
            box = Input(placeholder="letters of its name", id="typed", compact=True)
            box.cursor_blink = False
            yield box
            yield RowTable(models.COLUMNS, empty=NOTHING, id="models")
            yield EntryView((Paragraph(line(
                Span("↑↓", Tone.ACCENT), Span(" choose  ", Tone.MUTED), Span("enter", Tone.ACCENT),
                Span(" shows the plan  ", Tone.MUTED), Span("esc", Tone.ACCENT), Span(" leaves it", Tone.MUTED))),),
                id="hint")

    def on_mount(self) -> None:
        """Fill it."""
        self.query_one("#models", RowTable).can_focus = False
        self._show()

    def _show(self) -> None:
        found = models.matching(self._candidates, self.query_one("#typed", Input).value)
        self.query_one("#models", RowTable).show(models.rows(found, self._fits))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow it."""
        self._show()
        self.query_one("#models", RowTable).action_end(-1)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter: the one under the cursor."""
        if key := self.query_one("#models", RowTable).cursor_key:
            self.dismiss(key)

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """A click on it."""
        self.dismiss(event.key)

    def on_row_table_highlighted(self, event: RowTable.Highlighted) -> None:
        """Plan it when the cursor rests."""
        if event.key and event.key not in self._fits and self._engine is not None:
            self.run_worker(self._plan(event.key), group="fits", exclusive=True, exit_on_error=False)

    async def _plan(self, model: str) -> None:
        engine = self._engine
        if engine is None:
            return
        await asyncio.sleep(RESTS)
        self._learn(model, Fits.WORKING)
        try:
            fits = models.fits_of(await engine.propose(model))
        except asyncio.CancelledError:
            self._fits.pop(model, None)       # the cursor went on: it is planned when it comes back
            raise
        except Exception:                     # why there is no plan, the plan itself says in full
            fits = Fits.NO_PLAN
        self._learn(model, fits)

    def _learn(self, model: str, fits: str) -> None:
        self._fits[model] = fits
        if self.is_mounted:
            self._show()

    def action_move(self, by: int) -> None:
        """Up or down in the list, while the line keeps what is typed."""
        self.query_one("#models", RowTable).action_cursor(by)

    def on_click(self, event: events.Click) -> None:
        """Typing goes on after a click."""
        self.query_one("#typed", Input).focus()

    def action_cancel(self) -> None:
        """None of them."""
        self.dismiss(None)
