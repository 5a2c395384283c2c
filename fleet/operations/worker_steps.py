"""Steps of a bring-up that concern workers: see that one answers, and that it can be used by this head."""

from __future__ import annotations

import asyncio

from fleet.errors import NodeError, OperationFailed, StartFailed
from fleet.nodes.transport import ByteStream
from fleet.operations.arrangement import Arrangement, Seat
from fleet.operations.deaths import raise_if_dead
from fleet.operations.hands import Hands, node_of
from fleet.operations.plan import Report, Step
from fleet.runtimes.rpc_wire import WorkerAnswer, WorkerStatus, ask_worker, compatible, occupant

ANSWER_WITHIN = 30.0     # seconds: a GPU worker initialises its driver before it listens
FREE_WITHIN = 15.0       # seconds for the slot of a worker to become free after its head has ended
LOOK_EVERY = 0.25
WIRE_TIMEOUT = 5.0


class WorkerAnswers(Step):
    """Wait until a worker's slot is free, then ask it for its protocol and devices, by the way the head will take."""

    def __init__(self, hands: Hands, arrangement: Arrangement, seat: Seat) -> None:
        self.title = f"Ask the worker on {seat.choice.node.name}, port {seat.choice.config.port}"
        self.node = seat.choice.node.name
        self._hands, self._arrangement, self._seat = hands, arrangement, seat

    async def do(self, report: Report) -> None:
        await self._slot_free(report)
        answer = await self._answer(report)
        ours, theirs = self._arrangement.protocol, answer.version
        if ours is not None and theirs is not None and not compatible(ours, theirs):
            raise OperationFailed(
                f"The worker on {self._seat.choice.where} speaks RPC protocol {'.'.join(map(str, theirs))}, the head "
                f"{'.'.join(map(str, ours))}.", "Use the same llama.cpp build on both.", code="protocol-mismatch")
        self._arrangement.answers[self._seat.endpoint] = answer
        devices = len(answer.devices)
        report(f"protocol {'.'.join(map(str, theirs or ()))}, {devices} device{'s' if devices != 1 else ''}")

    async def _slot_free(self, report: Report) -> None:
        """Never ask an occupied worker: the question would wait in its queue and could kill it later."""
        deadline = self._hands.clock() + FREE_WITHIN
        while True:
            reading = node_of(self._hands, self.node).reading
            held = occupant(reading.sockets, self._seat.choice.config.port) if reading else None
            if held is None:
                return
            if self._hands.clock() > deadline:
                raise OperationFailed(f"The worker on {self._seat.choice.where} is occupied: {held.describe()}.",
                                      "End that head first, or leave this worker out.", code="occupied")
            report(f"occupied: {held.describe()}")
            await asyncio.sleep(LOOK_EVERY)
            await self._hands.reread(self.node, quick=True)

    async def _answer(self, report: Report) -> WorkerAnswer:
        deadline = self._hands.clock() + ANSWER_WITHIN
        while True:
            answer = await ask_worker(self._open, timeout=WIRE_TIMEOUT)
            if answer.status is WorkerStatus.OK:
                return answer
            await self._raise_if_dead()
            if self._hands.clock() > deadline or answer.status is WorkerStatus.NOT_RPC:
                raise StartFailed(
                    f"The worker on {self._seat.choice.where} cannot be used from {self._arrangement.head_node}: "
                    f"{answer.detail}", "Is a firewall between the two? `rpc: tunnel` goes through SSH instead.")
            report(answer.detail)
            await asyncio.sleep(LOOK_EVERY)

    async def _open(self) -> ByteStream:
        """From the head where its sshd lets us; else from the worker's own node: at least it answers there."""
        head = self._hands.transport(self._arrangement.head_node)
        try:
            return await head.open_connection(self._seat.dial_host, self._seat.dial_port)
        except NodeError:
            if self._seat.tunnelled:
                raise
            own = self._hands.transport(self.node)
            return await own.open_connection(self._seat.bind, self._seat.choice.config.port)

    async def _raise_if_dead(self) -> None:
        if self._seat.spec is None:
            return
        await raise_if_dead(self._hands, self.node, self._seat.service)
