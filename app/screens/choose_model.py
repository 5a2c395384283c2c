"""Which model to bring up, where there are several."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from app.present import models
from app.present.models import Candidate
from widgets.entries import Heading, Paragraph
from widgets.entry_view import EntryView
from widgets.row_table import RowTable
from widgets.spans import Span, Tone, line


class ChooseModelScreen(ModalScreen[str | None]):
    """Gives what `BringUp` is to be told, or None."""

    AUTO_FOCUS = "#models"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n,q", "cancel", "Cancel", id="choose-model.cancel")]

    def __init__(self, candidates: tuple[Candidate, ...]) -> None:
        super().__init__()
        self._candidates = candidates

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical(classes="dialog -wide"):
            yield EntryView((Heading("Which model?"), Paragraph()), id="said")
            yield RowTable(models.COLUMNS, id="models")
            yield EntryView((Paragraph(line(Span("enter", Tone.ACCENT), Span(" shows the plan  ", Tone.MUTED),
                                            Span("esc", Tone.ACCENT), Span(" leaves it", Tone.MUTED))),), id="hint")

    def on_mount(self) -> None:
        """Fill it."""
        self.query_one("#models", RowTable).show(models.rows(self._candidates))

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """That one."""
        self.dismiss(event.key)

    def action_cancel(self) -> None:
        """None of them."""
        self.dismiss(None)
