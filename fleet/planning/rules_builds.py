"""Rules about builds and protocols. Each function finds what stands against one row of `rules.RULES`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleet.planning.situation import Level, Place, Runtime, Situation, Version
from fleet.runtimes.binaries import build_label, same_build
from fleet.runtimes.rpc_wire import compatible

Found = Iterator[tuple[Level, str, str]]


def one_build(situation: Situation) -> Found:
    """Commits that differ refuse; what cannot be told warns, since the protocol alone is then compared."""
    head = situation.head
    for worker in situation.workers:
        if head.binary is None:
            return
        if worker.binary is None:
            if not worker.managed:
                yield (Level.WARNING, f"The build of the worker on {worker.where}, which somebody else runs, cannot be "
                       f"told; its RPC protocol is all that is compared with {head.node}.",
                       "After an update of llama.cpp restart it before the head.")
            continue
        same = same_build(head.binary, worker.binary)
        program = "vLLM" if situation.runtime is Runtime.VLLM else "llama.cpp"
        if same is False:
            yield (Level.REFUSAL, f"{worker.node} has {program} {build_label(worker.binary)}, the head {head.node} has "
                   f"{build_label(head.binary)}: head and workers must be of one build.", _same(program))
        elif same is None and _speak_alike(situation, worker):
            yield (Level.WARNING, f"Whether {worker.node} and {head.node} have the same {program} cannot be told: "
                   f"{_unknown(head, worker)} not say which commit was built.", _same(program))


def _same(program: str) -> str:
    if program == "vLLM":
        return "Install the same version on both."
    return "Install the same build on both, or name its folder as `llama:`."


def _speak_alike(situation: Situation, worker: Place) -> bool:
    """Whether nothing worse is said of the worker by another rule."""
    theirs, ours = worker.protocol, situation.head.protocol
    return theirs is None or ours is None or ours == theirs


def _unknown(head: Place, worker: Place) -> str:
    silent = [place.node for place in (head, worker) if place.binary is not None and not place.binary.commit]
    return f"the programs on {' and '.join(dict.fromkeys(silent))} do" if silent else "their programs do"


def one_protocol(situation: Situation) -> Found:
    """Before start: after it, an old head serves alone and says that all is well."""
    for worker, ours, theirs in _protocols(situation):
        if not compatible(ours, theirs):
            yield (Level.REFUSAL, f"The worker on {worker.where} speaks RPC protocol {dotted(theirs)}, the head on "
                   f"{situation.head.node} {dotted(ours)}: they do not understand each other.",
                   "Use the same llama.cpp build on both.")


def one_patch(situation: Situation) -> Found:
    """The patch number moves when operations are added: a graph would be read with other operations in it."""
    for worker, ours, theirs in _protocols(situation):
        if compatible(ours, theirs) and ours != theirs:
            yield (Level.REFUSAL, f"The worker on {worker.where} speaks RPC protocol {dotted(theirs)}, the head on "
                   f"{situation.head.node} {dotted(ours)}: they would shake hands, and may then number operations "
                   "differently.", "Use the same llama.cpp build on both.")


def _protocols(situation: Situation) -> Iterator[tuple[Place, Version, Version]]:
    ours = situation.head.protocol
    for worker in situation.workers:
        if ours is not None and worker.protocol is not None:
            yield worker, ours, worker.protocol


def worker_first(situation: Situation) -> Found:
    """What runs was started from a program that has been replaced since."""
    for worker in situation.workers:
        if not (worker.managed and worker.running_build and worker.binary):
            continue
        now = build_label(worker.binary)
        if worker.running_build != now:
            yield (Level.WARNING, f"The worker on {worker.where} runs {worker.running_build}, the program there is "
                   f"{now} now: it is started anew before the head.", "")


def dotted(version: Sequence[int]) -> str:
    """A version for people: "4.0.3"."""
    return ".".join(map(str, version))
