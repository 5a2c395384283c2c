"""The cockpit: the Textual app that shows an engine's snapshots and sends it commands.

It paints before it has an engine: whoever opens it passes a factory, which runs in a worker after
the first frame, so that SSH, mDNS and HTTP are imported while there is already something to see.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.worker import Worker, WorkerCancelled, WorkerFailed, WorkerState

from app import keymap
from app.bridge import Bridge, EngineFace
from app.commands import LegalCommands, StillPalette
from app.driver import MeteredDriver, backlog_of
from app.messages import EngineFailed, SnapshotChanged
from app.screens import rooms
from app.screens.base import CockpitScreen, keys_of
from app.terminal import DARK, LOCAL_RATE
from app.themes import THEMES
from fleet.errors import FleetError
from widgets.ramp import Graphs
from widgets.spans import printable

if TYPE_CHECKING:
    from app.present.dialogs import Dialog
    from fleet.events import Command
    from fleet.model import Operation, Snapshot

LEAVING = 90.0                 # seconds that quitting waits for an operation to be undone


class CockpitApp(App[int]):
    """Keys in, snapshots out."""

    TITLE = "Quarterdeck"
    CSS_PATH = Path(__file__).with_name("cockpit.tcss")
    COMMANDS: ClassVar = {LegalCommands}
    COMMAND_PALETTE_BINDING = "colon"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS: ClassVar = [(0, "-tiny"), (60, "-narrow"), (112, "-wide")]
    VERTICAL_BREAKPOINTS: ClassVar = [(0, "-squat"), (16, "-short"), (32, "-tall")]
    BINDINGS: ClassVar[list[BindingType]] = [*keymap.APP, *rooms.bindings()]
    MODES: ClassVar = {room.name: room.make for room in rooms.ROOMS}
    DEFAULT_MODE = rooms.ROOMS[0].name

    def __init__(self, make_engine: Callable[[], EngineFace | Awaitable[EngineFace]], *, read_only: bool = False,
                 rate: float = LOCAL_RATE, ansi: bool = False, theme: str = DARK,
                 graphs: Graphs = Graphs.BLOCKS) -> None:
        """`rate` is repaints a second at most; the rest comes from `app.terminal.prepare_environment`."""
        # In the constructor: NO_COLOR with a theme that is set later is black on black.
        super().__init__(driver_class=MeteredDriver, ansi_color=True if ansi else None)
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme
        self._read_only = read_only
        self.rate = rate
        self.graphs = graphs
        self.engine: EngineFace | None = None
        self.snapshot: Snapshot | None = None
        self.shown_at = 0.0                    # engine clock of `snapshot`
        self.paused = False
        self.planned_model = ""                # that the Split screen plans for; "" = what serves, or the fleet's own
        self.problem = ""                      # why there is no engine
        self.failure: BaseException | None = None
        self._make_engine = make_engine
        self._engine_worker: Worker[None] | None = None
        self._mine: set[int] = set()           # operations begun here that are not over
        self._asked: set[int] = set()          # questions that were shown
        self._latest: SnapshotChanged | None = None

    @property
    def read_only(self) -> bool:
        """Nothing may be changed from here: by the user's wish, or since another cockpit acts."""
        return self._read_only or bool(self.snapshot is not None and self.snapshot.other_cockpit)

    # -- the engine ---------------------------------------------------------------------------

    def on_mount(self) -> None:
        """The first frame stands; now the engine."""
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._engine_worker = self.run_worker(self._run_engine(), group="engine", exit_on_error=False)

    async def _run_engine(self) -> None:
        try:
            # In a thread: the imports behind it take a second of processor time, and the screen is up.
            made = await asyncio.to_thread(self._make_engine)
            engine = await made if isinstance(made, Awaitable) else made
        except FleetError as error:
            self.failure = error
            self.post_message(EngineFailed(error.what, error.remedy))
            return
        self.engine = engine
        bridge = Bridge(engine, self.post_message, rate=self.rate,
                        backlog=lambda: backlog_of(self._driver))
        async with asyncio.TaskGroup() as tasks:
            pacing = tasks.create_task(bridge.run())
            await engine.run()
            pacing.cancel()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """An engine that ended by itself is said so, in words and until the end."""
        if event.worker is not self._engine_worker or self.failure is not None:
            return
        if event.state is WorkerState.ERROR:
            self.failure = event.worker.error
            self.post_message(EngineFailed(f"The engine stopped: {_first(self.failure)}", "What is shown is old."))
        elif event.state is WorkerState.SUCCESS:
            self.post_message(EngineFailed("The engine has ended.", "What is shown is old."))

    def on_engine_failed(self, event: EngineFailed) -> None:
        """Keep it in the title line."""
        from fleet.model import Snapshot
        self.problem = printable(f"✕ {event.what}")
        self.notify(printable(f"{event.what} {event.remedy}"), severity="error", timeout=20, markup=False)
        self._show(self.snapshot or Snapshot(), self.shown_at)

    def on_snapshot_changed(self, event: SnapshotChanged) -> None:
        """Show it, unless the picture is held still; questions and results come through all the same."""
        self._latest = event
        self._results(event.snapshot)
        if not self.paused:
            self._show(event.snapshot, event.now)
        self._ask(event.snapshot)

    def _show(self, snapshot: Snapshot, now: float) -> None:
        self.snapshot, self.shown_at = snapshot, now
        # Also below a dialog: a question may stand for minutes, and what is seen beside it must not be old.
        screen = next((each for each in reversed(self.screen_stack) if isinstance(each, CockpitScreen)), None)
        if screen is not None and screen.ready and self.is_running:      # closing takes the widgets away one by one
            with self.batch_update():
                screen.show(snapshot, now)

    def _results(self, snapshot: Snapshot) -> None:
        """A toast for the end of what was begun here, and for nothing else."""
        from app.present import operations
        for operation in snapshot.operations:
            if operation.id in self._mine and operations.is_over(operation):
                self._mine.discard(operation.id)
                good = operations.went_well(operation)
                self.notify(printable(operations.in_one_sentence(operation)),
                            severity="information" if good else "error", timeout=4 if good else 12, markup=False)

    def _ask(self, snapshot: Snapshot) -> None:
        """Show the oldest open question, one at a time and never over another dialog."""
        screen = self.screen
        if not snapshot.questions and isinstance(screen, CockpitScreen):
            return                         # nearly always: the dialogs are imported when there is a question
        from app.screens.ask import QuestionScreen, question_screen
        still_open = {question.id for question in snapshot.questions}
        if isinstance(screen, QuestionScreen) and screen.question.id not in still_open:
            screen.dismiss(None)
            return
        if not isinstance(screen, CockpitScreen):
            return
        for question in snapshot.questions:
            if question.id not in self._asked:
                self._asked.add(question.id)
                self.push_screen(question_screen(question), partial(self._answered, question.id))
                return

    def _answered(self, number: int, answer: str | None) -> None:
        engine, latest = self.engine, self._latest
        if engine is not None and latest is not None and any(q.id == number for q in latest.snapshot.questions):
            engine.answer(number, answer)

    # -- acting -------------------------------------------------------------------------------

    def bring_up(self, model: str | None = None) -> None:
        """Show the plan for a model; with None the user chooses, where there is a choice."""
        from app.present import dialogs, models
        from app.screens.choose_model import ChooseModelScreen
        engine, snapshot = self.engine, self.snapshot
        if engine is None or snapshot is None or self.read_only:
            return
        if model is not None:
            self.propose(dialogs.bring_up(model))
            return
        found = models.candidates(snapshot, engine.config)
        if len(found) > 1:
            self.push_screen(ChooseModelScreen(found, engine=engine), self._chosen)
        else:
            self.propose(dialogs.bring_up(found[0].value if found else ""))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that act on the fleet whatever screen is in front."""
        if action == "take_over":
            return not self._read_only and bool(self.snapshot is not None and self.snapshot.other_cockpit)
        if action in ("swap", "swap_back"):
            able = self.engine is not None and self.snapshot is not None and not self.read_only
            return able and (action == "swap" or bool(self.snapshot and self.snapshot.deployment.recent))
        return super().check_action(action, parameters)

    def action_take_over(self) -> None:
        """Ask, then act though another cockpit does."""
        from app.present import dialogs
        from app.screens.confirm import ConfirmScreen
        engine, snapshot = self.engine, self.snapshot
        if engine is None or snapshot is None or not self._at_a_room():
            return
        title, entries = dialogs.take_over(snapshot.other_cockpit)
        self.push_screen(ConfirmScreen(title, entries, "Take over", dangerous=True),
                         lambda yes: engine.take_over() if yes else None)

    def action_swap(self) -> None:
        """Choose a model, then the plan."""
        from app.present import models
        from app.screens.choose_model import ChooseModelScreen
        if self.engine is None or self.snapshot is None or self.read_only or not self._at_a_room():
            return
        found = models.candidates(self.snapshot, self.engine.config)
        self.push_screen(ChooseModelScreen(found, engine=self.engine), self._chosen)

    def action_swap_back(self) -> None:
        """The plan for what was served before."""
        recent = self.snapshot.deployment.recent if self.snapshot is not None else ()
        if not recent:
            self.notify("No other model was served before this one.", timeout=5, markup=False)
        elif self._at_a_room():
            self._chosen(recent[0])

    def _at_a_room(self) -> bool:
        """No dialog is open."""
        return isinstance(self.screen, CockpitScreen)

    def _chosen(self, model: str | None) -> None:
        from app.present import dialogs
        if model is not None:
            self.propose(dialogs.bring_up(model))

    def propose(self, dialog: Dialog | None) -> None:
        """Ask, and do it on yes."""
        from app.screens.confirm import ConfirmScreen
        engine = self.engine
        if dialog is None or engine is None or self.read_only:
            return
        command = dialog.command
        plan = (lambda: engine.plan(command)) if dialog.planned else None
        screen = ConfirmScreen(dialog.title, dialog.entries, dialog.yes, dangerous=dialog.dangerous, plan=plan)
        self.push_screen(screen, lambda yes: self._submit(command) if yes else None)

    def _submit(self, command: Command) -> None:
        if self.engine is None:
            return
        try:
            self._mine.add(self.engine.submit(command))
        except FleetError as error:
            self.notify(printable(str(error)), severity="error", timeout=12, markup=False)

    def cancel_operation(self) -> None:
        """Ask, then stop what is under way; what it did is undone."""
        from app.present import dialogs
        from app.screens.confirm import ConfirmScreen
        engine, running = self.engine, self._under_way()
        if engine is None or running is None or self.read_only:
            return
        title, entries = dialogs.cancel(running)
        self.push_screen(ConfirmScreen(title, entries, "Stop and undo", no="Let it go on"),
                         lambda yes: engine.cancel(running.id) if yes else None)

    def add_node(self) -> None:
        """Ask for an address."""
        from app.screens.ask import AddNodeScreen
        self.push_screen(AddNodeScreen(), self._added)

    def _added(self, address: str | None) -> None:
        if address is None or self.engine is None:
            return
        try:
            self.engine.add_node(address)
        except FleetError as error:
            self.notify(printable(str(error)), severity="error", timeout=12, markup=False)

    # -- keys everywhere ----------------------------------------------------------------------

    def action_room(self, name: str) -> None:
        """Another screen."""
        if self.current_mode != name:
            self.switch_mode(name)

    def action_help(self) -> None:
        """The keys that do something on the screen in front."""
        from app.screens.detail import HelpScreen
        screen = self.screen
        if isinstance(screen, CockpitScreen) and not isinstance(screen, HelpScreen):
            self.push_screen(HelpScreen(keys_of(screen), read_only=self.read_only))

    def action_command_palette(self) -> None:
        """Everything that can be done now, by name."""
        if not CommandPalette.is_open(self):
            self.push_screen(StillPalette(id="--command-palette"))

    def action_pause(self) -> None:
        """Hold the picture still, or let it go on from now."""
        self.paused = not self.paused
        if not self.paused and self._latest is not None:
            self._show(self._latest.snapshot, self._latest.now)
        elif self.snapshot is not None:
            self._show(self.snapshot, self.shown_at)

    def action_reload(self) -> None:
        """Read fleet.yaml again."""
        self.run_worker(self._reload(), group="reload", exclusive=True, exit_on_error=False)

    async def _reload(self) -> None:
        if self.engine is None:
            return
        try:
            problems = await self.engine.reload()
        except FleetError as error:
            problems = (str(error),)
        if problems:
            more = f" (and {len(problems) - 1} more; e shows all)" if len(problems) > 1 else ""
            self.notify(printable(f"Not taken, the old configuration stays in force. {problems[0]}{more}"),
                        severity="error", timeout=12, markup=False)
        else:
            self.notify("The configuration is in force.", timeout=4, markup=False)

    def action_shoot(self) -> None:
        """Save the screen as SVG in the working directory; never over another file."""
        name = f"quarterdeck-{datetime.now():%Y%m%d-%H%M%S}"
        path = next(each for number in range(1000)
                    if not (each := Path(f"{name}{f'-{number}' if number else ''}.svg").absolute()).exists())
        try:
            with path.open("x", encoding="utf-8") as file:     # not through a link that somebody put there
                file.write(self.export_screenshot(title="Quarterdeck"))
        except OSError as error:
            self.notify(f"No screenshot: {error.strerror or error}.", severity="error", markup=False)
        else:
            self.notify(printable(f"Saved {path}"), timeout=6, markup=False)

    def copy(self, text: str) -> None:
        """To the terminal's clipboard, as well as that can be done."""
        from app import clipboard
        done = clipboard.copy(text, os.environ)
        if done.sequence and self._driver is not None:
            self._driver.write(done.sequence)
        self.notify(printable(done.message), severity="information" if done.ok else "warning", timeout=5, markup=False)

    def _fatal_error(self) -> None:
        """Textual would print the fault with the variables around it, and one of them may be a password that was
        typed. Whoever runs the app writes the crash file, which holds none.
        """
        self._close_messages_no_wait()

    def action_interrupt(self) -> None:
        """ctrl+c is what people press to leave; say how."""
        self.notify("Press q to leave. Services go on running.", timeout=4, markup=False)

    async def action_quit(self) -> None:
        """Leave; with an operation under way, ask first."""
        from app.present import dialogs
        from app.screens.confirm import ConfirmScreen
        running = self._under_way()
        if running is None or self.engine is None:
            self._leave()
            return
        if not isinstance(self.screen, ConfirmScreen):
            title, entries = dialogs.quit_while(running)
            self.push_screen(ConfirmScreen(title, entries, "Quit", no="Stay"),
                             lambda yes: self._leave() if yes else None)

    def _under_way(self) -> Operation | None:
        from app.present import operations
        return operations.under_way(self._latest.snapshot) if self._latest is not None else None

    def _leave(self) -> None:
        if self._under_way() is not None:
            self.notify("Undoing what was under way, then leaving ...", timeout=LEAVING, markup=False)
        self.run_worker(self._end_engine(), group="leaving", exclusive=True, exit_on_error=False)

    async def _end_engine(self) -> None:
        """Cancel the engine and let it finish tidily; connections are closed before the screen is."""
        worker = self._engine_worker
        if worker is not None and not worker.is_finished:
            worker.cancel()
            try:
                await asyncio.wait_for(worker.wait(), LEAVING)
            except (WorkerCancelled, WorkerFailed, TimeoutError) as reason:
                self.log(f"engine ended: {reason!r}")
        code = 0 if self.failure is None else 1
        self.exit(code, return_code=code)


def _first(error: BaseException | None) -> str:
    """The innermost reason of a task group's error, in words."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, FleetError):
        return error.what
    return f"{type(error).__name__}: {error}" if error is not None else "no reason given"
