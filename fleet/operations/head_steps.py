"""Steps of a bring-up that concern the head: deal the layers, start it, follow its load, prove the placement."""

from __future__ import annotations

import asyncio

from fleet.errors import FleetError, OperationFailed
from fleet.facts import HeadFacts, WorkerRef, head_facts
from fleet.model import Deployment, DeploymentState, PlacementState, Process, ServiceKind
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.arrangement import Arrangement, Seat
from fleet.operations.dealing import Dealt, deal
from fleet.operations.deaths import raise_if_dead, raise_if_workers_lost, seen_record
from fleet.operations.hands import Hands, node_of
from fleet.operations.plan import Report, Step
from fleet.operations.services import Start
from fleet.operations.slot_keys import KEY_FACT, slots_key
from fleet.runtimes.binaries import build_label
from fleet.runtimes.head_http import HeadClient, HeadHealth
from fleet.runtimes.head_log import HeadLog, judge_placement, real_shares
from fleet.runtimes.llama_server import HeadRequest, head_command
from fleet.runtimes.vllm_health import VllmClient

STALLED_AFTER = 90.0      # seconds without any sign of life: log, processor time or memory
IDLE_CPU = 0.02           # of one core: what a head needs to say over HTTP that it still loads; that is no sign of life
SMOKE_PATIENCE = 3.0      # times STALLED_AFTER: the first token reads what a head has mapped from its disk
IDLE_MEMORY = 1 << 20     # bytes: what a process may grow by without moving on
LOOK_EVERY = {HeadHealth.LOADING: 1.0}     # seconds between two looks at its log and at who lives; such a look takes
LOOK_SOON = 0.4                            # processor time from the load itself, so one that answers is left in peace
ASK_EVERY = 0.1           # whether it answers: a small model is there within two looks, and clients wait for it
LOG_STEP = 256 * 1024


class StartHead(Start):
    """Deal the layers by what the workers said, and start the head."""

    def __init__(self, hands: Hands, arrangement: Arrangement) -> None:
        super().__init__(hands, arrangement.head_node)
        self.title = f"Start head on {arrangement.head_node}, port {arrangement.head_config.port}"
        self._arrangement = arrangement

    async def do(self, report: Report) -> None:
        dealt = await asyncio.to_thread(deal, self._hands, self._arrangement)
        self._arrangement.planned = dealt.planned
        if self._hands.config.serving.keep_prompts:
            model = self._arrangement.choice.model.file
            self._arrangement.slots = await self._hands.supervisor(self.node).slots_folder(model)
        record = await self.start(head_spec(self._hands, self._arrangement, dealt), report)
        report(f"pid {record.pid}, layers {' | '.join(str(share.layers) for share in dealt.planned)}, context "
               f"{dealt.context}")

    async def undo(self, report: Report) -> None:
        await self.end(self._arrangement.head_service, report)


def head_spec(hands: Hands, arrangement: Arrangement, dealt: Dealt) -> ServiceSpec:
    """What starts the head, with everything that a later Quarterdeck must know of it."""
    model, config, binary = arrangement.choice.model, arrangement.head_config, arrangement.choice.head_binary
    command = head_command(binary, arrangement.head_flags, HeadRequest(
        model=model.file, alias=model.name, host=config.bind, port=config.port,
        endpoints=dealt.endpoints, devices=dealt.devices, tensor_split=tuple(map(float, dealt.tensor_split)),
        gpu_layers=dealt.gpu_layers, context=dealt.context, slots=dealt.slots,
        kv_type_k=model.kv_type_k, kv_type_v=model.kv_type_v, flash_attention=model.flash_attention,
        threads=config.threads, wire=dealt.wire, api_key_file=config.api_key_file,
        slot_save_path=arrangement.slots.path if arrangement.slots is not None else "",
        extra_args=(*config.extra_args, *model.extra_args), env=config.env))
    facts = HeadFacts(model.name, model.file, dealt.context, tuple(_ref(hands, seat) for seat in dealt.seats),
                      arrangement.planned, api_key_file=config.api_key_file, reads=dealt.reads,
                      recent=arrangement.recent)
    slots = arrangement.slots
    key = slots_key(command.argv, build_label(binary), arrangement.file_size, slots) if slots is not None else ""
    spec = ServiceSpec(id=arrangement.head_service, kind=ServiceKind.COORDINATOR, argv=command.argv, env=command.env,
                       port=config.port, bind=config.bind, build=build_label(binary), fleet=hands.config.fleet,
                       facts={**facts.to_json(), "wish": arrangement.wish, **({KEY_FACT: key} if key else {})},
                       log_limit=hands.config.log_limit)
    return spec if arrangement.streaming is None else arrangement.streaming.around(spec)


