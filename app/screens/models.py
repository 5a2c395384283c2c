"""The Models screen: every model of the fleet, where it is, and with which context it fits.

Headers are read and plans are worked out for the model under the cursor alone, once, and never hold the screen.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from app.keymap import MODELS
from app.present import fleet_models, opening
from app.present.fleet_models import Known
from app.present.model_detail import detail_of
from app.present.split import Planned
from app.screens.base import CockpitScreen
from fleet.errors import FleetError
from fleet.model import NodeState
from fleet.models.inventory import Model, inventory
from fleet.models.shards import FileKind
from fleet.operations.plan import problem_of
from widgets.entry_view import EntryView
from widgets.panel_title import PanelTitle
from widgets.row_table import RowTable
from widgets.spans import Span, Tone
from widgets.status_line import StatusLine

if TYPE_CHECKING:
    from fleet.model import Snapshot

WAIT = 0.3                     # seconds that the cursor rests on a model before its header is read


class ModelsScreen(CockpitScreen):
    """A list, and a pane about the model under the cursor."""

    AUTO_FOCUS = "#inventory"
    BINDINGS: ClassVar[list[BindingType]] = MODELS

    def __init__(self) -> None:
        super().__init__()
        self._models: tuple[Model, ...] = ()
        self._known: dict[str, Known] = {}           # by key of the model
        self._subject = ""
        self._reading: tuple[str, tuple[object, ...]] | None = None     # model and fleet that are being looked at

    def compose_body(self) -> ComposeResult:
        """List, pane, status."""
        yield StatusLine(*opening.HEAD, id="head")
        with Horizontal(id="models-body"):
            with Vertical(id="listing"):
                yield PanelTitle("models", id="inventory-title")
                yield RowTable(fleet_models.COLUMNS, empty=opening.READING, id="inventory")
            yield EntryView(focusable=True, id="about")
        yield self.filter_input()
        yield StatusLine(*opening.FOOT, id="foot")

    # -- showing ------------------------------------------------------------------------------

    def show(self, snapshot: Snapshot, now: float) -> None:
        """What the nodes say they have."""
        from app.present import status
        cockpit = self.cockpit
        engine = cockpit.engine
        mode = status.Mode(cockpit.read_only, cockpit.paused, self.query_one("#filter", Input).value)
        self.query_one("#head", StatusLine).show(*status.head(snapshot, cockpit.problem))
        self.query_one("#foot", StatusLine).show(*status.foot(snapshot, mode))
        self._models = inventory(snapshot.nodes, engine.headers.fingerprints() if engine is not None else None)
        self._draw(snapshot)
        self._look()

    def _draw(self, snapshot: Snapshot) -> None:
        table = self.query_one("#inventory", RowTable)
        table.show(fleet_models.rows(self._models, self._known, snapshot.deployment), empty=fleet_models.EMPTY)
        shown, total = len(table.rows), table.total
        number = str(total) if shown == total else f"{shown} of {total}"
        self.query_one("#inventory-title", PanelTitle).show("models", (Span(number, Tone.MUTED),) if total else ())
        self._draw_about(snapshot)

    def _draw_about(self, snapshot: Snapshot) -> None:
        model = self.selected
        key = fleet_models.key_of(model) if model is not None else ""
        known = self._known.get(key, Known())
        entries = fleet_models.detail(model, known, snapshot.deployment) if model is not None else ()
        self.query_one("#about", EntryView).show(entries, from_top=key != self._subject)
        self._subject = key

    @property
    def selected(self) -> Model | None:
        """The model under the cursor."""
        key = self.query_one("#inventory", RowTable).cursor_key
        return next((model for model in self._models if fleet_models.key_of(model) == key), None)

    # -- reading ------------------------------------------------------------------------------

    def on_row_table_highlighted(self, event: RowTable.Highlighted) -> None:
        """Show what is known; read the rest when the cursor rests."""
        if self.cockpit.snapshot is not None:
            self._draw_about(self.cockpit.snapshot)
        self.refresh_bindings()
        self._look()

    def _look(self) -> None:
        """Read what is not known of the model under the cursor."""
        model, snapshot, engine = self.selected, self.cockpit.snapshot, self.cockpit.engine
        if model is None or not model.complete or snapshot is None or engine is None:
            return
        fleet = (id(engine.config), *((node.name, node.state is NodeState.UP) for node in snapshot.nodes.values()))
        key = fleet_models.key_of(model)
        if self._known.get(key, Known()).fleet != fleet and self._reading != (key, fleet):
            self._reading = key, fleet
            self.run_worker(self._read(model, fleet), group="read", exclusive=True, exit_on_error=False)

    async def _read(self, model: Model, fleet: tuple[object, ...]) -> None:
        """The header, then the plan, then what could draft for it."""
        engine, key, place = self.cockpit.engine, fleet_models.key_of(model), fleet_models.place_of(model)
        if engine is None:
            return
        await asyncio.sleep(WAIT)
        try:
            known = Known(await asyncio.to_thread(detail_of, await engine.model_header(place.node, place.path)))
        except Exception as error:      # a mistake of ours too is said here, not left as if nothing came
            why = Planned(place.path, problem=problem_of(error, f"while reading {place.path}"))
            self._learn(key, Known(plan=why, partners=(), fleet=fleet))
            return
        if model.kind is not FileKind.MODEL:
            self._learn(key, replace(known, partners=(), fleet=fleet))
            return
        wanted = self._wanted(model)    # with the settings that it would be brought up with
        self._learn(key, replace(known, plan=Planned(wanted, working=True)))
        try:
            plan = Planned(wanted, proposal=await engine.propose(wanted))
        except Exception as error:
            plan = Planned(wanted, problem=problem_of(error, f"while planning {wanted}"))
        known = replace(known, plan=plan)
        self._learn(key, known)
        self._learn(key, replace(known, partners=await self._partners(known, place.path), fleet=fleet))

    async def _partners(self, known: Known, path: str) -> tuple[str, ...]:
        """Smaller models of the fleet with the same vocabulary; their headers are read once."""
        engine = self.cockpit.engine
        others = {}
        for model in self._models:
            place = fleet_models.place_of(model)
            if engine is None or place.path == path or not model.complete or model.kind is not FileKind.MODEL:
                continue
            try:
                from fleet.models.facts import facts_of
                others[model.name] = facts_of(await engine.model_header(place.node, place.path))
            except FleetError:
                continue            # it says why when the cursor comes to it
        return fleet_models.partners(known.detail.facts, others) if known.detail is not None else ()

    def _learn(self, key: str, known: Known) -> None:
        self._known[key] = known
        if self.cockpit.snapshot is not None and self.ready and self.cockpit.is_running:
            self._draw(self.cockpit.snapshot)

    # -- keys ---------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What can be done with the selected model."""
        model = self.selected if self.ready else None
        match action:
            case "bring_up":
                return (model is not None and model.complete and model.kind is FileKind.MODEL
                        and not self.cockpit.read_only and self.cockpit.engine is not None)
            case "distribute":
                return (model is not None and model.complete and not self.cockpit.read_only
                        and self.cockpit.engine is not None)
            case "split" | "copy_command":
                return model is not None and model.complete and model.kind is FileKind.MODEL
            case "copy":
                return model is not None
        return True

    def _wanted(self, model: Model) -> str:
        """As fleet.yaml calls it, where it does; else its path."""
        engine = self.cockpit.engine
        paths = {path for place in model.places for path in place.paths}
        names = engine.config.models if engine is not None else {}
        return next((name for name, known in names.items() if known.file in paths), fleet_models.place_of(model).path)

    def on_row_table_chosen(self, event: RowTable.Chosen) -> None:
        """Enter: everything about it over the whole screen."""
        from app.screens.detail import DetailScreen
        model = self.selected
        if model is not None:
            key = fleet_models.key_of(model)
            self.app.push_screen(DetailScreen(lambda snapshot, now: fleet_models.detail(
                model, self._known.get(key, Known()), snapshot.deployment)))

    def action_bring_up(self) -> None:
        """The plan, then yes or no."""
        if (model := self.selected) is not None:
            self.cockpit.bring_up(self._wanted(model))

    def action_distribute(self) -> None:
        """Choose machines, then the plan, then yes or no."""
        from app.present import distribution
        from app.screens.choose_nodes import ChooseNodesScreen
        model, snapshot, cockpit = self.selected, self.cockpit.snapshot, self.cockpit
        if model is None or snapshot is None:
            return
        if not distribution.targets(snapshot, model):
            self.notify("Every machine of the fleet has it.", markup=False)
            return

        def chosen(names: tuple[str, ...] | None) -> None:
            if names:
                place = fleet_models.place_of(model)
                cockpit.propose(distribution.distribute(model, place.node, place.path, names))

        self.app.push_screen(ChooseNodesScreen(snapshot, model), chosen)

    def action_split(self) -> None:
        """How it would be split."""
        if (model := self.selected) is not None:
            self.cockpit.planned_model = self._wanted(model)
            self.cockpit.action_room("split")

    def action_copy(self) -> None:
        """The path."""
        if (model := self.selected) is not None:
            self.cockpit.copy(fleet_models.place_of(model).path)

    def action_copy_command(self) -> None:
        """What brings it up."""
        from app.present.shell import bring_up_command
        if (model := self.selected) is not None:
            self.cockpit.copy(bring_up_command(self._wanted(model)))

    def action_next_panel(self) -> None:
        """List, pane, and round again."""
        here = self.query_one("#inventory", RowTable).has_focus
        self.query_one("#about" if here else "#inventory").focus()

    def action_filter(self) -> None:
        """Open the filter's line."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self.query_one("#inventory", RowTable).filter(event.value)
        if self.cockpit.snapshot is not None:
            self._draw(self.cockpit.snapshot)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the list, filtered."""
        event.input.display = False
        self.query_one("#inventory", RowTable).focus()

    def action_back(self) -> None:
        """Clear the filter."""
        box = self.query_one("#filter", Input)
        box.clear()
        box.display = False
        self.query_one("#inventory", RowTable).focus()
