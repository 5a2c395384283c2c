"""A bring-up over vLLM, decided and checked: nodes, ranks, programs, addresses, and what each process is started as."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from fleet.config.schema import HeadConfig, ModelConfig, Role, RpcMode, VllmForm
from fleet.errors import FleetError, NodeError, PlanRefused
from fleet.facts import HeadFacts, WorkerRef
from fleet.model import Binary, LinkKind, Node, NodeState, ServiceKind, Share
from fleet.models.hf_config import CONFIG_LIMIT, HfShape, read_hf_config
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.checks import refuse_stranger
from fleet.operations.hands import Hands
from fleet.operations.situation import vendors_of, worse_link
from fleet.planning.addresses import LOOPBACK, worker_address
from fleet.planning.choose import may_be_head, node_config
from fleet.planning.pipeline import Pipeline, plan_pipeline
from fleet.planning.rules import judge, refusals
from fleet.planning.situation import Place, Runtime, Situation, Speculating, Verdict
from fleet.runtimes.binaries import build_label
from fleet.runtimes.command import Command
from fleet.runtimes.vllm import ServeRequest, StagePlace, ray_command, serve_command, speculation_of

FOLDER = '[ -d "$1" ]'


@dataclass(frozen=True, slots=True)
class RankSeat:
    """One node of the pipeline."""

    node: Node
    place: StagePlace
    program: Binary
    ray: Binary | None             # its Ray, in that form


@dataclass(frozen=True)
class VllmArrangement:
    """Everything that the steps of one bring-up share; what `Arrangement` is for llama.cpp."""

    model: ModelConfig
    head_config: HeadConfig
    seats: tuple[RankSeat, ...]                # the head first
    pipeline: Pipeline
    request: ServeRequest
    head_spec: ServiceSpec
    stage_specs: tuple[tuple[str, ServiceSpec], ...]     # node, spec: in the order of their start
    verdicts: tuple[Verdict, ...]
    left_out: tuple[str, ...]

    @property
    def head_node(self) -> str:
        """Name of the head's node."""
        return self.seats[0].node.name

    @property
    def head_service(self) -> str:
        """Service id of the head."""
        return self.head_spec.id

    @property
    def wish(self) -> str:
        """A digest of what is wanted: equal for a second bring-up of the same thing."""
        return str(self.head_spec.facts["wish"])


async def arrange_vllm(hands: Hands, model: ModelConfig) -> VllmArrangement:
    """Decide everything about a bring-up over vLLM and check it against fresh readings.

    Raises:
        PlanRefused: it cannot work; nothing was started.
    """
    nodes, left_out = _nodes(hands, model)
    for node in nodes:
        await hands.reread(node.name)
    nodes = [hands.snapshot().nodes[node.name] for node in nodes]
    head_config = node_config(hands.config, nodes[0]).head
    shape = await _shape(hands, nodes[0].name, model.file)
    pipeline = plan_pipeline(nodes, tensor=model.vllm.tensor_parallel, layers=model.vllm.layers,
                             n_layers=shape.n_layers, n_heads=shape.n_heads)
    seats = tuple(_seat(hands, model, nodes, rank) for rank in range(len(nodes)))
    verdicts = judge(_situation(hands, model, head_config, seats, pipeline))
    refused = [PlanRefused(verdict.sentence, verdict.remedy, code=verdict.rule) for verdict in refusals(verdicts)]
    request = _request(model, head_config, seats, pipeline)
    head, stages = _specs(hands, model, request, seats, pipeline)
    refused += await _problems(hands, model, request, seats, head)
    if refused:
        raise PlanRefused(" ".join(error.what for error in refused),
                          " ".join(dict.fromkeys(error.remedy for error in refused if error.remedy)),
                          code=refused[0].code)
    return VllmArrangement(model, head_config, seats, pipeline, request, head, stages, verdicts, tuple(left_out))


# ---------------------------------------------------------------------------------------------
# Nodes and programs


def _nodes(hands: Hands, model: ModelConfig) -> tuple[list[Node], list[str]]:
    """The head, then the others in the order of `workers:`; sentences about who takes no part."""
    snapshot, config = hands.snapshot(), hands.config
    left_out: list[str] = []
    able = [node for node in snapshot.nodes.values() if node.state is NodeState.UP and node.reading is not None
            and (node.configured or not config.nodes)]
    if model.head:
        head = _usable(hands, model.head, "the head")
    else:
        heads = [node for node in able if may_be_head(config, node) and _program(node, model)]
        if not heads:
            raise PlanRefused("No node that is up and may be a head has vLLM.",
                              "Install vLLM on one, or say where it is with `program:` under `vllm:`.", code="no-vllm")
        head = max(heads, key=lambda node: (node.local, node.name))
    if model.workers is not None:
        others = [_usable(hands, name, "a stage") for name in model.workers if name != head.name]
    else:
        others = []
        for node in able:
            if node.name == head.name or Role.WORKER not in node_config(config, node).roles:
                continue
            if _program(node, model) is None:
                left_out.append(f"{node.name} takes no part: it has no vLLM.")
                continue
            others.append(node)
    tunnelled = [node.name for node in others if (node_config(config, node).rpc or config.rpc) is RpcMode.TUNNEL]
    if tunnelled:
        raise PlanRefused(f"{', '.join(tunnelled)} is to be reached by a tunnel, and vLLM's processes open many ports "
                          "to each other that no tunnel carries.",
                          "Say `rpc: direct` for it, in a network that is yours alone.", code="tunnel")
    return [head, *others], left_out