def _ref(hands: Hands, seat: Seat) -> WorkerRef:
    record = seen_record(hands, seat.choice.node.name, seat.service)
    return WorkerRef(seat.choice.node.name, seat.service, seat.endpoint, record.pid if record else 0)


class FollowLoad(Step):
    """Follow the head until it answers. A load that moves may take as long as it takes; one that does not is ended."""

    def __init__(self, hands: Hands, arrangement: Arrangement) -> None:
        self.title = f"Load {arrangement.choice.model.name}"
        self.node = arrangement.head_node
        self._hands, self._arrangement = hands, arrangement
        self._stalled_after = hands.stalled_after

    async def do(self, report: Report) -> None:
        log = self._arrangement.log = HeadLog()
        supervisor = self._hands.supervisor(self.node)
        service = self._arrangement.head_service
        before = self._worker_memory()
        offset, life, looked = 0, Life(self._hands.clock()), self._hands.clock()
        async with head_client(self._hands, self._arrangement) as client:
            while True:
                health = await client.health()
                if health is not HeadHealth.READY and self._hands.clock() - looked < LOOK_EVERY.get(health, LOOK_SOON):
                    await asyncio.sleep(ASK_EVERY)
                    continue
                looked = self._hands.clock()
                chunk = await supervisor.read_log(service, offset, LOG_STEP)
                log.feed(chunk.text)
                offset = chunk.offset
                log.note_arrived({endpoint: size - before.get(endpoint, 0)
                                  for endpoint, size in self._worker_memory().items()})
                await raise_if_workers_lost(self._hands, self._arrangement.seats, ask=False)
                await self._raise_if_dead(service)
                report(str(log.phase), log.progress)
                if health is HeadHealth.READY and chunk.offset >= chunk.size:
                    return
                still = life.still_for(self._hands.clock(), offset, *self._processes())
                if still > self._stalled_after:
                    raise OperationFailed(self._stalled(), "See the logs of head and workers; a worker that hangs, or "
                                          "a link that drops packets, does this.", code="stalled")
                await asyncio.sleep(ASK_EVERY)

    async def _raise_if_dead(self, service: str) -> None:
        """A head that ended because a worker did is told as what the worker died of."""
        try:
            await raise_if_dead(self._hands, self.node, service)
        except FleetError:
            await raise_if_workers_lost(self._hands, self._arrangement.seats, ask=True)
            raise

    def _stalled(self) -> str:
        what = (f"The head on {self.node} has not moved for {self._stalled_after:.0f} s: no log line, no processor "
                "time, no memory.")
        stopped = [f"{process.argv[0].rpartition('/')[2] if process.argv else 'a process'} on {name} (pid "
                   f"{process.pid})" for name, process in self._own() if process.state.startswith("T")]
        return f"{what} {', '.join(stopped)} is stopped (SIGSTOP)." if stopped else what

    def _worker_memory(self) -> dict[str, int]:
        """Main memory of every worker by its endpoint, in bytes, as the last probes saw it."""
        memory = {}
        for seat in self._arrangement.seats:
            reading = node_of(self._hands, seat.choice.node.name).reading
            sockets = reading.sockets if reading else ()
            pid = next((s.pid for s in sockets if s.listening and s.local_port == seat.choice.config.port), None)
            processes = reading.processes if reading else ()
            memory[seat.endpoint] = next((p.rss for p in processes if p.pid == pid), 0)
        return memory

    def _own(self) -> list[tuple[str, Process]]:
        """The processes of the head and of its workers, with their nodes, as the last probes saw them."""
        found = []
        ports = {(self.node, self._arrangement.head_config.port)}
        ports |= {(seat.choice.node.name, seat.choice.config.port) for seat in self._arrangement.seats}
        services = {(self.node, self._arrangement.head_service)}
        services |= {(seat.choice.node.name, seat.service) for seat in self._arrangement.seats}
        for name in sorted({name for name, _ in ports}):
            reading = node_of(self._hands, name).reading
            if reading is None:
                continue
            pids = {record.pid for record in reading.services if (name, record.id) in services}
            pids |= {s.pid for s in reading.sockets if s.listening and s.pid and (name, s.local_port) in ports}
            found += [(name, process) for process in reading.processes if process.pid in pids]
        return found

    def _processes(self) -> tuple[float, int]:
        """Seconds of processor time and bytes of memory that they have used together."""
        own = [process for _, process in self._own()]
        return sum(process.cpu_seconds or 0.0 for process in own), sum(process.rss for process in own)


