"""Whether a draft model inside the head will pay, and how long its drafts should be. Pure.

    speed-up = E(N) * plain / (plain + (N + 1) * draft + (N + once) * extra * compute)     E(N) = 1 + a + ... + a^N

`plain` is a token's time, `compute` the part of it that is no network, `draft` the draft model's own time for a token
on its device, `a` the chance that a drafted token is right. The draft model reads what was accepted and then drafts N
tokens. A pass verifies N + 1 tokens; each of them costs `extra` of a plain pass's compute, and that there are several
once more: nearly nothing on a GPU, which waits for memory, and about a whole pass on a processor.

Measured (b10068, gemma-3-270m q4_k_m with a draft of itself in Q2_K, two workers, one thread each, quiet): a pass with
N = 2 takes 126 to 140 ms more than a plain one, with N = 4 201 to 224, at any delay; a draft token alone 15 ms, a plain
one 30 without delay. So 0.43x at 0 ms, 0.59x at 5, 0.88x at 20 (N = 2), 1.35x to 1.42x at 50 (N = 4), where the formula
has 0.48, 0.66, 0.91 and 1.36 with that draft's chance of 0.81.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.config.schema import DraftConfig
from fleet.planning.planned import Split
from fleet.planning.timing import WORKER_OVERHEAD

PROCESSOR = "CPU"
LENGTHS = (2, 3, 4, 6, 8)
EXTRA_CPU, EXTRA_GPU = 0.85, 0.03      # of a plain pass's compute, for each token more that is verified
ONCE = 1.2                             # such tokens that a pass with several is worth besides
CHANCE = 0.75                          # of a drafted token, before any was seen: a model of the same family
WORTH = 1.1                            # speed-up below which memory and another process are not given for it


@dataclass(frozen=True, slots=True)
class Drafting:
    """What is expected of a draft model in the head."""

    length: int                        # tokens: --spec-draft-n-max
    speed_up: float                    # over the target alone
    pays: bool
    reason: str                        # a sentence


def native_drafting(plain: float, network: float, draft: float, *, on_gpu: bool = False, chance: float = CHANCE,
                    lengths: Sequence[int] = LENGTHS) -> Drafting:
    """The best length, and whether it is worth it.

    Args:
        plain: seconds of a token of the target alone (`timing.predict`, or measured).
        network: seconds of them that are round trips to workers.
        draft: seconds of a token of the draft model, with the round trip where its device is a worker's.
        on_gpu: the target computes on GPUs.
        chance: that a drafted token is right: measured where it was.
        lengths: of drafts that are in question, tokens.
    """
    extra = (EXTRA_GPU if on_gpu else EXTRA_CPU) * max(0.0, plain - network)

    def speed_up(length: int) -> float:
        drafting = (length + 1) * draft + (length + ONCE) * extra
        return sum(chance**k for k in range(length + 1)) * plain / (plain + drafting)

    found = {length: speed_up(length) for length in lengths} if plain > 0 else {lengths[0]: 0.0}
    length = max(found, key=lambda n: found[n])
    pays = found[length] >= WORTH
    return Drafting(length, found[length], pays, (
        f"With drafts of {length} tokens of which {chance:.0%} are right {'it' if pays else 'the head'} would write at "
        f"{found[length]:.2f}x of its speed alone: a token takes {plain * 1000:.0f} ms, {network * 1000:.0f} of them "
        f"on the network, a drafted one {draft * 1000:.0f} ms."))


def network_of(split: Split) -> float:
    """Seconds of a token of the target alone that are its workers' links."""
    return sum(h.room.link.round_trip + WORKER_OVERHEAD
               + (h.sends / h.room.link.bytes_per_second if h.room.link.bytes_per_second > 0 else 0.0)
               for h in split.used if h.room.link is not None)


def expected_of(split: Split, draft: DraftConfig, size: int) -> Drafting | None:
    """What a draft model of that many bytes is expected to do for a split; None where its size is not known."""
    if not draft.file or size <= 0:
        return None
    network = network_of(split)
    room = next((h.room for h in split.devices if draft.device and draft.device in (h.room.node, h.room.device)
                 and (h.room.worker is not None or draft.device == h.room.device)), split.host.room)
    seconds = size / room.speed.bytes_per_second + (room.link.round_trip + WORKER_OVERHEAD if room.link else 0.0)
    on_gpu = bool(split.used) and not split.host.layers and all(h.room.device != PROCESSOR for h in split.used)
    return native_drafting(split.prediction.seconds_per_token, network, seconds, on_gpu=on_gpu,
                           lengths=(draft.length,))
