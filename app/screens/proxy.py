"""The Proxy screen: what goes through the one endpoint, the servers behind it, and every request.

What knows the fleet's records is imported where it is used, as in `app/screens/fleet.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events as textual_events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import Input

from app.keymap import PROXY
from app.present import opening, proxy, proxy_requests
from app.screens.base import CockpitScreen
from widgets.entry_view import EntryView
from widgets.panel_title import PanelTitle
from widgets.row_table import RowTable
from widgets.spans import Line, Span, Tone, joined, line
from widgets.sparkline import Sparkline
from widgets.status_line import StatusLine

if TYPE_CHECKING:
    from fleet.model import Proxy, ProxyRequest, Snapshot

PANELS = ("upstreams", "requests")


class ProxyScreen(CockpitScreen):
    """Figures, servers, requests; keys end a request, start and stop the proxy."""

    AUTO_FOCUS = "#requests"
    BINDINGS: ClassVar[list[BindingType]] = PROXY

    def __init__(self) -> None:
        super().__init__()
        self._key = ""                     # of the proxy that is shown; "" = the first
        self._legal: tuple[object, ...] = ()

    def compose_body(self) -> ComposeResult:
        """Title, figures, servers, requests, status."""
        yield StatusLine(*opening.HEAD, id="head")
        with Container(id="body", classes="proxy"):
            yield PanelTitle("proxy", id="proxy-title")
            yield EntryView(id="trouble")
            with Horizontal(id="figures"):
                with Vertical(id="charts"):
                    yield Sparkline("tok/s", id="speeds")
                    yield Sparkline("requests", id="loads")
                yield EntryView(id="totals")
            yield PanelTitle("servers", id="upstreams-title")
            yield RowTable(proxy.UPSTREAMS, id="upstreams")
            yield PanelTitle("requests", id="requests-title")
            yield RowTable(proxy_requests.COLUMNS, empty=opening.READING, id="requests")
        yield self.filter_input()
        yield StatusLine(*opening.FOOT, id="foot")

    # -- showing ------------------------------------------------------------------------------

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Give every widget what it shows; each repaints what differs."""
        from app.present import status
        cockpit = self.cockpit
        mode = status.Mode(cockpit.read_only, cockpit.paused, self.query_one("#filter", Input).value)
        self.query_one("#head", StatusLine).show(*status.head(snapshot, cockpit.problem))
        self.query_one("#foot", StatusLine).show(*status.foot(snapshot, mode))
        chosen = proxy.chosen(snapshot, self._key)
        self._key = proxy.key_of(chosen) if chosen is not None else ""
        self.set_class(chosen is None, "-none")
        self.query_one("#proxy-title", PanelTitle).show("proxy", proxy.title(chosen, snapshot, now))
        self.query_one("#trouble", EntryView).show(proxy.troubles(chosen))
        if chosen is not None:
            self._show_figures(chosen, old=proxy.is_old(chosen, snapshot, now))
        self.query_one("#upstreams", RowTable).show(proxy.upstream_rows(chosen), empty=proxy.NO_UPSTREAM)
        none = proxy.EMPTY_READ_ONLY if cockpit.read_only else proxy.EMPTY
        self.query_one("#requests", RowTable).show(
            proxy_requests.rows(chosen), empty=proxy_requests.NONE if chosen is not None else none)
        self._show_titles(chosen)
        self._keys_changed()

    def _show_figures(self, chosen: Proxy, *, old: bool) -> None:
        tone = Tone.MUTED if old else Tone.BAR
        for name, values, least in (("#speeds", proxy.speeds(chosen), 1.0),
                                    ("#loads", proxy.loads(chosen), proxy.LIVE_TOP)):
            chart = self.query_one(name, Sparkline)
            chart.draw_with(self.cockpit.graphs)
            chart.show(values, *proxy.scale(values, least), tone=tone)
        self.query_one("#totals", EntryView).show(proxy.figures(chosen, wide=self.has_class("-wide"), old=old))

    def _show_titles(self, chosen: Proxy | None) -> None:
        table = self.query_one("#requests", RowTable)
        note: list[Line] = []
        if chosen is not None:
            waits = proxy.held_words(chosen)
            note = [waits, line(Span(self._shown(table, len(chosen.live)), Tone.MUTED))]
        self.query_one("#requests-title", PanelTitle).show("requests", joined(note))
        number = str(self.query_one("#upstreams", RowTable).total or "")
        self.query_one("#upstreams-title", PanelTitle).show("servers", line(Span(number, Tone.MUTED)))

    @staticmethod
    def _shown(table: RowTable, live: int) -> str:
        if len(table.rows) != table.total:
            return f"{len(table.rows)} of {table.total}"
        return f"{live} live, {table.total - live} ended" if table.total else ""

    def on_descendant_focus(self, event: textual_events.DescendantFocus) -> None:
        """The title of the list that has the keys is lit."""
        if event.widget.id in PANELS:
            for name in PANELS:
                self.query_one(f"#{name}-title", PanelTitle).light(name == event.widget.id)
            self._keys_changed()

    def on_row_table_highlighted(self, event: RowTable.Highlighted) -> None:
        """The cursor moved: other keys may be legal."""
        self._keys_changed()

    def _keys_changed(self) -> None:
        names = ("cancel_request", "stop", "start", "logs", "step", "copy")
        legal = tuple(self.check_action(name, ()) for name in names)
        if legal != self._legal:
            self._legal = legal
            self.refresh_bindings()

    # -- what is selected ---------------------------------------------------------------------

    @property
    def chosen(self) -> Proxy | None:
        """The proxy that is shown."""
        snapshot = self.cockpit.snapshot
        return proxy.chosen(snapshot, self._key) if snapshot is not None else None

    @property
    def selected(self) -> ProxyRequest | None:
        """The request under the cursor."""
        return proxy_requests.find(self.chosen, self.query_one("#requests", RowTable).cursor_key)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What does something now."""
        cockpit = self.cockpit
        chosen = self.chosen if self.ready else None
        match action:
            case "start":
                return self._may_act and (chosen is None or chosen.problem is not None)
            case "stop":
                from app.present.proxy_dialogs import can_stop
                return self._may_act and can_stop(chosen)
            case "cancel_request":
                return self._may_act and chosen is not None and not chosen.problem and self.query_one(
                    "#requests", RowTable).has_focus and proxy_requests.is_live(
                    chosen, self.query_one("#requests", RowTable).cursor_key)
            case "logs":
                return chosen is not None and bool(chosen.service)
            case "copy":
                return chosen is not None
            case "step":
                return cockpit.snapshot is not None and len(cockpit.snapshot.proxies) > 1
        return True

    @property
    def _may_act(self) -> bool:
        return not self.cockpit.read_only and self.cockpit.engine is not None and self.cockpit.snapshot is not None

    # -- keys ---------------------------------------------------------------------------------

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """Enter on a request: everything about it."""
        from app.screens.detail import DetailScreen
        if event.table.id == "requests":
            key, number = self._key, event.key
            self.app.push_screen(DetailScreen(
                lambda snapshot, now: proxy_requests.detail(proxy.chosen(snapshot, key), number)))

    def action_step(self, by: int) -> None:
        """The next proxy."""
        snapshot = self.cockpit.snapshot
        if snapshot is not None and snapshot.proxies:
            keys = [proxy.key_of(each) for each in snapshot.proxies]
            here = keys.index(self._key) if self._key in keys else 0
            self._key = keys[(here + by) % len(keys)]
            self.show(snapshot, self.cockpit.shown_at)

    def action_start(self) -> None:
        """On this machine."""
        from app.present import proxy_dialogs
        self.cockpit.propose(proxy_dialogs.start())

    def action_stop(self) -> None:
        """The process of the one that is shown."""
        from app.present import proxy_dialogs
        chosen, snapshot = self.chosen, self.cockpit.snapshot
        if chosen is not None and snapshot is not None:
            self.cockpit.propose(proxy_dialogs.stop(snapshot, chosen))

    def action_cancel_request(self) -> None:
        """The live one under the cursor."""
        from app.present import proxy_dialogs
        chosen, selected = self.chosen, self.selected
        if chosen is not None and selected is not None and proxy_requests.is_live(chosen, selected.id):
            self.cockpit.propose(proxy_dialogs.cancel(chosen, selected))

    def action_logs(self) -> None:
        """Its log."""
        from app.screens.logs import LogScreen
        if (chosen := self.chosen) is not None and chosen.service:
            self.app.push_screen(LogScreen(chosen.node, chosen.service))

    def action_copy(self) -> None:
        """The address that clients want."""
        if (chosen := self.chosen) is not None:
            self.cockpit.copy(chosen.url)

    def action_copy_command(self) -> None:
        """What shows it in a shell, or starts it."""
        self.cockpit.copy("quarterdeck proxy status" if self.chosen is not None else "quarterdeck proxy start")

    def action_next_panel(self) -> None:
        """Requests, servers, and round again."""
        here = self.query_one("#requests", RowTable).has_focus
        self.query_one("#upstreams" if here else "#requests", RowTable).focus()

    def action_filter(self) -> None:
        """Open the filter's line."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter requests while it is typed."""
        self.query_one("#requests", RowTable).filter(event.value)
        self.again()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the list, filtered."""
        event.input.display = False
        self.query_one("#requests", RowTable).focus()

    def action_back(self) -> None:
        """Clear the filter."""
        box = self.query_one("#filter", Input)
        box.clear()
        box.display = False
        self.query_one("#requests", RowTable).focus()