class Life:
    """For how long nothing has moved. Answering our own questions costs a head a little: that does not count."""

    def __init__(self, now: float) -> None:
        self._moved_at = now
        self._then = (0, 0.0, 0)

    def still_for(self, now: float, log: int, cpu: float, memory: int) -> float:
        """Seconds since a log line, processor time or memory was last added."""
        log_then, cpu_then, memory_then = self._then
        idle = (now - self._moved_at) * IDLE_CPU + IDLE_CPU
        if log != log_then or abs(cpu - cpu_then) > idle or abs(memory - memory_then) > IDLE_MEMORY:
            self._moved_at, self._then = now, (log, cpu, memory)
        return now - self._moved_at


class VerifyPlacement(Step):
    """Compare what the head's log says it allocated with what was planned: health is not placement."""

    def __init__(self, hands: Hands, arrangement: Arrangement) -> None:
        self.title = "Verify that the model sits where it was planned"
        self.node = arrangement.head_node
        self._hands, self._arrangement = hands, arrangement

    async def do(self, report: Report) -> None:
        arrangement = self._arrangement
        if arrangement.log is None:
            raise OperationFailed("The head's load was not followed, so its placement is not known.")
        endpoints = {seat.endpoint: seat.choice.node.name for seat in arrangement.seats}
        real = real_shares(arrangement.log, endpoints, arrangement.head_node)
        placement = judge_placement(arrangement.planned, real)
        if placement.state is not PlacementState.MATCHES:
            problem = placement.problem
            raise OperationFailed(
                problem.what if problem else f"What the head on {self.node} allocated is not in its log, so where the "
                "model sits is unknown.",
                problem.remedy if problem else "See its log: one that ends early was cut by a full disk or by an "
                "option that keeps llama-server from writing it.", code="placement")
        supervisor = self._hands.supervisor(self.node)
        facts = HeadFacts(real=placement.real).to_json()["real"]
        context = arrangement.log.context or arrangement.choice.model.context
        await supervisor.annotate(arrangement.head_service, {"real": facts, "context": context})
        await self._hands.reread(self.node, quick=True)
        larger = f"; {placement.problem.what}" if placement.problem else ""
        report(f"{len([s for s in real if s.model_bytes])} devices as planned{larger}")


class SmokeTest(Step):
    """One token, through every device of the split."""

    def __init__(self, hands: Hands, arrangement: Arrangement) -> None:
        self.title = "Ask for one token"
        self.node = arrangement.head_node
        self._hands, self._arrangement = hands, arrangement

    async def do(self, report: Report) -> None:
        async with head_client(self._hands, self._arrangement) as client:
            try:
                done = await client.complete("Hello", n_predict=1, timeout=self._hands.stalled_after * SMOKE_PATIENCE)
            except FleetError as error:
                await raise_if_workers_lost(self._hands, self._arrangement.seats, ask=True)
                await raise_if_dead(self._hands, self.node, self._arrangement.head_service)
                raise OperationFailed(f"The head answers, but gives no token: {error.what}", error.remedy) from error
        report(f"{done.prompt_tokens} tokens read, {done.tokens} written")


def head_client(hands: Hands, arrangement: Arrangement) -> HeadClient:
    """A client of the head of an arrangement, through its node's transport."""
    config = arrangement.head_config
    return HeadClient(hands.transport(arrangement.head_node), config.bind, config.port,
                      api_key_file=config.api_key_file)


def client_of(hands: Hands, deployment: Deployment) -> HeadClient | None:
    """A client of what serves, as observed; None when no head answers."""
    if deployment.state not in (DeploymentState.SERVING, DeploymentState.DEGRADED):
        return None
    record = seen_record(hands, deployment.head, deployment.head_service)
    if record is None:
        return None
    facts = head_facts(record.facts)
    kind = VllmClient if facts.runtime == "vllm" else HeadClient
    return kind(hands.transport(deployment.head), record.bind, record.port, api_key_file=facts.api_key_file)