def _usable(hands: Hands, name: str, part: str) -> Node:
    node = hands.snapshot().nodes.get(name)
    if node is None:
        raise PlanRefused(f"{name} is to be {part}, but no node has that name.", "`quarterdeck nodes` lists them.")
    if node.state is not NodeState.UP or node.reading is None:
        raise PlanRefused(f"{name} is to be {part}, but it is {node.state.value}.", "Bring it up, or leave it out.")
    return node


def _program(node: Node, model: ModelConfig) -> Binary | None:
    """vLLM on a node: where fleet.yaml says, else as the probe found it."""
    found = [b for b in (node.reading.binaries if node.reading else ()) if b.program == "vllm"]
    if model.vllm.program:
        return next((b for b in found if b.path == model.vllm.program), Binary(model.vllm.program, "vllm"))
    return found[0] if found else None


def _seat(hands: Hands, model: ModelConfig, nodes: list[Node], rank: int) -> RankSeat:
    node, head = nodes[rank], nodes[0]
    program = _program(node, model)
    if program is None:
        raise PlanRefused(f"{node.name} has no vLLM, which is to serve {model.name}.",
                          f"Install it on {node.name}, or say where it is with `program:` under `vllm:`.",
                          code="no-vllm")
    ray = None
    if model.vllm.form is VllmForm.RAY and len(nodes) > 1:
        found = [b for b in (node.reading.binaries if node.reading else ()) if b.program == "ray"]
        ray = next((b for b in found if b.folder == program.folder), Binary(f"{program.folder}/ray", "ray"))
    config = node_config(hands.config, node)
    if len(nodes) == 1:
        address = LOOPBACK
    elif rank == 0:
        address = worker_address(head, nodes[1], config.rpc_address)
    else:
        address = worker_address(node, head, config.rpc_address)
    return RankSeat(node, StagePlace(rank, address, _interface(node, address)), program, ray)


def _interface(node: Node, address: str) -> str:
    """The interface that has the address, "" when the node does not show it."""
    return next((interface.name for interface in (node.reading.interfaces if node.reading else ())
                 if address in [text.partition("/")[0] for text in interface.addresses]), "")


# ---------------------------------------------------------------------------------------------
# What is started


def _request(model: ModelConfig, head: HeadConfig, seats: tuple[RankSeat, ...], pipeline: Pipeline) -> ServeRequest:
    return ServeRequest(
        model=model.file, name=model.name, host=head.bind, port=head.port, tensor=pipeline.tensor, stages=len(seats),
        ray=model.vllm.form is VllmForm.RAY, master=seats[0].place.address, master_port=model.vllm.master_port,
        ray_port=model.vllm.ray_port, partition=pipeline.partition, context=model.context, slots=model.slots,
        api_key_file=head.api_key_file, extra_args=(*head.extra_args, *model.extra_args),
        env={**head.env, **model.vllm.env})


def _specs(hands: Hands, model: ModelConfig, request: ServeRequest, seats: tuple[RankSeat, ...],
           pipeline: Pipeline) -> tuple[ServiceSpec, tuple[tuple[str, ServiceSpec], ...]]:
    """The head's spec and the others': with Ray its cluster comes first, on the head's node too."""
    over_ray = request.ray and request.stages > 1
    head = seats[0]
    stages: list[tuple[str, ServiceSpec]] = []
    for seat in seats if over_ray else seats[1:]:
        if over_ray:
            command = ray_command(seat.ray.path if seat.ray else "ray", request, seat.place)
            listens = request.ray_port if seat is head else 0
            spec = _spec(hands, f"ray-{request.ray_port}", ServiceKind.STAGE, command, seat.ray or seat.program,
                         port=listens, bind=seat.place.address)
        else:
            command = serve_command(seat.program.path, request, seat.place)
            spec = _spec(hands, f"stage-{request.master_port}", ServiceKind.STAGE, command, seat.program)
        stages.append((seat.node.name, spec))
    command = serve_command(head.program.path, request, head.place)
    refs = tuple(WorkerRef(node, spec.id, f"{seat_of(seats, node).place.address}:{spec.port or request.master_port}")
                 for node, spec in stages)
    planned = tuple(Share(stage.node, f"stage {stage.rank}", layers=pipeline.layers[stage.rank]
                          if pipeline.layers else None) for stage in pipeline.stages)
    facts = HeadFacts(model.name, model.file, model.context, refs, planned, api_key_file=request.api_key_file,
                      runtime="vllm")
    wish = hashlib.sha256(json.dumps([command.argv, sorted(command.env.items()), build_label(head.program),
                                      [(node, spec.argv, sorted(spec.env.items()), spec.build)
                                       for node, spec in stages]]).encode()).hexdigest()
    spec = _spec(hands, f"coordinator-{request.port}", ServiceKind.COORDINATOR, command, head.program,
                 port=request.port, bind=request.host, facts={**facts.to_json(), "wish": wish})
    return spec, tuple(stages)


