"""Everything that can be known before anything is started: files, builds, protocols, ports, occupied workers.

All that is wrong is said at once. Only looking is done here; to learn which RPC protocol a build speaks its own
worker program is started for a moment on its node's loopback, when commits do not tell.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Mapping, Sequence

from fleet.config.schema import RpcMode
from fleet.errors import FleetError, PlanRefused
from fleet.facts import head_facts
from fleet.model import Node, ServiceKind, ServiceRecord, Socket
from fleet.models.gguf import GgufHeader, combined, read_header
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.arrangement import Arrangement, LocalDevice, Seat
from fleet.operations.hands import Hands, Known, node_of
from fleet.planning.addresses import LOOPBACK, worker_address
from fleet.planning.choose import Choice, WorkerChoice, choose, node_config
from fleet.planning.shares import Room, expected_rooms, plan_shares
from fleet.runtimes.binaries import build_label, same_build
from fleet.runtimes.devices import list_devices
from fleet.runtimes.rpc_server import worker_command
from fleet.runtimes.rpc_wire import WorkerStatus, ask_worker, compatible, occupant

TUNNEL_PORT = 50152          # the first port on the head that a tunnel listens on
WIRE_TIMEOUT = 5.0
HEADER_READ_TIMEOUT = 30.0


async def arrange(hands: Hands, known: Known, wanted: str) -> Arrangement:
    """Decide everything about a bring-up and check it against fresh readings of the nodes that take part.

    Raises:
        PlanRefused: with every reason found.
    """
    first = choose(hands.snapshot(), hands.config, wanted)
    names = {first.head.name, *(worker.node.name for worker in first.workers)}
    await _all(*(hands.reread(name) for name in sorted(names)))
    choice = choose(hands.snapshot(), hands.config, wanted)
    head = node_config(hands.config, choice.head)
    header_and_size, flags, devices = await _all(
        _header(hands, choice), known.flags_of(hands, choice.head.name, choice.head_binary),
        list_devices(hands.transport(choice.head.name), choice.head_binary))
    seats = await _all(*(_seat(hands, known, choice, worker, number) for number, worker in enumerate(choice.workers)))
    header, size = header_and_size
    arrangement = Arrangement(choice, head, header, size, tuple(seats), flags, None,
                              tuple(LocalDevice(d.name, d.memory_free or 0) for d in devices))
    _check_fits(hands, arrangement)
    checks = [_check_head_port(hands, arrangement), *(_check_seat(hands, known, arrangement, seat) for seat in seats)]
    await _all(*checks)
    if seats:
        arrangement.protocol = await _head_protocol(hands, known, choice)
    return arrangement


async def _all(*looks: Awaitable) -> list:
    """Wait for all; what went wrong is raised as one refusal that has every sentence."""
    results = await asyncio.gather(*looks, return_exceptions=True)
    wrong = [result for result in results if isinstance(result, BaseException)]
    for error in wrong:
        if not isinstance(error, FleetError):
            raise error
    if len(wrong) == 1:
        raise PlanRefused(wrong[0].what, wrong[0].remedy, code=wrong[0].code)
    if wrong:
        raise PlanRefused(" ".join(error.what for error in wrong),
                          " ".join(dict.fromkeys(error.remedy for error in wrong if error.remedy)), code=wrong[0].code)
    return results


async def _header(hands: Hands, choice: Choice) -> tuple[GgufHeader, int]:
    """The header of the model, all shards together, and its size in bytes."""
    first = await _one_header(hands, choice, choice.model.file)
    if first.split_count == 1:
        return first, first.file_size
    paths = shard_paths(choice.model.file, first.split_count)
    rest = await _all(*(_one_header(hands, choice, path) for path in paths[1:]))
    whole = combined((first, *rest))
    return whole, whole.file_size


async def _one_header(hands: Hands, choice: Choice, path: str) -> GgufHeader:
    node = choice.head.name
    transport = hands.transport(node)
    found = await transport.run('[ -f "$1" ] && [ -r "$1" ] && wc -c <"$1"', (path,), timeout=10.0)
    if found.status != 0:
        raise PlanRefused(f"{path} is not on {node}, or cannot be read there.",
                          f"Copy it to {node}, or correct `file:` of the model.", code="no-file")

    async def read(offset: int, length: int) -> bytes:
        return await transport.read_file(path, offset, length, timeout=HEADER_READ_TIMEOUT)

    size = found.text.split()[-1:] or ["0"]
    header = await read_header(read, int(size[0]) if size[0].isdecimal() else 0, name=f"{path} on {node}")
    if header.n_layers == 0:
        raise PlanRefused(f"{path} on {node} holds no layers: it is no model that can be served.",
                          "Name the model's own file, not its projector or vocabulary.", code="no-layers")
    if header.missing_bytes:
        raise PlanRefused(f"{path} on {node} is incomplete: {header.missing_bytes} bytes of it are missing.",
                          "Fetch it again.", code="incomplete")
    return header


def shard_paths(first: str, count: int) -> tuple[str, ...]:
    """The files of a model in several parts: `x-00001-of-00003.gguf` and so on.

    Raises:
        PlanRefused: the first one is not named so.
    """
    ending = f"-00001-of-{count:05d}.gguf"
    if not first.endswith(ending):
        raise PlanRefused(f"{first} is one of {count} parts, but not named as the first: {ending}.",
                          "Name the first part as `file:` of the model.", code="shards")
    stem = first.removesuffix(ending)
    return tuple(f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1))


# ---------------------------------------------------------------------------------------------
# Seats


async def _seat(hands: Hands, known: Known, choice: Choice, worker: WorkerChoice, number: int) -> Seat:
    config = node_config(hands.config, worker.node)
    tunnelled = (config.rpc or hands.config.rpc) is RpcMode.TUNNEL and worker.node.name != choice.head.name
    bind = LOOPBACK if tunnelled else worker_address(worker.node, choice.head, config.rpc_address)
    host, port = (LOOPBACK, TUNNEL_PORT + number) if tunnelled else (bind, worker.config.port)
    spec = await _worker_spec(hands, known, worker, bind) if worker.config.managed else None
    return Seat(worker, bind, host, port, spec, tunnelled)


async def _worker_spec(hands: Hands, known: Known, worker: WorkerChoice, bind: str) -> ServiceSpec:
    node, binary = worker.node, worker.binary
    if binary is None:
        raise PlanRefused(f"{node.name} has no ggml-rpc-server.", f"Install llama.cpp on {node.name}.")
    reading = node.reading
    managed = [w for w in node_config(hands.config, node).workers if w.managed]
    command = worker_command(binary, await known.flags_of(hands, node.name, binary), worker.config, bind=bind,
                             cores=reading.cpu.threads if reading else 0, workers_on_node=len(managed),
                             os=reading.os if reading else "Linux")
    return ServiceSpec(id=f"worker-{worker.config.port}", kind=ServiceKind.WORKER, argv=command.argv, env=command.env,
                       port=worker.config.port, bind=bind, build=build_label(binary), fleet=hands.config.fleet,
                       facts={"env": digest_of(command.env)}, log_limit=hands.config.log_limit)


def digest_of(env: Mapping[str, str]) -> str:
    """Equal for equal environments; what they hold may be secret, and is not told."""
    return hashlib.sha256(json.dumps(sorted(env.items())).encode()).hexdigest()


# ---------------------------------------------------------------------------------------------
# Checks


def _check_fits(hands: Hands, arrangement: Arrangement) -> None:
    """Refuse what cannot fit, by what the probes saw: how it is dealt is decided when the workers have answered."""
    split, gpu_layers = arrangement.choice.model.split, arrangement.choice.model.gpu_layers
    if not arrangement.seats or gpu_layers == 0:
        return
    rooms = []
    for seat in arrangement.seats:
        node, config = seat.choice.node, node_config(hands.config, seat.choice.node)
        here = [other for other in arrangement.seats if other.choice.node.name == node.name]
        for name, free in expected_rooms(node, config.vram, seat.choice.config.devices, sharing=len(here)):
            weight = split.get(node.name, 0.0 if split else None)
            rooms.append(Room(name, node.name, seat.endpoint, free, weight))
    rooms += [Room(device.name, arrangement.head_node, "", arrangement.head.vram.get(device.name, device.memory_free),
                   split.get(arrangement.head_node, 0.0) if split else None) for device in arrangement.local_devices]
    plan_shares(arrangement.header, rooms, gpu_layers=gpu_layers, head=arrangement.head_node)


async def _check_head_port(hands: Hands, arrangement: Arrangement) -> None:
    node = node_of(hands, arrangement.head_node)
    config = arrangement.head_config
    _refuse_stranger(hands, node, config.port, config.bind, "the head", arrangement.head_service)


def _refuse_stranger(hands: Hands, node: Node, port: int, bind: str, part: str, service: str) -> None:
    """Refuse a port that somebody else listens on, and a service of another fleet in the place of ours."""
    record = record_of(node, service)
    ours = record is not None and record.alive
    if record is not None and ours and record.fleet not in ("", hands.config.fleet):
        raise PlanRefused(f"Port {port} on {node.name}, wanted for {part}, is in use by {record.id} of the fleet "
                          f"“{record.fleet}”.", "Tear that one down, or set another `port:` in fleet.yaml.",
                          code="other-fleet")
    for listener in _in_the_way(node, port, bind):
        if record is not None and ours and listener.pid in (None, record.pid):
            continue
        raise PlanRefused(f"Port {port} on {node.name}, wanted for {part}, is taken by {_owner(node, listener)}.",
                          "End or adopt it there, or set another `port:` in fleet.yaml.", code="port-taken")


def _in_the_way(node: Node, port: int, bind: str) -> list[Socket]:
    """Sockets that keep a service from listening on `bind`; one on another address does not."""
    every = ("0.0.0.0", "::", "*", "")
    return [s for s in (node.reading.sockets if node.reading else ()) if s.listening and s.local_port == port
            and (s.local_host == bind or s.local_host in every or bind in every)]


def _owner(node: Node, listener: Socket) -> str:
    if listener.pid is None:
        return "a process that belongs to another user"
    process = next((f.process for f in node.foreign if f.process.pid == listener.pid), None)
    name = process.argv[0].rpartition("/")[2] if process and process.argv else listener.program or "a process"
    return f"{name} (pid {listener.pid})"


def record_of(node: Node, service: str) -> ServiceRecord | None:
    """What the node's pid files say of a service."""
    return next((r for r in node.reading.services if r.id == service), None) if node.reading else None


