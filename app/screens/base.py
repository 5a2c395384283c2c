"""What the cockpit's screens have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Input, Static

from widgets.key_line import KeyLine

if TYPE_CHECKING:
    from app.cockpit import CockpitApp
    from fleet.model import Snapshot

TOO_SMALL = "Quarterdeck needs 60 columns and 16 lines.\nMake this window larger, or press q to leave."


def keys_of(screen: Screen[object]) -> list[tuple[str, Binding]]:
    """(key as it is shown, binding) of everything that does something here now; one entry a command."""
    out: list[tuple[str, Binding]] = []
    seen: dict[str, int] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        # Textual's own (scroll left, copy selected text ...) have no id.
        if not active.enabled or binding.system or not binding.description or not binding.id:
            continue
        name = binding.id
        key = screen.app.get_key_display(binding)
        if name in seen:
            shown, first = out[seen[name]]
            out[seen[name]] = (f"{shown} {key}", first)
            continue
        seen[name] = len(out)
        out.append((key, binding))
    return out


class CockpitScreen(Screen[None]):
    """A screen that shows snapshots.

    A new one: subclass, `compose_body`, `show`, and a line in `app/screens/rooms.py`.
    """

    AUTO_FOCUS = "*"
    ready = False      # its widgets are there: a snapshot may come, and the screen be resumed, before they are

    @property
    def cockpit(self) -> CockpitApp:
        """The app, as what it is."""
        from app.cockpit import CockpitApp
        app = self.app
        assert isinstance(app, CockpitApp)
        return app

    def compose(self) -> ComposeResult:
        """The body, the keys, and what stands there when there is no room."""
        yield from self.compose_body()
        yield KeyLine(id="keys")
        yield Static(TOO_SMALL, id="too-small", markup=False)

    def compose_body(self) -> ComposeResult:
        """The screen's own widgets."""
        yield from ()

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Show what is known at `now` (engine clock)."""

    def on_mount(self) -> None:
        """Keep the key line to what can be done."""
        self.bindings_updated_signal.subscribe(self, lambda _: self.show_keys())
        self.ready = True
        if self.cockpit.snapshot is not None:
            self.show(self.cockpit.snapshot, self.cockpit.shown_at)

    def on_screen_resume(self) -> None:
        """What happened while another screen was on top."""
        snapshot = self.cockpit.snapshot
        if snapshot is not None and self.ready:
            self.show(snapshot, self.cockpit.shown_at)
        self.show_keys()

    def on_resize(self) -> None:
        """Columns and words are set differently on a narrow screen, which is known once it is laid out."""
        self.call_after_refresh(self.again)

    def again(self) -> None:
        """Show what is known once more."""
        snapshot = self.cockpit.snapshot
        if snapshot is not None and self.ready and self.is_current:
            self.show(snapshot, self.cockpit.shown_at)

    def show_keys(self) -> None:
        """Put what can be done now into the key line, help last."""
        if not self.is_mounted or not self.is_current:
            return
        shown = [(key, binding) for key, binding in keys_of(self) if binding.show]
        shown.sort(key=lambda item: item[1].id == "app.help")
        self.query_one("#keys", KeyLine).show([(key, binding.description) for key, binding in shown])

    def filter_input(self, placeholder: str = "words; !word leaves out") -> Input:
        """The filter's line, hidden until `/`."""
        box = Input(placeholder=placeholder, id="filter", compact=True)
        box.cursor_blink = False
        box.display = False
        return box
