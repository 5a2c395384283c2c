"""Which model should be served now, by who waits for what: swap on request, and an end to what nobody uses. Pure.

Rules: a model that loads is never disturbed; one that is pinned never goes; what serves stays for a while (`least`),
so that two clients who want two models do not make the fleet load all day; as long as it has work it may finish that
up to the `patience` of who waits; of several models that are waited for, the highest priority comes first, then the
longest wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet.config.schema import FleetConfig, ModelConfig
from fleet.model import DeploymentState, OperationState, Snapshot

UNDER_WAY = (OperationState.PLANNED, OperationState.RUNNING)
ALIVE = (DeploymentState.SERVING, DeploymentState.DEGRADED)
AGAIN_AFTER = 60.0     # seconds before a model whose bring-up failed is tried again for whoever still asks for it

Wanted = Mapping[str, tuple[int, float]]      # model: how many requests wait, and for how many seconds the oldest has


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered between two decisions. Times are of the engine's clock."""

    model: str = ""                       # that serves
    since: float = 0.0                    # since when
    used: float = 0.0                     # when it last had a request
    failed: tuple[tuple[str, float], ...] = ()      # models that could not be brought up, and when


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do: swap to `model`, end what serves (`unload`), or nothing."""

    memory: Memory
    model: str = ""
    unload: bool = False
    sentence: str = ""
    wait: float | None = None             # seconds after which to look again


def decide(memory: Memory, snapshot: Snapshot, config: FleetConfig, wanted: Wanted, now: float) -> Decision:
    """What to do as things stand."""
    deployment, serving = snapshot.deployment, config.serving
    busy = _busy(snapshot)
    if deployment.model != memory.model or deployment.state is DeploymentState.DOWN:
        memory = replace(memory, model=deployment.model, since=now, used=now)
    elif busy or deployment.state not in ALIVE:
        memory = replace(memory, used=now)
    memory = replace(memory, failed=tuple(f for f in memory.failed if now - f[1] < AGAIN_AFTER))
    if any(operation.state in UNDER_WAY for operation in snapshot.operations):
        return Decision(memory)
    if deployment.state not in (*ALIVE, DeploymentState.DOWN):
        return Decision(memory)           # it loads, or is broken: recovery's affair
    if serving.on_request and (asked := _first(wanted, config, memory)):
        model, count, waited = asked
        sentence = f"{count} request{'s' if count != 1 else ''} wait for {model}."
        if deployment.state is DeploymentState.DOWN:
            return Decision(memory, model, sentence=sentence)
        if model != deployment.model and not _pinned(config, deployment.model):
            wait = max(memory.since + serving.least - now, serving.patience - waited if busy else 0.0)
            return Decision(memory, wait=wait) if wait > 0 else Decision(memory, model, sentence=sentence)
    if serving.idle and deployment.state in ALIVE and not _pinned(config, deployment.model):
        left = memory.used + serving.idle - now
        if busy or left > 0:
            return Decision(memory, wait=left if left > 0 else None)
        return Decision(memory, unload=True,
                        sentence=f"Nobody has used {deployment.model} for {serving.idle:.0f} s.")
    return Decision(memory)


def failed(memory: Memory, model: str, now: float) -> Memory:
    """A bring-up for who waits has failed: not again at once."""
    return replace(memory, failed=(*memory.failed, (model, now)))


def _first(wanted: Wanted, config: FleetConfig, memory: Memory) -> tuple[str, int, float] | None:
    given_up = {model for model, _ in memory.failed}
    able = [(model, count, waited) for model, (count, waited) in wanted.items() if count and model not in given_up]
    return min(able, key=lambda a: (-_model(config, a[0]).priority, -a[2], a[0])) if able else None


def _model(config: FleetConfig, name: str) -> ModelConfig:
    return config.models.get(name) or ModelConfig(name, "")


def _pinned(config: FleetConfig, name: str) -> bool:
    return _model(config, name).pinned


def _busy(snapshot: Snapshot) -> bool:
    """Whether what serves has work: through a proxy, or by somebody who goes to the head itself."""
    deployment = snapshot.deployment
    if any(upstream.running for proxy in snapshot.proxies for upstream in proxy.upstreams
           if deployment.model in upstream.models):
        return True
    node = snapshot.nodes.get(deployment.head)
    return any(service.slots_busy for service in (node.services if node is not None else ())
               if service.record.id == deployment.head_service)