async def _check_seat(hands: Hands, known: Known, arrangement: Arrangement, seat: Seat) -> None:
    worker, node = seat.choice, node_of(hands, seat.choice.node.name)
    sockets = node.reading.sockets if node.reading else ()
    if seat.spec is not None:
        _refuse_stranger(hands, node, worker.config.port, seat.bind, "a worker", seat.service)
        await _check_build(hands, known, arrangement.choice, worker)
    elif not any(s.listening and s.local_port == worker.config.port for s in sockets):
        raise PlanRefused(f"Nothing listens on {node.name}, port {worker.config.port}: the worker there is dead.",
                          "Start it, leave it out, or let Quarterdeck start it (`managed: true`).", code="dead-worker")
    held = occupant(sockets, worker.config.port)
    if held is not None and not _held_by_our_head(hands, arrangement, seat):
        raise PlanRefused(f"The worker on {node.name}, port {worker.config.port}, is occupied: {held.describe()}. "
                          "It serves one head at a time, and a second one would wait for ever.",
                          "End that head first, or leave this worker out.", code="occupied")
    if seat.spec is None and held is None:
        await _check_protocol(hands, known, arrangement.choice, seat)


def _held_by_our_head(hands: Hands, arrangement: Arrangement, seat: Seat) -> bool:
    """Whether the head that holds this worker is the one that this bring-up replaces."""
    record = record_of(node_of(hands, arrangement.head_node), arrangement.head_service)
    deployment = hands.snapshot().deployment
    records = [record] if record and record.alive else []
    if deployment.head and (old := record_of(node_of(hands, deployment.head), deployment.head_service)) and old.alive:
        records.append(old)
    return any(worker.node == seat.choice.node.name and worker.endpoint.endswith(f":{seat.dial_port}")
               for record in records for worker in head_facts(record.facts).workers)


