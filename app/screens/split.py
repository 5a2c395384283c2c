"""The Split screen: what each device would hold of a model and does hold, how fast that is, and why.

Keys change the plan in thought alone. Nothing here touches the fleet, and working out a plan never holds the screen:
the newest question wins, an older one's answer is let go.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical

from app.keymap import SPLIT
from app.present import opening, split
from app.screens.base import CockpitScreen
from fleet.model import DeploymentState, NodeState
from fleet.operations.plan import problem_of
from fleet.planning.ladder import Mode
from fleet.planning.propose import WhatIf
from widgets.entries import text_of_entries
from widgets.entry_view import EntryView
from widgets.panel_title import PanelTitle
from widgets.row_spec import text_of
from widgets.row_table import RowTable
from widgets.spans import Span
from widgets.status_line import StatusLine

if TYPE_CHECKING:
    from fleet.model import Snapshot

KV_TYPES = ("f16", "q8_0", "q4_0")
LEAST_CONTEXT, MOST_CONTEXT = 512, 1 << 24     # tokens
FIRST_CONTEXT = 8192                           # tokens: where nothing fits, and so nothing was chosen


class SplitScreen(CockpitScreen):
    """Bars, two a device, and below them the sentences."""

    AUTO_FOCUS = "#devices"
    BINDINGS: ClassVar[list[BindingType]] = SPLIT

    def __init__(self) -> None:
        super().__init__()
        self.planned = split.Planned()
        self._asked_for: tuple[object, ...] | None = None

    def compose_body(self) -> ComposeResult:
        """Title, devices, sentences, status."""
        yield StatusLine(*opening.HEAD, id="head")
        with Vertical(id="body"):
            yield PanelTitle("split", id="split-title")
            yield EntryView(id="what-if")
            yield RowTable(split.COLUMNS, id="devices")
            yield EntryView(id="legend")
            yield EntryView(focusable=True, id="why")
        yield StatusLine(*opening.FOOT, id="foot")

    # -- showing ------------------------------------------------------------------------------

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Real figures as they come; a new plan when the fleet is another one."""
        from app.present import status
        cockpit = self.cockpit
        self.query_one("#head", StatusLine).show(*status.head(snapshot, cockpit.problem))
        self.query_one("#foot", StatusLine).show(*status.foot(snapshot, status.Mode(cockpit.read_only, cockpit.paused)))
        self._ask(snapshot)
        self._draw(snapshot)

    def _draw(self, snapshot: Snapshot) -> None:
        from widgets.entries import Paragraph
        planned = self.planned
        narrow = self.has_class("-narrow")
        self.query_one("#split-title", PanelTitle).show("split", split.title(planned, snapshot, short=narrow))
        changes = split.changes(planned.what_if)
        said = (split.settings(planned) if narrow else (), changes)
        self.query_one("#what-if", EntryView).show(tuple(Paragraph((Span("  "), *each), 2) for each in said if each))
        rows = split.rows(planned, snapshot)
        self.query_one("#devices", RowTable).show(rows, empty=split.empty(planned))
        self.query_one("#legend", EntryView).show((Paragraph(split.legend(), 2),) if rows else ())
        self.query_one("#why", EntryView).show(split.entries(planned, snapshot))

    # -- working it out -----------------------------------------------------------------------

    def _model(self, snapshot: Snapshot) -> str:
        """The model that was chosen, else what serves, else the fleet's own."""
        if self.cockpit.planned_model:
            return self.cockpit.planned_model
        deployment = snapshot.deployment
        return deployment.model if deployment.state is not DeploymentState.DOWN else ""

    def _ask(self, snapshot: Snapshot, *, anew: bool = False) -> None:
        """Have the plan worked out, if it is another one than before."""
        engine = self.cockpit.engine
        if engine is None:
            return
        model = self._model(snapshot)
        if model != self.planned.model:
            self.planned = split.Planned(model)
        nodes = tuple((node.name, node.state is NodeState.UP) for node in snapshot.nodes.values())
        question = (model, self.planned.what_if, nodes, snapshot.deployment.state, id(engine.config), snapshot.links)
        if question == self._asked_for and not anew:
            return
        self._asked_for = question
        self.planned = replace(self.planned, working=True, problem=None)
        self.run_worker(self._work_out(model, self.planned.what_if), group="propose", exclusive=True,
                        exit_on_error=False)

    async def _work_out(self, model: str, what_if: WhatIf) -> None:
        engine = self.cockpit.engine
        if engine is None:
            return
        proposal, problem = None, None
        try:
            proposal = await engine.propose(model, what_if)
        except Exception as error:      # a mistake of ours too is said here, not left as "working it out"
            problem = problem_of(error, f"while planning {model or 'the model'}")
        if (model, what_if) != (self.planned.model, self.planned.what_if):
            return
        self.planned = replace(self.planned, proposal=proposal, problem=problem, working=False)
        if self.cockpit.snapshot is not None and self.ready and self.cockpit.is_running:
            self._draw(self.cockpit.snapshot)
            self.refresh_bindings()

    def _what_if(self, what_if: WhatIf) -> None:
        self.planned = replace(self.planned, what_if=what_if)
        snapshot = self.cockpit.snapshot
        if snapshot is not None:
            self._ask(snapshot)
            self._draw(snapshot)
            self.refresh_bindings()

    # -- keys -----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What can be changed now."""
        cockpit, planned = self.cockpit, self.planned
        match action:
            case "bring_up":
                return not cockpit.read_only and cockpit.engine is not None and planned.what_if == WhatIf()
            case "context" | "kv" | "mode" | "leave_out" | "head" | "again":
                return cockpit.engine is not None and (planned.proposal is not None or planned.what_if != WhatIf())
        return True

    def action_context(self, by: int) -> None:
        """Twice as much, or half."""
        proposal, what_if = self.planned.proposal, self.planned.what_if
        now = what_if.context or (proposal.context if proposal is not None else 0) or FIRST_CONTEXT
        wanted = now * 2 if by > 0 else now // 2
        self._what_if(replace(what_if, context=min(max(wanted, LEAST_CONTEXT), MOST_CONTEXT)))

    def action_kv(self) -> None:
        """The next type, for K and V alike."""
        proposal, what_if = self.planned.proposal, self.planned.what_if
        now = what_if.type_k or (proposal.type_k if proposal is not None else "")
        following = KV_TYPES[(KV_TYPES.index(now) + 1) % len(KV_TYPES)] if now in KV_TYPES else KV_TYPES[0]
        self._what_if(replace(what_if, type_k=following, type_v=following))

    def action_mode(self) -> None:
        """By time or by memory."""
        proposal, what_if = self.planned.proposal, self.planned.what_if
        now = what_if.mode or (proposal.mode if proposal is not None else Mode.TIME)
        self._what_if(replace(what_if, mode=Mode.MEMORY if now is Mode.TIME else Mode.TIME))

    def action_leave_out(self) -> None:
        """The device under the cursor; all that were left out come back with esc."""
        key = self.query_one("#devices", RowTable).cursor_key
        if not key:
            return
        device, what_if = split.device_of(key), self.planned.what_if
        host = self.planned.proposal.host if self.planned.proposal is not None else None
        if host is not None and device == (host.node, host.device):
            self.notify("The head's own processor stays: it holds the embeddings.", timeout=5, markup=False)
            return
        self._what_if(replace(what_if, without=what_if.without ^ {device}))

    def action_head(self) -> None:
        """The next node that is up."""
        snapshot = self.cockpit.snapshot
        up = [node.name for node in snapshot.nodes.values() if node.state is NodeState.UP] if snapshot else []
        proposal, what_if = self.planned.proposal, self.planned.what_if
        now = what_if.head or (proposal.head if proposal is not None else "")
        if up:
            following = up[(up.index(now) + 1) % len(up)] if now in up else up[0]
            self._what_if(replace(what_if, head=following))

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """Enter: the sentences over the whole screen."""
        from app.screens.detail import DetailScreen
        self.app.push_screen(DetailScreen(lambda snapshot, now: split.entries(self.planned, snapshot)))

    def action_again(self) -> None:
        """With what is true now."""
        if self.cockpit.snapshot is not None:
            self._ask(self.cockpit.snapshot, anew=True)
            self._draw(self.cockpit.snapshot)

    def action_back(self) -> None:
        """Nothing changed in thought any more; then no model chosen any more."""
        if self.planned.what_if != WhatIf():
            self._what_if(WhatIf())
        elif self.cockpit.planned_model:
            self.cockpit.planned_model = ""
            self.action_again()

    def action_bring_up(self) -> None:
        """As it is planned; the dialog shows the steps."""
        model = self.planned.model
        self.cockpit.bring_up(model or None)

    def action_next_panel(self) -> None:
        """Devices, sentences, and round again."""
        here = self.query_one("#devices", RowTable).has_focus
        self.query_one("#why" if here else "#devices").focus()

    def action_copy(self) -> None:
        """The whole plan."""
        from widgets.spans import plain
        snapshot = self.cockpit.snapshot
        if snapshot is None:
            return
        lines = [plain(split.title(self.planned, snapshot))]
        lines += ["  ".join(text_of(cell) for cell in row.cells if text_of(cell)) for row in
                  self.query_one("#devices", RowTable).rows]
        self.cockpit.copy("\n".join((*lines, text_of_entries(self.query_one("#why", EntryView).entries))))

    def action_copy_command(self) -> None:
        """What shows it in a shell."""
        from app.present.shell import plan_command
        self.cockpit.copy(plan_command(self.planned.model, split.options_of(self.planned.what_if)))
