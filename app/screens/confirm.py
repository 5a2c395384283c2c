"""The question before a deed. Cancel has the focus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button

from app.present import operations
from fleet.errors import FleetError
from fleet.model import Operation, OperationState
from widgets.entries import Entry, Heading, Paragraph
from widgets.entry_view import EntryView
from widgets.spans import Span, Tone, line


class ConfirmScreen(ModalScreen[bool]):
    """Yes or no. With a `plan`, that is made and shown first, and there is no yes before it is there."""

    AUTO_FOCUS = "#no"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "yes", "Yes", id="confirm.yes"),
        Binding("n,escape", "no", "Cancel", id="confirm.no"),
        Binding("left,right,tab,shift+tab", "other", "Other button", id="confirm.other", show=False),
        Binding("up,k", "scroll(-1)", "Up", show=False, id="confirm.up"),
        Binding("down,j", "scroll(1)", "Down", show=False, id="confirm.down"),
        Binding("pageup", "scroll(-10)", "Page up", show=False, id="confirm.page-up"),
        Binding("pagedown", "scroll(10)", "Page down", show=False, id="confirm.page-down"),
    ]

    def __init__(self, title: str, entries: Sequence[Entry], yes: str, *, no: str = "Cancel", dangerous: bool = True,
                 plan: Callable[[], Awaitable[Operation]] | None = None) -> None:
        super().__init__()
        self._title = title
        self._entries = tuple(entries)
        self._yes = yes
        self._no = no
        self._dangerous = dangerous
        self._plan = plan
        self.ready = plan is None          # whether yes means anything

    def compose(self) -> ComposeResult:
        """Title and body, then the buttons."""
        with Vertical(classes="dialog -dangerous" if self._dangerous else "dialog"):
            yield EntryView(self._body(), id="said")
            with Horizontal(classes="buttons"):
                yield Button(f"{self._no}  n", id="no", compact=True)
                yield Button(f"{self._yes}  y", id="yes", compact=True, disabled=not self.ready)

    def on_mount(self) -> None:
        """Have the plan made."""
        if self._plan is not None:
            self.run_worker(self._make_plan(), group="plan", exit_on_error=False)

    def _body(self, rest: Sequence[Entry] | None = None) -> tuple[Entry, ...]:
        title = Heading(self._title)
        if rest is None and self._plan is not None:
            rest = (Paragraph(), Paragraph(line(Span("◌ making the plan; nothing is started yet ...", Tone.MUTED))))
        return (title, Paragraph(), *self._entries, *(rest or ()))

    async def _make_plan(self) -> None:
        assert self._plan is not None
        try:
            operation = await self._plan()
        except FleetError as error:
            self._show((Paragraph(), Paragraph(line(Span(f"✕ {error.what}", Tone.BAD)), 2),
                        Paragraph(line(Span("→ ", Tone.ACCENT), error.remedy), 2)))
            return
        self.ready = operation.state is OperationState.PLANNED
        before = (Paragraph(),) if self._entries else ()
        if self.ready:
            head = Paragraph(line(Span(f"The plan: {operations.plan_summary(operation)}", Tone.MUTED)))
        else:
            head = Paragraph(line(Span("⊘ Refused, nothing was started", Tone.BAD)))
        self._show((*before, head, *operations.outcome(operation), *operations.remarks(operation),
                    *operations.steps(operation, 0.0)))
        self.query_one("#yes", Button).disabled = not self.ready

    def _show(self, rest: Sequence[Entry]) -> None:
        self.query_one("#said", EntryView).show(self._body(rest))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Enter on a button."""
        self._finish(event.button.id == "yes")

    def action_yes(self) -> None:
        """Do it."""
        self._finish(True)

    def action_no(self) -> None:
        """Leave it."""
        self._finish(False)

    def action_other(self) -> None:
        """Between the two buttons."""
        if self.ready:
            wanted = "#no" if self.focused is not None and self.focused.id == "yes" else "#yes"
            self.query_one(wanted, Button).focus()

    def action_scroll(self, by: int) -> None:
        """A long plan."""
        self.query_one("#said", EntryView).action_scroll_lines(by)

    def _finish(self, yes: bool) -> None:
        if yes and not self.ready:
            return
        self.dismiss(yes)