async def _check_build(hands: Hands, known: Known, choice: Choice, worker: WorkerChoice) -> None:
    """Head and worker must be of one build; where that cannot be read, of one RPC protocol."""
    binary = worker.binary
    if binary is None:
        return
    same = same_build(choice.head_binary, binary)
    if same:
        return
    if same is False:
        raise PlanRefused(
            f"{worker.node.name} has llama.cpp {build_label(binary)}, the head {choice.head.name} has "
            f"{build_label(choice.head_binary)}: head and workers must be of one build.",
            "Install the same build on both, or name its folder as `llama:`.", code="build-mismatch")
    ours = await _head_protocol(hands, known, choice)
    theirs = await known.protocol_of(hands, worker.node.name, binary)
    _refuse_protocol(choice, worker, ours, theirs)


async def _check_protocol(hands: Hands, known: Known, choice: Choice, seat: Seat) -> None:
    """A worker that somebody else runs: ask it, now that its slot is free."""
    head = hands.transport(choice.head.name)
    answer = await ask_worker(lambda: head.open_connection(seat.dial_host, seat.dial_port), timeout=WIRE_TIMEOUT)
    if answer.status is not WorkerStatus.OK or answer.version is None:
        raise PlanRefused(f"The worker on {seat.choice.where} cannot be used by {choice.head.name}: {answer.detail}",
                          "Check its address and port, and what runs there.", code="bad-worker")
    _refuse_protocol(choice, seat.choice, await _head_protocol(hands, known, choice), answer.version)


def _refuse_protocol(choice: Choice, worker: WorkerChoice, ours: tuple[int, int, int],
                     theirs: tuple[int, int, int]) -> None:
    if not compatible(ours, theirs):
        raise PlanRefused(
            f"The worker on {worker.where} speaks RPC protocol {_dotted(theirs)}, the head on {choice.head.name} "
            f"{_dotted(ours)}: they do not understand each other.",
            "Use the same llama.cpp build on both.", code="protocol-mismatch")


async def _head_protocol(hands: Hands, known: Known, choice: Choice) -> tuple[int, int, int]:
    """What the head's build speaks, learned from the worker program that lies beside it."""
    reading = choice.head.reading
    beside = [b for b in (reading.binaries if reading else ()) if b.program == "ggml-rpc-server"
              and (b.folder == choice.head_binary.folder or same_build(b, choice.head_binary))]
    if not beside:
        raise PlanRefused(f"Which RPC protocol the head on {choice.head.name} speaks cannot be told: no "
                          "ggml-rpc-server lies beside its llama-server.", "Install the whole of llama.cpp there.",
                          code="no-protocol")
    return await known.protocol_of(hands, choice.head.name, beside[0])


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