def _spec(hands: Hands, id: str, kind: ServiceKind, command: Command, program: Binary, *, port: int = 0,
          bind: str = "", facts: dict[str, object] | None = None) -> ServiceSpec:
    build = build_label(program) if program.version else ""
    return ServiceSpec(id=id, kind=kind, argv=command.argv, env=command.env, port=port, bind=bind, build=build,
                       fleet=hands.config.fleet, facts=facts or {}, log_limit=hands.config.log_limit)


def seat_of(seats: tuple[RankSeat, ...], node: str) -> RankSeat:
    """The seat of a node."""
    return next(seat for seat in seats if seat.node.name == node)


# ---------------------------------------------------------------------------------------------
# What speaks against it


def _situation(hands: Hands, model: ModelConfig, head_config: HeadConfig, seats: tuple[RankSeat, ...],
               pipeline: Pipeline) -> Situation:
    head = seats[0]
    arguments = (*head_config.extra_args, *model.extra_args)
    places = [Place(seat.node.name, bind=seat.place.address, dial=seat.place.address, binary=seat.program,
                    link=LinkKind.LOOPBACK if seat is head else worse_link(seat.node, head.node, seat.place.address),
                    devices=pipeline.tensor, vendors=vendors_of(seat.node)) for seat in seats]
    first = Place(head.node.name, head_config.port, head_config.bind, binary=head.program, devices=pipeline.tensor,
                  vendors=places[0].vendors, key_file=bool(head_config.api_key_file))
    return Situation(Runtime.VLLM, first, tuple(places[1:]), slots=model.slots,
                     speculating=Speculating(speculation_of(arguments)))


async def _problems(hands: Hands, model: ModelConfig, request: ServeRequest, seats: tuple[RankSeat, ...],
                    head: ServiceSpec) -> list[PlanRefused]:
    """Ports that others have, and a model's folder that is not on every node."""
    found: list[PlanRefused] = []
    wanted = [(request.port, request.host, "the head", head.id)]
    if request.stages > 1 and request.ray:
        wanted.append((request.ray_port, seats[0].place.address, "Ray", f"ray-{request.ray_port}"))
    elif request.stages > 1:
        wanted.append((request.master_port, seats[0].place.address, "vLLM's first rank", head.id))
    for port, bind, part, service in wanted:
        try:
            refuse_stranger(hands, seats[0].node, port, bind, part, service, children=True)
        except PlanRefused as error:
            found.append(error)
    if model.file.startswith(("/", "~/")):
        for seat in seats:
            found += await _folder_missing(hands, seat.node.name, model.file)
    return found


async def _shape(hands: Hands, node: str, file: str) -> HfShape:
    """What the model's own config.json says; nothing of one that only the hub has, or that cannot be read."""
    if not file.startswith("/"):
        return HfShape()
    try:
        return read_hf_config(await hands.transport(node).read_file(f"{file}/config.json", 0, CONFIG_LIMIT))
    except NodeError:
        raise
    except FleetError:
        return HfShape()                # that the folder is not there is told by its own check


async def _folder_missing(hands: Hands, node: str, path: str) -> list[PlanRefused]:
    if path.startswith("~/"):
        return [PlanRefused(f"{path} cannot be given to vLLM, which knows nothing of ~.",
                            "Write the whole path in fleet.yaml.", code="no-home")]
    try:
        there = (await hands.transport(node).run(FOLDER, (path,), timeout=10.0)).status == 0
    except FleetError as error:
        return [PlanRefused(error.what, error.remedy, code=error.code)]
    return [] if there else [PlanRefused(
        f"{path} is no folder on {node}: every stage of vLLM reads the model from its own disk.",
        f"Copy it to {node}, or name the model as on the Hugging Face hub.", code="no-file")]
