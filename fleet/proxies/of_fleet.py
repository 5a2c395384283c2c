"""What a proxy is told of the fleet: the servers behind it, which of them are lost, and what could be served. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fleet.config.schema import FleetConfig, RecoverPolicy
from fleet.errors import PlanRefused
from fleet.facts import head_facts
from fleet.model import Deployment, DeploymentState, OperationState, ServiceRecord, Snapshot
from fleet.planning.choose import known_files
from fleet.proxies.ways import way_to_head
from fleet.proxy.exchange import BackendKind, UpstreamSettings
from fleet.speculation.settings import SpeculationSettings

LOST = ("worker-dead", "worker-unseen", "worker-detached", "head-stuck", "head-unseen")
MOST_MODELS = 5_000
UNDER_WAY = (OperationState.PLANNED, OperationState.RUNNING)


@dataclass(frozen=True, slots=True)
class OfFleet:
    """What a proxy is told."""

    upstreams: tuple[UpstreamSettings, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    catalogue: dict[str, bool] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    waits: bool = False              # what is lost, or not there, is being brought up: clients may wait for it
    unreachable: str = ""            # why what serves cannot be reached from the proxy


def of_fleet(snapshot: Snapshot, config: FleetConfig, proxy_node: str, key: str = "",
             speculation: SpeculationSettings | None = None) -> OfFleet:
    """What the proxy on a node is told. `key` is the API key of what serves, where it wants one."""
    catalogue = dict.fromkeys(_names(snapshot, config), config.serving.on_request)
    aliases = {alias: name for name, model in config.models.items() for alias in model.aliases}
    deployment = snapshot.deployment
    record = head_record(snapshot)
    if record is None or deployment.state in (DeploymentState.DOWN, DeploymentState.STOPPING):
        return OfFleet(catalogue=catalogue, aliases=aliases)
    try:
        url = way_to_head(snapshot.nodes, proxy_node, deployment.head, record).url
    except PlanRefused as refused:
        return OfFleet(catalogue=catalogue, aliases=aliases, unreachable=refused.what)
    if not url:
        return OfFleet(catalogue=catalogue, aliases=aliases,
                       unreachable=f"The head on {deployment.head} listens on its loopback alone, and no way leads "
                       f"there from {proxy_node}.")
    name = upstream_name(deployment)
    backend = BackendKind.VLLM if head_facts(record.facts).runtime == "vllm" else BackendKind.LLAMA_SERVER
    settings = UpstreamSettings(name, url, backend, models=(deployment.model,) if deployment.model else (), key=key,
                                speculation=speculation if backend is BackendKind.LLAMA_SERVER else None)
    problem = deployment.problem
    lost = {name: problem.what} if problem is not None and problem.code in LOST else {}
    return OfFleet((settings,), lost, catalogue, aliases)


def _names(snapshot: Snapshot, config: FleetConfig) -> list[str]:
    """Every model that could be served: another one must not answer in its place."""
    files = (file.path.rpartition("/")[2].removesuffix(".gguf") for _, file in known_files(snapshot))
    return [*config.models, *sorted(set(files))][:MOST_MODELS]


def upstream_name(deployment: Deployment) -> str:
    """What a proxy calls a head of the fleet. It stays the same when another model is served in its place."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in deployment.head)
    return f"{plain}/{deployment.head_service}"


def head_record(snapshot: Snapshot) -> ServiceRecord | None:
    """The pid file of what serves, or loads; None when nothing lives."""
    node = snapshot.nodes.get(snapshot.deployment.head)
    records = node.reading.services if node is not None and node.reading is not None else ()
    return next((r for r in records if r.id == snapshot.deployment.head_service and r.alive), None)


def kept(said: OfFleet, last: tuple[UpstreamSettings, ...], snapshot: Snapshot, config: FleetConfig) -> OfFleet:
    """`said`, with what served last for as long as that is missed: broken, or in the middle of being changed.

    Who asks for it is told what became of it, or waits where it comes back.
    """
    broken = snapshot.deployment.state is DeploymentState.BROKEN
    changing = any(operation.state in UNDER_WAY for operation in snapshot.operations)
    waits = changing or (broken and config.recover is RecoverPolicy.AUTO)
    if said.upstreams or not last or not (broken or changing):
        return replace(said, waits=waits)
    problem = snapshot.deployment.problem
    why = problem.what if broken and problem is not None else "It is being brought up."
    return replace(said, upstreams=last, lost={settings.name: why for settings in last}, waits=waits)
