"""Which machines a model is brought to."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from app.present import distribution
from fleet.model import Snapshot
from fleet.models.inventory import Model
from widgets.entries import Heading, Paragraph
from widgets.entry_view import EntryView
from widgets.row_table import RowTable
from widgets.spans import Span, Tone, line


class ChooseNodesScreen(ModalScreen[tuple[str, ...] | None]):
    """Gives the names of nodes, or None."""

    AUTO_FOCUS = "#targets"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "toggle", "Choose", id="choose-nodes.toggle"),
        Binding("a", "all", "All", id="choose-nodes.all"),
        Binding("escape,n,q", "cancel", "Cancel", id="choose-nodes.cancel"),
    ]

    def __init__(self, snapshot: Snapshot, model: Model) -> None:
        super().__init__()
        self._snapshot, self._model = snapshot, model
        self._chosen: set[str] = set()

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical(classes="dialog -wide"):
            yield EntryView((Heading(f"Where to with {self._model.name}?"), Paragraph()), id="said")
            yield RowTable(distribution.COLUMNS, id="targets")
            yield EntryView((Paragraph(line(
                Span("space", Tone.ACCENT), Span(" chooses  ", Tone.MUTED), Span("a", Tone.ACCENT),
                Span(" all  ", Tone.MUTED), Span("enter", Tone.ACCENT), Span(" shows the plan  ", Tone.MUTED),
                Span("esc", Tone.ACCENT), Span(" leaves it", Tone.MUTED))),), id="hint")

    def on_mount(self) -> None:
        """Fill it."""
        self._show()

    def _show(self) -> None:
        self.query_one("#targets", RowTable).show(distribution.rows(self._snapshot, self._model, self._chosen))

    def action_toggle(self) -> None:
        """The one under the cursor, or no longer."""
        key = self.query_one("#targets", RowTable).cursor_key
        if key:
            self._chosen ^= {key}
            self._show()

    def action_all(self) -> None:
        """All of them, or none."""
        every = {node.name for node in distribution.targets(self._snapshot, self._model)}
        self._chosen = set() if self._chosen == every else every
        self._show()

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """Enter: those that were chosen, else the one under the cursor."""
        order = [node.name for node in distribution.targets(self._snapshot, self._model)]
        self.dismiss(tuple(name for name in order if name in (self._chosen or {event.key})))

    def action_cancel(self) -> None:
        """None of them."""
        self.dismiss(None)
