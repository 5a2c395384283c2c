"""One thing over the whole screen, kept up to date; and the help page."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from app.keymap import DETAIL
from app.present.words import DEPLOYMENT_SIGNS, FOREIGN, NODE_SIGNS, SERVICE_SIGNS, Sign
from app.screens.base import CockpitScreen
from fleet.model import Snapshot
from widgets.entries import Entry, Fact, Heading, Paragraph, text_of_entries
from widgets.entry_view import EntryView
from widgets.spans import Line, Span, Tone, joined, line


class DetailScreen(CockpitScreen):
    """Shows what `subject` makes of each snapshot."""

    AUTO_FOCUS = "#pane"
    BINDINGS: ClassVar[list[BindingType]] = DETAIL

    def __init__(self, subject: Callable[[Snapshot, float], tuple[Entry, ...]]) -> None:
        super().__init__()
        self._subject = subject

    def compose_body(self) -> ComposeResult:
        """The pane."""
        yield EntryView(focusable=True, id="pane")

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Up to date."""
        self.query_one("#pane", EntryView).show(self._subject(snapshot, now))

    def action_back(self) -> None:
        """To where it was opened."""
        self.dismiss()

    def action_copy(self) -> None:
        """As text."""
        self.cockpit.copy(text_of_entries(self.query_one("#pane", EntryView).entries))


class HelpScreen(DetailScreen):
    """The keys of the screen below, as they are bound at this moment, and what the signs mean."""

    def __init__(self, keys: list[tuple[str, Binding]], *, read_only: bool) -> None:
        self._pages = help_entries(keys, read_only=read_only)
        super().__init__(lambda snapshot, now: self._pages)

    def on_mount(self) -> None:
        """It needs no snapshot."""
        super().on_mount()
        self.query_one("#pane", EntryView).show(self._pages)


_GROUPS = {
    "fleet": "fleet", "split": "split", "models": "models", "proxy": "proxy", "swarm": "swarm",
    "service": "selected service", "table": "in a list",
    "pane": "in a pane", "log": "in the log",
    "logs": "log", "detail": "detail", "app": "everywhere", "room": "screens",
}


def help_entries(keys: list[tuple[str, Binding]], *, read_only: bool) -> tuple[Entry, ...]:
    """Keys by what they belong to, then the signs."""
    groups: dict[str, list[tuple[str, Binding]]] = {}
    for key, binding in keys:
        groups.setdefault((binding.id or "app").partition(".")[0], []).append((key, binding))
    out: list[Entry] = []
    for name, title in _GROUPS.items():
        if name not in groups:
            continue
        out.append(Heading(title))
        for key, binding in sorted(groups[name], key=lambda item: not item[1].show):
            what = line(binding.description, Span(f"  {binding.tooltip}" if binding.tooltip else "", Tone.MUTED))
            out.append(Fact(key, what, room=12))
        out.append(Paragraph())
    if read_only:
        out += [Paragraph(line(Span("▣ read-only: keys that change the fleet are not bound", Tone.WARN))), Paragraph()]
    out += [Heading("signs"),
            Fact("node", _legend(NODE_SIGNS.values())),
            Fact("service", _legend((*SERVICE_SIGNS.values(), FOREIGN))),
            Fact("model", _legend(DEPLOYMENT_SIGNS.values()))]
    return tuple(out)


def _legend(signs: object) -> Line:
    assert hasattr(signs, "__iter__")
    return joined((sign.line for sign in signs if isinstance(sign, Sign)), "   ")
