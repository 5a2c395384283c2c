"""Rules about devices and how a model is dealt to them. Each function finds what stands against one row."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.model import DeviceKind
from fleet.planning.situation import Level, Runtime, Situation
from fleet.runtimes.llama_server import MOST_SHARES

NO_STATES_APART = 10068            # the newest build that was seen to fail
Found = Iterator[tuple[Level, str, str]]
_MAKERS = {DeviceKind.CUDA: "NVIDIA", DeviceKind.ROCM: "AMD", DeviceKind.METAL: "Apple"}   # Vulkan drives any


def one_vendor(situation: Situation) -> Found:
    """In one process; for vLLM also between machines, since all stages talk through one library."""
    vllm = situation.runtime is Runtime.VLLM
    for place in (situation.head, *situation.workers):
        makers = _makers(place.vendors)
        if len(makers) > 1:
            yield (Level.REFUSAL if vllm else Level.WARNING,
                   f"{place.where} would use GPUs of {' and '.join(makers)} in one process.",
                   "Use the GPUs of one vendor there." if vllm else
                   "Give each vendor's GPUs a worker of their own, with `devices:`.")
    everywhere = _makers(tuple(kind for place in (situation.head, *situation.workers) for kind in place.vendors))
    if vllm and len(everywhere) > 1:
        yield (Level.REFUSAL, f"The stages would be on GPUs of {' and '.join(everywhere)}, and their libraries do not "
               "talk to each other.", "Take machines of one vendor, or llama.cpp as the runtime.")


def _makers(kinds: tuple[DeviceKind, ...]) -> list[str]:
    return list(dict.fromkeys(_MAKERS[kind] for kind in kinds if kind in _MAKERS))


def layers_only(situation: Situation) -> Found:
    """Within one machine the other ways are the user's choice."""
    if situation.workers and situation.split_mode in ("row", "tensor"):
        yield (Level.REFUSAL, f"-sm {situation.split_mode} cuts through every layer, and cannot be used with workers.",
               "Leave -sm out: layers are then dealt whole.")


def few_devices(situation: Situation) -> Found:
    """Remote and local GPUs together; the CPU is the sixteenth."""
    count = situation.local_devices + sum(worker.devices for worker in situation.workers)
    if count > MOST_SHARES:
        yield (Level.REFUSAL, f"{count} devices are more than llama.cpp can split over: {MOST_SHARES}.",
               "Name fewer workers, or fewer devices of each with `devices:`.")


def few_shares(situation: Situation) -> Found:
    """A value for each device, also for those that get nothing."""
    if situation.shares > MOST_SHARES:
        yield (Level.REFUSAL, f"{situation.shares} shares are more than a tensor split may have: {MOST_SHARES}.",
               "Name fewer devices.")


def states_together(situation: Situation) -> Found:
    """Refused for builds that were seen to fail, said of those that nobody tried."""
    if not situation.model.scanned or len(situation.workers) < 2:
        return
    build = situation.head.binary.build if situation.head.binary else None
    known = build is not None and build <= NO_STATES_APART
    yield (Level.REFUSAL if known else Level.WARNING,
           f"The states of a {situation.model.architecture or 'mamba'} model would be on {len(situation.workers)} "
           f"workers, which llama.cpp {f'b{build} cannot load' if known else f'up to b{NO_STATES_APART} cannot load'}.",
           "Name one worker (`workers:`), or keep the model on one machine.")


def no_bubble(situation: Situation) -> Found:
    """Only where one request at a time was asked for: with more it is the traffic that decides."""
    parts = len({situation.head.node, *(worker.node for worker in situation.workers)})
    if situation.slots == 1 and situation.remote:
        yield (Level.WARNING, f"With one request at a time each of the {parts} machines waits while the others work: "
               "more machines hold more, they do not make it faster.",
               "Allow several requests at once (`slots:`), or use one machine where the model fits.")
