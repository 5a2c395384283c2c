"""The Swarm screen: models on their way from machine to machine, piece by piece."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import events as textual_events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import Input

from app.keymap import SWARM
from app.present import opening, swarm, swarm_flows
from app.screens.base import CockpitScreen
from fleet.model import OperationState
from widgets.bitfield import CopiesLine
from widgets.entry_view import EntryView
from widgets.panel_title import PanelTitle
from widgets.row_table import RowTable
from widgets.spans import Span, Tone, line
from widgets.status_line import StatusLine

if TYPE_CHECKING:
    from fleet.model import Snapshot, Swarm

PANELS = ("machines", "flows")


class SwarmScreen(CockpitScreen):
    """A summary, a bitfield for each machine, how rare the pieces are, and who gives to whom."""

    AUTO_FOCUS = "#machines"
    BINDINGS: ClassVar[list[BindingType]] = SWARM

    def __init__(self) -> None:
        super().__init__()
        self._id = ""                      # of the swarm that is shown; "" = the newest that runs
        self._legal: tuple[object, ...] = ()
        self._about = ""                   # the machine that the pane tells of

    def compose_body(self) -> ComposeResult:
        """Title, what is wrong, summary, machines, flows, status."""
        yield StatusLine(*opening.HEAD, id="head")
        with Container(id="body", classes="swarm"):
            yield PanelTitle("swarm", id="swarm-title")
            yield EntryView(id="trouble")
            yield EntryView(id="summary")
            yield PanelTitle("machines", id="machines-title")
            yield RowTable(swarm.COLUMNS, empty=opening.READING, id="machines")
            yield CopiesLine("copies", id="copies")
            with Horizontal(id="lower"):
                with Vertical(id="giving"):
                    yield PanelTitle("who gives to whom", id="flows-title")
                    yield EntryView(focusable=True, id="flows")
                yield EntryView(id="about-machine")
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
        chosen = swarm.chosen(snapshot, self._id)
        self.set_class(chosen is None, "-none")
        self.query_one("#swarm-title", PanelTitle).show("swarm", swarm.title(chosen, snapshot, now))
        self.query_one("#trouble", EntryView).show(swarm.troubles(chosen))
        self.query_one("#summary", EntryView).show(swarm.summary(chosen, snapshot, now, wide=self.has_class("-wide")))
        table = self.query_one("#machines", RowTable)
        first = not table.rows
        table.show(swarm.rows(chosen, cockpit.graphs), empty=swarm.EMPTY)
        if first and chosen is not None:           # the source has everything: a machine that pulls tells more
            table.select(next((peer.node for peer in swarm.receivers(chosen)), ""))
        self._show_titles(table, chosen)
        self._show_copies(chosen)
        self.query_one("#flows", EntryView).show(swarm_flows.matrix(chosen, cockpit.graphs))
        self._show_about(chosen)
        self._keys_changed()

    def _show_titles(self, table: RowTable, chosen: Swarm | None) -> None:
        number = str(table.total) if len(table.rows) == table.total else f"{len(table.rows)} of {table.total}"
        shown = (Span(number, Tone.MUTED),) if table.total else ()
        self.query_one("#machines-title", PanelTitle).show("machines", shown)
        note = line(Span("shade: how much so far; figure: MB/s now", Tone.MUTED))
        self.query_one("#flows-title", PanelTitle).show("who gives to whom", note if chosen is not None else ())

    def _show_copies(self, chosen: Swarm | None) -> None:
        place = self.query_one("#machines", RowTable).place_of("pieces")
        pieces = min(chosen.pieces, swarm.MOST_PIECES) if chosen is not None else 0
        self.query_one("#copies", CopiesLine).show(
            swarm.fields(chosen), pieces, swarm.copies_words(chosen), place, self.cockpit.graphs)

    def _show_about(self, chosen: Swarm | None) -> None:
        """The machine under the cursor, where there is room beside the flows."""
        from app.present import swarm_detail
        if not (self.has_class("-wide") and self.has_class("-tall")):
            return
        node = self.query_one("#machines", RowTable).cursor_key
        graphs, lines = self.cockpit.graphs, swarm_detail.PANE_MAP
        entries = swarm_detail.detail(chosen, node, graphs, map_lines=lines) if node else ()
        self.query_one("#about-machine", EntryView).show(entries, from_top=node != self._about)
        self._about = node

    def on_row_table_laid_out(self, event: RowTable.LaidOut) -> None:
        """What stands below stays in line with it."""
        self._show_copies(self.chosen)

    def on_row_table_highlighted(self, event: RowTable.Highlighted) -> None:
        """The cursor came to another machine."""
        self._show_about(self.chosen)

    def on_descendant_focus(self, event: textual_events.DescendantFocus) -> None:
        """The title of the panel that has the keys is lit."""
        if event.widget.id in PANELS:
            for name in PANELS:
                self.query_one(f"#{name}-title", PanelTitle).light(name == event.widget.id)

    def _keys_changed(self) -> None:
        legal = tuple(self.check_action(name, ()) for name in ("cancel_swarm", "verify", "step", "copy"))
        if legal != self._legal:
            self._legal = legal
            self.refresh_bindings()

    # -- what is selected ---------------------------------------------------------------------

    @property
    def chosen(self) -> Swarm | None:
        """The swarm that is shown."""
        snapshot = self.cockpit.snapshot
        return swarm.chosen(snapshot, self._id) if snapshot is not None else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What does something now."""
        cockpit = self.cockpit
        chosen = self.chosen if self.ready else None
        match action:
            case "cancel_swarm":
                return not cockpit.read_only and cockpit.engine is not None and self._operation(chosen) is not None
            case "verify" | "copy":
                return chosen is not None
            case "step":
                return cockpit.snapshot is not None and len(cockpit.snapshot.swarms) > 1
        return True

    def _operation(self, chosen: Swarm | None) -> int | None:
        """The number of the operation that runs it now."""
        snapshot = self.cockpit.snapshot
        if snapshot is None or chosen is None:
            return None
        return next((each.id for each in snapshot.operations
                     if each.id == chosen.operation and each.state is OperationState.RUNNING), None)

    # -- keys ---------------------------------------------------------------------------------

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """Enter: everything about the machine, with a map of its pieces."""
        from app.present import swarm_detail
        from app.screens.detail import DetailScreen
        chosen, node = self.chosen, event.key
        if chosen is not None:
            self.app.push_screen(DetailScreen(lambda snapshot, now: swarm_detail.detail(
                swarm.chosen(snapshot, chosen.id), node, self.cockpit.graphs)))

    def action_step(self, by: int) -> None:
        """The next swarm."""
        snapshot, chosen = self.cockpit.snapshot, self.chosen
        if snapshot is not None and chosen is not None:
            ids = [each.id for each in snapshot.swarms]
            self._id = ids[(ids.index(chosen.id) + by) % len(ids)]
            self.show(snapshot, self.cockpit.shown_at)

    def action_cancel_swarm(self) -> None:
        """Ask, then stop the operation; what has arrived stays."""
        from app.present import swarm_detail
        from app.screens.confirm import ConfirmScreen
        chosen, engine = self.chosen, self.cockpit.engine
        number = self._operation(chosen)
        if chosen is None or engine is None or number is None or self.cockpit.read_only:
            return
        title, entries = swarm_detail.stop(chosen)
        self.app.push_screen(ConfirmScreen(title, entries, "Stop it", no="Let it go on"), partial(self._stop, number))

    def _stop(self, number: int, yes: bool | None) -> None:
        if yes and self.cockpit.engine is not None:
            self.cockpit.engine.cancel(number)

    def action_verify(self) -> None:
        """What checks a copy of the file, in a shell on the machine that has it."""
        from app.present.shell import verify_command
        if (chosen := self.chosen) is not None:
            self.cockpit.copy(verify_command(chosen.name))

    def action_copy(self) -> None:
        """What is shown, as text."""
        if (chosen := self.chosen) is not None:
            self.cockpit.copy(swarm.summary_text(chosen, self.query_one("#machines", RowTable).rows))

    def action_copy_command(self) -> None:
        """What distributes the same model to the same machines."""
        from app.present.shell import distribute_command
        chosen = self.chosen
        nodes = [peer.node for peer in swarm.receivers(chosen)] if chosen is not None else []
        self.cockpit.copy(distribute_command(chosen.name if chosen is not None else "MODEL", nodes))

    def action_next_panel(self) -> None:
        """Machines, flows, and round again."""
        here = self.query_one("#machines", RowTable).has_focus
        self.query_one("#flows" if here else "#machines").focus()

    def action_filter(self) -> None:
        """Open the filter's line."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter machines while it is typed."""
        self.query_one("#machines", RowTable).filter(event.value)
        self.again()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the list, filtered."""
        event.input.display = False
        self.query_one("#machines", RowTable).focus()

    def action_back(self) -> None:
        """Clear the filter."""
        box = self.query_one("#filter", Input)
        box.clear()
        box.display = False
        self.query_one("#machines", RowTable).focus()
