"""The Fleet screen: the machines, what runs on them, what serves, and everything about the one selected.

What knows the fleet's records (`app.present` but for `opening`) is imported where it is used: it takes 60 ms, which
the first frame does not wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events as textual_events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import Input

from app.keymap import ACTING, FLEET
from app.present import opening
from app.screens.base import CockpitScreen
from widgets.entries import Entry, text_of_entries
from widgets.entry_view import EntryView
from widgets.panel_title import PanelTitle
from widgets.row_table import RowTable
from widgets.spans import Span, Tone
from widgets.status_line import StatusLine
from widgets.step_list import StepList

if TYPE_CHECKING:
    from app.present.services import Selected
    from fleet.model import Node, Snapshot

PANELS = ("nodes", "services", "placement")
NEED_SNAPSHOT = ACTING | {"logs", "operation", "events", "copy", "copy_command"}


class FleetScreen(CockpitScreen):
    """Three lists and a pane that tells all about what the cursor of the list in focus stands on."""

    AUTO_FOCUS = "#nodes"
    BINDINGS: ClassVar[list[BindingType]] = FLEET

    def __init__(self) -> None:
        super().__init__()
        self._panel = "nodes"              # whose cursor the pane follows
        self._dismissed = 0                # newest operation that was put away
        self._legal: tuple[object, ...] = ()
        self._subject: tuple[str, str] = ("", "")

    # -- layout -------------------------------------------------------------------------------

    def compose_body(self) -> ComposeResult:
        """Title, lists, pane, status."""
        yield StatusLine(*opening.HEAD, id="head")
        with Container(id="body"):
            yield PanelTitle("nodes", id="nodes-title")
            yield RowTable(opening.NODES, empty=opening.READING, id="nodes")
            with Horizontal(id="lower"):
                with Vertical(id="running"):
                    yield PanelTitle("services", id="services-title")
                    yield RowTable(opening.SERVICES, id="services")
                    yield PanelTitle("model", id="placement-title")
                    yield RowTable(opening.PLACEMENT, id="placement")
                    yield PanelTitle("events", id="lately-title")
                    yield EntryView(id="lately")
                with Vertical(id="telling"):
                    yield StepList(id="operation")
                    yield EntryView(id="detail")
        yield self.filter_input()
        yield StatusLine(*opening.FOOT, id="foot")

    def on_descendant_focus(self, event: textual_events.DescendantFocus) -> None:
        """The pane follows the list that has the keys."""
        if event.widget.id in PANELS:
            self._panel = event.widget.id
            for name in PANELS:
                self.query_one(f"#{name}-title", PanelTitle).light(name == self._panel)
            self._show_detail()

    # -- showing ------------------------------------------------------------------------------

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Give every widget its rows; each repaints what differs."""
        from app.present import deployment, nodes, services, status
        read_only = self.cockpit.read_only
        self.query_one("#head", StatusLine).show(*status.head(snapshot, self.cockpit.problem))
        table = self.query_one("#nodes", RowTable)
        table.show(nodes.rows(snapshot, now), empty=nodes.EMPTY)
        self._count("nodes", table, "nodes", "of")
        table = self.query_one("#services", RowTable)
        table.show(services.rows(snapshot), empty=services.EMPTY_READ_ONLY if read_only else services.EMPTY)
        self._count("services", table, "services", "of")
        none = deployment.EMPTY_READ_ONLY if read_only else deployment.EMPTY
        self.query_one("#placement", RowTable).show(
            deployment.rows(snapshot.deployment), empty=deployment.UNPLACED if snapshot.deployment.model else none)
        self.query_one("#placement-title", PanelTitle).show("model", deployment.title(snapshot.deployment))
        self.query_one("#lately", EntryView).show(status.lately(snapshot))
        self._show_operation(snapshot, now)
        self._show_detail()
        self.show_status()

    def _count(self, name: str, table: RowTable, title: str, of: str) -> None:
        number = str(table.total) if len(table.rows) == table.total else f"{len(table.rows)} {of} {table.total}"
        self.query_one(f"#{name}-title", PanelTitle).show(title, (Span(number, Tone.MUTED),) if table.total else ())

    def _show_operation(self, snapshot: Snapshot, now: float) -> None:
        from app.present import operations
        view = self.query_one("#operation", StepList)
        operation = operations.current(snapshot, now, self._dismissed)
        view.display = operation is not None
        self.set_class(operation is not None, "-operating")
        if operation is not None:
            view.show_steps(operations.lead(operation, now), operations.steps(operation, now))

    def _show_detail(self) -> None:
        snapshot = self.cockpit.snapshot
        if snapshot is None:
            return
        subject = (self._panel, self._table().cursor_key)
        pane = self.query_one("#detail", EntryView)
        pane.show(self._entries(snapshot, self.cockpit.shown_at, *subject), from_top=subject != self._subject)
        self._subject = subject
        self._keys_changed(snapshot)

    def _entries(self, snapshot: Snapshot, now: float, panel: str, key: str) -> tuple[Entry, ...]:
        """Everything about a row of a panel."""
        from app.present import deployment, node_detail, services
        if panel == "nodes":
            node = snapshot.nodes.get(key)
            return node_detail.detail(snapshot, node, now) if node is not None else ()
        if panel == "services":
            selected = services.find(snapshot, key)
            return services.detail(snapshot, selected, now) if selected is not None else ()
        return deployment.detail(snapshot, now)

    def show_status(self) -> None:
        """The status line, with what the user has set."""
        from app.present import status
        cockpit = self.cockpit
        if cockpit.snapshot is not None:
            mode = status.Mode(cockpit.read_only, cockpit.paused, self.query_one("#filter", Input).value)
            self.query_one("#foot", StatusLine).show(*status.foot(cockpit.snapshot, mode))

    def _keys_changed(self, snapshot: Snapshot) -> None:
        """Tell the key line, but only when something else can be done than before."""
        legal = tuple(self.check_action(name, ()) for name in (*sorted(ACTING), "logs", "operation", "copy_command"))
        if legal != self._legal:
            self._legal = legal
            self.refresh_bindings()

    # -- what is selected ---------------------------------------------------------------------

    def _table(self) -> RowTable:
        return self.query_one(f"#{self._panel}", RowTable)

    @property
    def selected_node(self) -> Node | None:
        """The node under the cursor of the node list, when that has the keys."""
        snapshot = self.cockpit.snapshot
        if snapshot is None or self._panel != "nodes":
            return None
        return snapshot.nodes.get(self._table().cursor_key)

    @property
    def selected(self) -> Selected | None:
        """The service meant: the selected one, the head of the model, or the one of the selected node in most need."""
        from app.present import services
        snapshot = self.cockpit.snapshot
        if snapshot is None:
            return None
        if self._panel == "services":
            return services.find(snapshot, self._table().cursor_key)
        if self._panel == "placement":
            return services.head_of(snapshot)
        node = self.selected_node
        return services.foremost(node) if node is not None else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key does something now; False hides it from the key line, the help and the palette."""
        cockpit = self.cockpit
        snapshot = cockpit.snapshot
        if snapshot is None:
            return action not in NEED_SNAPSHOT
        if action in ACTING and (cockpit.read_only or cockpit.engine is None):
            return False
        from app.present import dialogs, nodes, operations
        on_services = self._panel == "services"
        match action:
            case "connect":
                return nodes.can_connect(self.selected_node)
            case "tear_down":
                return any(node.services for node in snapshot.nodes.values())
            case "start":
                return on_services and dialogs.can_start(self.selected)
            case "stop":
                return on_services and dialogs.can_stop(self.selected)
            case "restart":
                return on_services and dialogs.can_restart(self.selected)
            case "adopt":
                return on_services and dialogs.can_adopt(self.selected)
            case "logs":
                selected = self.selected
                return selected is not None and selected.service is not None
            case "cancel_operation":
                return operations.under_way(snapshot) is not None
            case "operation":
                return bool(snapshot.operations)
        return True

    # -- moving about -------------------------------------------------------------------------

    def on_row_table_highlighted(self, event: RowTable.Highlighted) -> None:
        """The cursor moved."""
        if event.table.id == self._panel:
            self._show_detail()

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """Enter: the pane over the whole screen."""
        from app.screens.detail import DetailScreen
        panel, key = self._panel, event.key
        self.app.push_screen(DetailScreen(lambda snapshot, now: self._entries(snapshot, now, panel, key)))

    def action_next_panel(self) -> None:
        """Nodes, services, model, and round again."""
        self._to_panel(1)

    def action_previous_panel(self) -> None:
        """The other way round."""
        self._to_panel(-1)

    def _to_panel(self, by: int) -> None:
        name = PANELS[(PANELS.index(self._panel) + by) % len(PANELS)]
        self.query_one(f"#{name}", RowTable).focus()

    def action_filter(self) -> None:
        """Open the filter's line."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter nodes and services while it is typed."""
        for name in ("nodes", "services"):
            table = self.query_one(f"#{name}", RowTable)
            table.filter(event.value)
            self._count(name, table, name, "of")
        self.show_status()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the list, filtered."""
        event.input.display = False
        self._table().focus()

    def action_back(self) -> None:
        """Clear what is in the way: the filter, then an operation that is over."""
        box = self.query_one("#filter", Input)
        if box.display or box.value:
            box.clear()
            box.display = False
            self._table().focus()
            return
        snapshot = self.cockpit.snapshot
        if snapshot is not None and snapshot.operations:
            self._dismissed = snapshot.operations[-1].id
            self._show_operation(snapshot, self.cockpit.shown_at)

    def action_events(self) -> None:
        """What is wrong and what happened."""
        from app.present import status
        from app.screens.detail import DetailScreen
        self.app.push_screen(DetailScreen(lambda snapshot, now: status.events(snapshot)))

    def action_operation(self) -> None:
        """The newest operation over the whole screen."""
        from app.present import operations
        from app.screens.detail import DetailScreen
        self.app.push_screen(DetailScreen(
            lambda snapshot, now: operations.detail(snapshot.operations[-1], now) if snapshot.operations else ()))

    def action_logs(self) -> None:
        """The log of the service meant."""
        from app.screens import logs
        screen = logs.of(self.selected) if self.selected is not None else None
        if screen is not None:
            self.app.push_screen(screen)

    def action_copy(self) -> None:
        """What the pane says; of the model, the address that clients want."""
        snapshot = self.cockpit.snapshot
        if self._panel == "placement" and snapshot is not None and snapshot.deployment.endpoint:
            self.cockpit.copy(snapshot.deployment.endpoint)
            return
        self.cockpit.copy(text_of_entries(self.query_one("#detail", EntryView).entries))

    def action_copy_command(self) -> None:
        """The shell command for what is selected."""
        from app.present.shell import command_for
        snapshot = self.cockpit.snapshot
        if snapshot is not None:
            self.cockpit.copy(command_for(snapshot, self._panel, self.selected_node, self.selected))

    # -- acting -------------------------------------------------------------------------------

    def action_bring_up(self) -> None:
        """Choose a model if there is a choice, then the plan."""
        self.cockpit.bring_up()

    def action_tear_down(self) -> None:
        """The plan, then everything of ours ends."""
        from app.present import dialogs
        snapshot = self.cockpit.snapshot
        if snapshot is not None:
            self.cockpit.propose(dialogs.tear_down(snapshot))

    def action_cancel_operation(self) -> None:
        """Stop what is under way."""
        self.cockpit.cancel_operation()

    def action_add_node(self) -> None:
        """By hand."""
        self.cockpit.add_node()

    def action_connect(self) -> None:
        """Now, not at the next try."""
        node = self.selected_node
        if node is not None and self.cockpit.engine is not None:
            self.cockpit.engine.connect(node.name)

    def action_start(self) -> None:
        """As it was."""
        from app.present import dialogs
        selected = self.selected
        self.cockpit.propose(dialogs.start(selected) if selected is not None else None)

    def action_stop(self) -> None:
        """A service, or a process that is not ours."""
        from app.present import dialogs
        selected, snapshot = self.selected, self.cockpit.snapshot
        if selected is not None and snapshot is not None:
            self.cockpit.propose(dialogs.stop(snapshot, selected))

    def action_restart(self) -> None:
        """End and start."""
        from app.present import dialogs
        selected, snapshot = self.selected, self.cockpit.snapshot
        if selected is not None and snapshot is not None:
            self.cockpit.propose(dialogs.restart(snapshot, selected))

    def action_adopt(self) -> None:
        """Take it into our care."""
        from app.present import dialogs
        selected = self.selected
        self.cockpit.propose(dialogs.adopt(selected) if selected is not None else None)
