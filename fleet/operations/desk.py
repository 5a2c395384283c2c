"""Where commands become operations: planned, then run, one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from fleet.events import (
    AdoptProcess,
    BringUp,
    CancelRequest,
    Command,
    Distribute,
    EndProcess,
    Event,
    OperationChanged,
    RestartService,
    StartProxy,
    StartSeeder,
    StartService,
    StopService,
    TearDown,
)
from fleet.model import Operation, OperationState, Problem
from fleet.models.reader import Headers
from fleet.operations.bring_up import plan_bring_up
from fleet.operations.hands import Hands, Known
from fleet.operations.journal import Journal
from fleet.operations.lease import FleetChanged
from fleet.operations.plan import Plan, Runner, problem_of
from fleet.operations.proposing import propose_now
from fleet.operations.proxy_steps import plan_cancel
from fleet.operations.services import plan_process, plan_service
from fleet.operations.tear_down import plan_tear_down
from fleet.planning.propose import Proposal, WhatIf

WORDS: dict[type, tuple[str, str]] = {
    BringUp: ("up", "Bring up"), TearDown: ("down", "Tear down"), StartService: ("start", "Start"),
    StopService: ("stop", "Stop"), RestartService: ("restart", "Restart"), AdoptProcess: ("adopt", "Adopt"),
    EndProcess: ("end", "End"), Distribute: ("distribute", "Distribute"),
    StartSeeder: ("seed", "Start a seeder"),
    StartProxy: ("proxy", "Start the proxy"), CancelRequest: ("cancel", "End a request"),
}
PLANNED_ANEW = 3     # times: a fleet that changes between every plan and its first step is worked on by somebody else
KEPT = 100           # ended operations that can still be asked for


class OperationDesk:
    """Takes commands in. Each becomes an Operation that the Snapshot shows from its planning to its end."""

    def __init__(self, hands: Hands, emit: Callable[[Event], None], headers: Headers,
                 journal: Journal | None = None) -> None:
        self._hands = hands
        self._emit = emit
        self._journal = journal
        self._known = Known(headers=headers)
        self._numbers = count(1)
        self._turn = asyncio.Lock()
        self._moving = asyncio.Lock()    # models move beside what else is done: an hour of it must hold nobody up
        self._tasks: dict[int, asyncio.Task[Operation]] = {}
        self._ended: dict[int, Operation] = {}

    def submit(self, command: Command) -> int:
        """Carry a command out, after those that came before; gives the operation's number."""
        number = next(self._numbers)
        self._tasks[number] = asyncio.ensure_future(self._carry_out(number, command))
        for old in [n for n, task in self._tasks.items() if task.done()][:-KEPT]:
            del self._tasks[old]
            self._ended.pop(old, None)
        return number

    async def outcome(self, number: int) -> Operation:
        """The operation when it is over, also when it was cancelled."""
        task = self._tasks[number]
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise                       # we were cancelled, not the operation
            return self._ended[number]

    def cancel(self, number: int) -> None:
        """Stop an operation that is not over; what it did is undone."""
        if number in self._tasks:
            self._tasks[number].cancel()

    async def preview(self, command: Command) -> Operation:
        """The plan of a command, nothing done."""
        try:
            if isinstance(command, BringUp):
                from fleet.operations.fetching import fetch_first

                wanted = await fetch_first(self._hands, self._known, command)
                if wanted is not None:
                    moving = await self._plan(wanted)
                    return replace(moving, remarks=(*moving.remarks, "After that the model is brought up, planned anew."
                                                    )).as_operation(0)
            return (await self._plan(command)).as_operation(0)
        except Exception as error:
            return _refused(0, command, error)

    async def propose(self, wanted: str, what_if: WhatIf) -> Proposal:
        """What a bring-up would put where, and why; nothing is done."""
        return await propose_now(self._hands, self._known, wanted, what_if)

    async def close(self) -> None:
        """End what runs, undo included."""
        running = [task for task in self._tasks.values() if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _carry_out(self, number: int, command: Command) -> Operation:
        kind, title = WORDS[type(command)]
        planning = Operation(number, kind, title, OperationState.PLANNED, started=self._hands.clock())
        self._tell(planning)
        try:
            if isinstance(command, BringUp) and (problem := await self._fetch(command, planning)) is not None:
                return self._tell(replace(planning, state=OperationState.REFUSED, problem=problem,
                                          ended=self._hands.clock()))
            async with self._moving if isinstance(command, Distribute) else self._turn:
                for _ in range(PLANNED_ANEW):
                    try:
                        plan = await self._plan(command, number)
                    except Exception as error:
                        return self._tell(replace(_refused(number, command, error), started=planning.started,
                                                  ended=self._hands.clock()))
                    operation = await self._run(plan, number, command)
                    if operation.problem is None or operation.problem.code != FleetChanged.code:
                        break
                return operation
        except asyncio.CancelledError:
            if self._ended.get(number, planning).state is OperationState.PLANNED:
                self._tell(replace(planning, state=OperationState.CANCELLED, ended=self._hands.clock(),
                                   problem=Problem("cancelled", f"{title}: cancelled before anything was done.")))
            raise

    async def _fetch(self, command: BringUp, planning: Operation) -> Problem | None:
        """Have the model's file brought to its head, where it is missing: what serves goes on meanwhile."""
        from fleet.operations.fetching import fetch_first  # all of the preflight, likewise

        wanted = await fetch_first(self._hands, self._known, command)
        if wanted is None:
            return None
        number = self.submit(wanted)
        self._tell(replace(planning, remarks=(f"Its file is not on {wanted.to[0]}: it is brought there first.",)))
        try:
            moved = await self.outcome(number)
        except asyncio.CancelledError:
            self.cancel(number)
            raise
        if moved.state is OperationState.DONE:
            await self._hands.reread(wanted.to[0])
            return None
        problem = moved.problem or Problem("not-fetched", "It was not brought there.")
        return replace(problem, what=f"The model's file is not on {wanted.to[0]}, and bringing it there failed: "
                                     f"{problem.what}")

    async def _run(self, plan: Plan, number: int, command: Command) -> Operation:
        """Run a Plan, with its state on disk for as long as it runs."""
        journal, before = self._journal, self._hands.snapshot().deployment
        if journal is None:
            return await Runner(plan, number, self._hands.clock, self._tell).run()

        def tell(operation: Operation) -> Operation:
            journal.keep(operation, command, before, time.time())
            return self._tell(operation)

        try:
            return await Runner(plan, number, self._hands.clock, tell).run()
        finally:
            journal.over(number)

    async def _plan(self, command: Command, number: int = 0) -> Plan:
        match command:
            case BringUp():
                return await plan_bring_up(self._hands, self._known, command)
            case TearDown():
                return plan_tear_down(self._hands)
            case StartService() | StopService() | RestartService():
                return plan_service(self._hands, command)
            case AdoptProcess() | EndProcess():
                return plan_process(self._hands, command)
            case Distribute():
                from fleet.operations.distribute import plan_distribute  # all of the swarm, likewise

                return await plan_distribute(self._hands, self._known, command, number)
            case StartProxy():
                from fleet.operations.proxy_start import plan_start_proxy  # all of the proxy: only who starts one pays

                return await plan_start_proxy(self._hands, command)
            case StartSeeder():
                from fleet.operations.seeding import plan_start_seeder

                return plan_start_seeder(self._hands, command)
            case CancelRequest():
                return plan_cancel(self._hands, command)
        raise TypeError(f"no such command: {command!r}")

    def _tell(self, operation: Operation) -> Operation:
        self._ended[operation.id] = operation
        self._emit(OperationChanged(self._hands.clock(), operation))
        return operation


def _refused(number: int, command: Command, error: Exception) -> Operation:
    kind, title = WORDS[type(command)]
    return Operation(number, kind, title, OperationState.REFUSED, problem=problem_of(error, "while it planned"))
