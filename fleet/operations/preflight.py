"""Everything that can be known before anything is started, put together and checked.

All that is wrong is said at once. Only looking is done here; to learn which RPC protocol a build speaks its own
worker program is started for a moment on its node's loopback, when commits do not tell.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace

from fleet.config.schema import NodeConfig, RpcMode
from fleet.errors import FleetError, PlanRefused
from fleet.model import ServiceKind
from fleet.models.gguf import GgufHeader
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.arrangement import Arrangement, LocalDevice, Seat
from fleet.operations.checks import check_head_port, check_seat, head_protocol, refused_by_rules
from fleet.operations.dealing import check_fits
from fleet.operations.hands import Hands, Known
from fleet.operations.links import look_at_links
from fleet.operations.streaming import prepare_streaming
from fleet.planning.addresses import LOOPBACK, worker_address
from fleet.planning.choose import Choice, WorkerChoice, choose, node_config
from fleet.planning.planned import NO_ROOM
from fleet.runtimes.binaries import build_label
from fleet.runtimes.devices import list_devices
from fleet.runtimes.rpc_server import worker_command

TUNNEL_PORT = 50152          # the first port on the head that a tunnel listens on
WHERE_HOME = 'printf "%s\\n" "${HOME-}"'


async def arrange(hands: Hands, known: Known, wanted: str) -> Arrangement:
    """Decide everything about a bring-up and check it against fresh readings of the nodes that take part.

    Raises:
        PlanRefused: with every reason found.
    """
    first = choose(hands.snapshot(), hands.config, wanted)
    names = {first.head.name, *(worker.node.name for worker in first.workers)}
    await _all(*(hands.reread(name) for name in sorted(names)))
    choice = choose(hands.snapshot(), hands.config, wanted)
    choice, head = await at_home(hands, choice, node_config(hands.config, choice.head))
    header_and_size, flags, devices = await _all(
        _header(hands, known, choice), known.flags_of(hands, choice.head.name, choice.head_binary),
        list_devices(hands.transport(choice.head.name), choice.head_binary))
    seats = await _all(*(_seat(hands, known, choice, worker, number) for number, worker in enumerate(choice.workers)))
    header, size = header_and_size
    await look_at_links(hands, choice.head, seats)
    arrangement = Arrangement(choice, head, header, size, tuple(seats), flags, None,
                              tuple(LocalDevice(d.name, d.memory_free or 0) for d in devices))
    no_room: list[BaseException] = []
    try:
        if choice.model.experts is not None:
            arrangement.streaming = await prepare_streaming(hands, choice, head, header, flags)
        idle = () if arrangement.streaming else await asyncio.to_thread(check_fits, hands, arrangement)
        arrangement.choice = replace(choice, left_out=(*choice.left_out, *idle))
    except PlanRefused as error:
        no_room.append(error)
    checks = [check_head_port(hands, arrangement),
              *(check_seat(hands, known, arrangement, seat) for seat in arrangement.seats)]
    looked = await asyncio.gather(*checks, return_exceptions=True)
    wrong = [*(found for found in looked if isinstance(found, BaseException)), *refused_by_rules(arrangement)]
    # Settings that cannot be are told by the rules, each with its remedy; that there is no room they do not know.
    _raise_all(wrong + [error for error in no_room if not wrong or error.code == NO_ROOM])
    if arrangement.seats:
        arrangement.protocol = await head_protocol(hands, known, choice)
    return arrangement


async def at_home(hands: Hands, choice: Choice, head: NodeConfig) -> tuple[Choice, NodeConfig]:
    """The same with `~/` in paths on the head written out: llama-server knows nothing of it."""
    draft = choice.model.draft
    paths = (choice.model.file, head.head.api_key_file, draft.file if draft else "")
    if not any(path.startswith("~/") for path in paths):
        return choice, head
    found = await hands.transport(choice.head.name).run(WHERE_HOME, timeout=10.0)
    home = found.text.rstrip("\n").rstrip("/")
    if not home.startswith("/") or "\n" in home:
        raise PlanRefused(f"{choice.head.name} does not say where the home folder is that ~ stands for.",
                          "Write whole paths in fleet.yaml.", code="no-home")
    model, key_file, drafts = (f"{home}/{path[2:]}" if path.startswith("~/") else path for path in paths)
    draft = replace(draft, file=drafts) if draft else None
    return (replace(choice, model=replace(choice.model, file=model, draft=draft)),
            replace(head, head=replace(head.head, api_key_file=key_file)))


async def _all(*looks: Awaitable) -> list:
    """Wait for all; what went wrong is raised as one refusal that has every sentence."""
    results = await asyncio.gather(*looks, return_exceptions=True)
    _raise_all([result for result in results if isinstance(result, BaseException)])
    return results


def _raise_all(wrong: Sequence[BaseException]) -> None:
    for error in wrong:
        if not isinstance(error, FleetError):
            raise error
    if len(wrong) == 1:
        raise PlanRefused(wrong[0].what, wrong[0].remedy, code=wrong[0].code)
    if wrong:
        raise PlanRefused(" ".join(error.what for error in wrong),
                          " ".join(dict.fromkeys(error.remedy for error in wrong if error.remedy)), code=wrong[0].code)


async def _header(hands: Hands, known: Known, choice: Choice) -> tuple[GgufHeader, int]:
    """The header of the model, all shards together, and its size in bytes."""
    path, node = choice.model.file, choice.head.name
    header = await known.headers.model_of(hands.transport(node), path)
    if header.n_layers == 0:
        raise PlanRefused(f"{path} on {node} holds no layers: it is no model that can be served.",
                          "Name the model's own file, not its projector or vocabulary.", code="no-layers")
    if header.missing_bytes:
        raise PlanRefused(f"{path} on {node} is incomplete: {header.missing_bytes} bytes of it are missing.",
                          "Fetch it again.", code="incomplete")
    return header, header.file_size


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
