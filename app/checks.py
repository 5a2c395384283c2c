"""What `doctor` looks at: one Check a line, from a Snapshot and the configuration alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from fleet.config.schema import FleetConfig, NodeConfig
from fleet.model import (
    Binary,
    DeploymentState,
    Node,
    NodeState,
    Problem,
    ServiceKind,
    ServiceRecord,
    ServiceState,
    Severity,
    Snapshot,
)
from fleet.planning.exposure import is_public, of_running
from fleet.runtimes.binaries import build_label, same_build

SIGNED_IN = (NodeState.UP, NodeState.BROKEN)
NOT_TRIED = (NodeState.SEEN, NodeState.CONNECTING, NodeState.GONE)
FEW, NAMED = 3, 6    # machines told of one by one; names in a line about many
DEAD = (ServiceState.FAILED, ServiceState.STUCK)


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


VERDICTS = {Severity.INFO: Verdict.OK, Severity.WARNING: Verdict.WARN, Severity.ERROR: Verdict.FAIL}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    area: str            # "config", "discovery", a node's name, "builds", "deployment"
    verdict: Verdict
    what: str
    remedy: str = ""


def all_checks(snapshot: Snapshot, config: FleetConfig, *, spared: frozenset[int] = frozenset()) -> list[Check]:
    """Every check of a fleet that was read. `spared`: pids on this machine that are accounted for elsewhere."""
    checks = list(_discovery(snapshot, config))
    for node in snapshot.nodes.values():
        if not is_useless_stranger(node):
            checks += _node(node, config, spared if node.local else frozenset())
    checks += stranger_checks(snapshot)
    checks += _builds(snapshot)
    checks += _deployment(snapshot)
    return checks


def _of(area: str, problem: Problem, *, at_most: Verdict = Verdict.FAIL) -> Check:
    verdict = VERDICTS[problem.severity]
    if verdict is Verdict.FAIL:
        verdict = at_most
    return Check(area, verdict, problem.what, problem.remedy)


def _discovery(snapshot: Snapshot, config: FleetConfig) -> Iterator[Check]:
    for problem in snapshot.discovery:
        yield _of("discovery", problem, at_most=Verdict.WARN)
    if not snapshot.discovery:
        ways = [word for word, on in (("mDNS", config.discovery.mdns),
                                      (config.discovery.ssh_config_file, config.discovery.ssh_config)) if on]
        others = sum(not node.local for node in snapshot.nodes.values())
        yield Check("discovery", Verdict.OK, f"{' and '.join(ways) or 'off'}: {others} other "
                    f"machine{'s' if others != 1 else ''} known")


def is_useless_stranger(node: Node) -> bool:
    """A machine that only was found, and that cannot be used."""
    return node.problem is not None and not (node.configured or node.local)


def stranger_checks(snapshot: Snapshot) -> Iterator[Check]:
    """Of machines that only were found and cannot be used: one line for all that have the same trouble."""
    by_code: dict[str, list[Node]] = {}
    for node in filter(is_useless_stranger, snapshot.nodes.values()):
        by_code.setdefault(node.problem.code if node.problem else "", []).append(node)
    for alike in by_code.values():
        first = alike[0]
        if len(alike) <= FEW:
            for node in alike:
                yield _of(node.name, node.problem or Problem("", f"is {node.state.value}"), at_most=Verdict.WARN)
            continue
        names = ", ".join(node.name for node in alike[:NAMED]) + (" ..." if len(alike) > NAMED else "")
        problem = first.problem or Problem("", "")
        yield Check("found", Verdict.WARN, f"{len(alike)} machines are in state “{first.state.value}”: {names}",
                    f"Of {first.name}: {problem.what} {problem.remedy}".rstrip())


def _node(node: Node, config: FleetConfig, spared: frozenset[int]) -> Iterator[Check]:
    """A machine that only was found may be asleep or none of ours: that is no failure."""
    worst = Verdict.FAIL if node.configured or node.local else Verdict.WARN
    if node.state is not NodeState.UP:
        if node.problem is not None:
            yield _of(node.name, node.problem, at_most=worst)
        else:
            verdict = Verdict.WARN if node.state in NOT_TRIED else worst
            yield Check(node.name, verdict, f"is {node.state.value}")
        return
    reading = node.reading
    if reading is None:
        yield Check(node.name, Verdict.WARN, "is up, but was not read yet", "Run doctor again.")
        return
    yield Check(node.name, Verdict.OK, f"up: {reading.os} {reading.arch}, {_devices(node)}")
    for problem in reading.problems:
        yield _of(node.name, problem, at_most=worst)
    for device in reading.devices:
        for problem in device.problems:
            yield _of(node.name, problem, at_most=Verdict.WARN)
    told = {problem.code for problem in reading.problems}
    if not reading.binaries and "no-llama" not in told:
        yield Check(node.name, Verdict.WARN, "has no llama.cpp programs: it can take no part",
                    "Install llama.cpp there, or say where it is with `llama:` in fleet.yaml.")
    for program in ("llama-server", "ggml-rpc-server"):
        if found := [b for b in reading.binaries if b.program == program]:
            yield Check(node.name, Verdict.OK, f"{program} {build_label(found[0])} in {found[0].folder}")
    if reading.state_folder:
        yield Check(node.name, Verdict.OK, f"keeps its state in {reading.state_folder}")
    elif not any(code.startswith("state") or "writ" in code for code in told):
        yield Check(node.name, worst, "has no folder that services could keep their state in",
                    "Make one writable, or name one with `state_dir:` in fleet.yaml.")
    yield from _ports(node, config.nodes.get(node.name, NodeConfig(node.name)), spared)
    yield from _processes(node, spared)


def _devices(node: Node) -> str:
    reading = node.reading
    names = [device.name for device in reading.devices] if reading else []
    return ", ".join(names) or "no device that llama.cpp could use"


def _ports(node: Node, config: NodeConfig, spared: frozenset[int]) -> Iterator[Check]:
    """Is somebody else where our services will want to listen? Engines are told of with the processes."""
    reading = node.reading
    if reading is None:
        return
    ours = {service.record.port for service in node.services if service.record.alive}
    ours |= {foreign.port for foreign in node.foreign if foreign.port is not None and foreign.kind is not None}
    ours |= {socket.local_port for socket in reading.sockets if socket.pid in spared}
    wanted = {config.head.port: "the head's port", **{w.port: "a worker's port" for w in config.workers if w.managed}}
    for port, whose in wanted.items():
        taken = next((s for s in reading.sockets if s.listening and s.local_port == port), None)
        if taken is not None and port not in ours:
            who = taken.program or "another program"
            pid = f" (pid {taken.pid})" if taken.pid else ""
            yield Check(node.name, Verdict.WARN, f"{who}{pid} listens on {port}, {whose}",
                        "End it, adopt it in the cockpit, or give fleet.yaml another port.")


def _processes(node: Node, spared: frozenset[int]) -> Iterator[Check]:
    for service in node.services:
        yield from _exposed(node.name, service.record)
        if service.state in DEAD:
            problem = service.problem or Problem("dead", f"{service.record.id} is {service.state.value}")
            yield Check(node.name, Verdict.FAIL, problem.what,
                        problem.remedy or f"See `quarterdeck logs {node.name} {service.record.id}`, then bring it up.")
    for foreign in node.foreign:
        if foreign.kind is None or foreign.process.pid in spared:
            continue
        program = foreign.process.argv[0].rpartition("/")[2] if foreign.process.argv else "a process"
        port = f" on port {foreign.port}" if foreign.port else ""
        yield Check(node.name, Verdict.WARN,
                    f"{program} (pid {foreign.process.pid}){port} was not started by this fleet",
                    "Adopt or end it in the cockpit, or leave it.")


def _exposed(node: str, record: ServiceRecord) -> Iterator[Check]:
    """What others reach without a key. That workers know none is how llama.cpp is; on a public address it is wrong."""
    what, remedy = of_running(node, record)
    if what:
        fine = record.kind is ServiceKind.WORKER and not is_public(record.bind)
        yield Check(node, Verdict.OK if fine else Verdict.WARN, f"{what} {remedy}" if fine else what, remedy)


def _builds(snapshot: Snapshot) -> Iterator[Check]:
    """Head and workers must come from one llama.cpp."""
    found: list[tuple[str, Binary]] = []
    for node in snapshot.nodes.values():
        if node.reading and (server := next((b for b in node.reading.binaries if b.program == "llama-server"), None)):
            found.append((node.name, server))
    if len(found) < 2:
        return
    first = found[0]
    differing = [entry for entry in found[1:] if same_build(first[1], entry[1]) is False]
    if differing:
        labels = ", ".join(f"{name} {build_label(binary)}" for name, binary in (first, *differing))
        yield Check("builds", Verdict.WARN, f"the nodes have different builds of llama.cpp: {labels}",
                    "A head can only use workers of its own build: install one build everywhere.")
    else:
        yield Check("builds", Verdict.OK, f"{len(found)} nodes have {build_label(first[1])}")


def _deployment(snapshot: Snapshot) -> Iterator[Check]:
    deployment = snapshot.deployment
    bad = deployment.state in (DeploymentState.BROKEN, DeploymentState.DEGRADED)
    if bad:
        problem = deployment.problem
        yield Check("deployment", Verdict.FAIL, problem.what if problem else f"is {deployment.state.value}",
                    problem.remedy if problem else "Bring the model up again.")
    elif deployment.state is DeploymentState.DOWN:
        yield Check("deployment", Verdict.OK, "nothing is up")
    else:
        yield Check("deployment", Verdict.OK, f"{deployment.model or 'a model'} is {deployment.state.value}")
