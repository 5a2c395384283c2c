"""What speaks against a bring-up: no room, ports of others, occupied or dead workers.

Each check looks and raises a `PlanRefused`; nothing is started by them. What they learn of builds and protocols is
judged afterwards, by the compatibility rules.
"""

from __future__ import annotations

from fleet.errors import PlanRefused
from fleet.facts import head_facts
from fleet.model import Node, NodeState, Process, Socket
from fleet.operations.arrangement import Arrangement, Seat
from fleet.operations.deaths import LOST
from fleet.operations.hands import Hands, Known, node_of, record_of
from fleet.operations.situation import situation_of
from fleet.planning.addresses import LOOPBACK, has_address
from fleet.planning.choose import Choice
from fleet.planning.rules import judge, refusals
from fleet.runtimes.binaries import same_build
from fleet.runtimes.rpc_wire import Occupant, WorkerStatus, ask_worker, occupant

WIRE_TIMEOUT = 5.0


async def check_head_port(hands: Hands, arrangement: Arrangement) -> None:
    """Refuse a port of the head that somebody else has."""
    node = node_of(hands, arrangement.head_node)
    config = arrangement.head_config
    refuse_stranger(hands, node, config.port, config.bind, "the head", arrangement.head_service)


def refuse_stranger(hands: Hands, node: Node, port: int, bind: str, part: str, service: str, *,
                    children: bool = False) -> None:
    """Refuse a port that somebody else listens on, and a service of another fleet in the place of ours.

    With `children` also a child of the service may listen there: vLLM's ranks are processes of their own.
    """
    record = record_of(node, service)
    ours = record is not None and record.alive
    if record is not None and ours and record.fleet not in ("", hands.config.fleet):
        raise PlanRefused(f"Port {port} on {node.name}, wanted for {part}, is in use by {record.id} of the fleet "
                          f"“{record.fleet}”.",
                          f"End it with `quarterdeck stop {node.name} {record.id}`, or set another `port:` in "
                          "fleet.yaml.", code="other-fleet")
    for listener in _in_the_way(node, port, bind):
        if record is not None and ours and (children or listener.pid in (None, record.pid)):
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


async def check_seat(hands: Hands, known: Known, arrangement: Arrangement, seat: Seat) -> None:
    """Refuse a worker that cannot be started or used; one that a head which is gone still holds is noted."""
    worker, node = seat.choice, node_of(hands, seat.choice.node.name)
    sockets = node.reading.sockets if node.reading else ()
    if seat.spec is not None:
        refuse_stranger(hands, node, worker.config.port, seat.bind, "a worker", seat.service)
        await _ask_builds(hands, known, arrangement, seat)
    elif not any(s.listening and s.local_port == worker.config.port for s in sockets):
        raise PlanRefused(f"Nothing listens on {node.name}, port {worker.config.port}: the worker there is dead.",
                          "Start it, leave it out, or let Quarterdeck start it (`managed: true`).", code="dead-worker")
    held = occupant(sockets, worker.config.port)
    if held is not None and not _held_by_our_head(hands, arrangement, seat):
        if await _is_left_over(hands, seat, held):
            arrangement.left_over.add(seat.endpoint)
            return
        raise PlanRefused(f"The worker on {node.name}, port {worker.config.port}, is occupied: {held.describe()}. "
                          "It serves one head at a time, and a second one would wait for ever.",
                          "End that head first, or leave this worker out.", code="occupied")
    if seat.spec is None and held is None:
        await _ask_running(hands, known, arrangement, seat)


def _held_by_our_head(hands: Hands, arrangement: Arrangement, seat: Seat) -> bool:
    """Whether the head that holds this worker is the one that this bring-up replaces."""
    record = record_of(node_of(hands, arrangement.head_node), arrangement.head_service)
    deployment = hands.snapshot().deployment
    records = [record] if record and record.alive else []
    there = hands.snapshot().nodes.get(deployment.head)
    if there and there.state not in LOST and (old := record_of(there, deployment.head_service)) and old.alive:
        records.append(old)
    return any(worker.node == seat.choice.node.name and worker.endpoint.endswith(f":{seat.dial_port}")
               for record in records for worker in head_facts(record.facts).workers)


