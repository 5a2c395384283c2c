"""The palette: what can be done now, by name, from the bindings that are live."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape
from textual.widgets import Input

from app.screens.base import keys_of
from widgets.spans import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.screen import Screen

# Moving about in lists is no command.
_LEFT_OUT = ("table.", "pane.", "log.up", "log.down", "log.page", "log.top", "log.end", "app.palette",
             "fleet.next", "fleet.previous", "fleet.back", "split.next", "split.back", "models.next", "models.back",
             "proxy.next-panel", "proxy.back", "swarm.next-panel", "swarm.back")


class StillPalette(CommandPalette):
    """The palette with a cursor that does not blink: an open palette costs a slow link nothing."""

    def on_mount(self) -> None:
        """Hold the cursor still."""
        self.query_one(Input).cursor_blink = False


class LegalCommands(Provider):
    """One command a live binding, and one a model that can be brought up."""

    def _all(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        screen: Screen[object] = self.screen
        for key, binding in keys_of(screen):
            if (binding.id or "").startswith(_LEFT_OUT):
                continue
            note = f"{key}   {binding.tooltip}" if binding.tooltip else key
            yield binding.description, note, partial(screen.run_action, binding.action)
        yield from self._models()

    def _models(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        from app.cockpit import CockpitApp
        from app.present.models import candidates
        app = self.app
        if not isinstance(app, CockpitApp) or app.read_only or app.engine is None or app.snapshot is None:
            return
        for model in candidates(app.snapshot, app.engine.config):
            yield f"Bring up {model.name}", model.where, partial(app.bring_up, model.value)

    async def discover(self) -> Hits:
        """Everything, before anything is typed."""
        for name, note, run in self._all():
            yield DiscoveryHit(Content(printable(name)), run, text=printable(name), help=escape(printable(note)))

    async def search(self, query: str) -> Hits:
        """What matches."""
        matcher = self.matcher(query)
        for name, note, run in self._all():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(escape(printable(name))), run, help=escape(printable(note)))