async def _is_left_over(hands: Hands, seat: Seat, held: Occupant) -> bool:
    """Whether a worker of ours is held by a connection whose other end is gone.

    A machine that lost its power says no goodbye, and a worker waits for its client for ever. Its node being back,
    no head runs there; while it is away, the pid file that we last saw says that the head was ours.
    """
    record = record_of(node_of(hands, seat.choice.node.name), seat.service)
    host = held.holder.rpartition(":")[0]
    peer = next((node for node in hands.snapshot().nodes.values() if has_address(node, host)), None)
    if seat.spec is None or record is None or not record.alive or peer is None or host == LOOPBACK:
        return False
    if peer.state is NodeState.UP:
        reading = await hands.reread(peer.name)
        return all(process.is_zombie or _is_worker(process) for process in reading.processes)
    records = peer.reading.services if peer.reading else ()
    return any(worker.node == seat.choice.node.name and worker.service == seat.service for head in records
               if head.fleet in ("", hands.config.fleet) for worker in head_facts(head.facts).workers)


def _is_worker(process: Process) -> bool:
    return bool(process.argv) and process.argv[0].rpartition("/")[2] in ("ggml-rpc-server", "rpc-server")


async def _ask_builds(hands: Hands, known: Known, arrangement: Arrangement, seat: Seat) -> None:
    """Where commits do not tell whether head and worker are of one build, what each speaks is found out."""
    choice, binary = arrangement.choice, seat.choice.binary
    if binary is None or same_build(choice.head_binary, binary) is not None:
        return
    arrangement.protocol = await head_protocol(hands, known, choice)
    arrangement.spoken[seat.endpoint] = await known.protocol_of(hands, seat.choice.node.name, binary)


async def _ask_running(hands: Hands, known: Known, arrangement: Arrangement, seat: Seat) -> None:
    """A worker that somebody else runs: ask it, now that its slot is free."""
    choice = arrangement.choice
    head = hands.transport(choice.head.name)
    answer = await ask_worker(lambda: head.open_connection(seat.dial_host, seat.dial_port), timeout=WIRE_TIMEOUT)
    if answer.status is not WorkerStatus.OK or answer.version is None:
        raise PlanRefused(f"The worker on {seat.choice.where} cannot be used by {choice.head.name}: {answer.detail}",
                          "Check its address and port, and what runs there.", code="bad-worker")
    arrangement.protocol = await head_protocol(hands, known, choice)
    arrangement.spoken[seat.endpoint] = answer.version


def refused_by_rules(arrangement: Arrangement) -> list[PlanRefused]:
    """What the compatibility rules have against it; all that they say is kept for the plan's remarks."""
    arrangement.verdicts = judge(situation_of(arrangement))
    return [PlanRefused(verdict.sentence, verdict.remedy, code=verdict.rule)
            for verdict in refusals(arrangement.verdicts)]


async def head_protocol(hands: Hands, known: Known, choice: Choice) -> tuple[int, int, int]:
    """What the head's build speaks, learned from the worker program that lies beside it."""
    reading = choice.head.reading
    beside = [b for b in (reading.binaries if reading else ()) if b.program == "ggml-rpc-server"
              and (b.folder == choice.head_binary.folder or same_build(b, choice.head_binary))]
    if not beside:
        raise PlanRefused(f"Which RPC protocol the head on {choice.head.name} speaks cannot be told: no "
                          "ggml-rpc-server lies beside its llama-server.", "Install the whole of llama.cpp there.",
                          code="no-protocol")
    return await known.protocol_of(hands, choice.head.name, beside[0])
