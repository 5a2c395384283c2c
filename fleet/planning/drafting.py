"""Whether a draft model inside the head will pay, and how long its drafts should be. Pure.

    speed-up = E(N) * plain / (plain + N * (extra * compute + draft))       E(N) = 1 + a + a^2 + ... + a^N

`plain` is a token's time, `compute` the part of it that is no network, `draft` the draft model's own time for a token
on its device, `a` the chance that a drafted token is right. A pass verifies N + 1 tokens; each of them costs `extra` of
a plain pass's compute: nearly nothing on a GPU, which waits for memory, and about half on a processor (measured: 4.4 ms
to evaluate and 8 ms for the logits, of a pass of 20 ms; gemma-3-270m q4_k_m, two workers, one thread each).

Measured against it, N = 4, two workers, acceptance 0.48 a token: 0.29x at 0 ms, 0.81x at 20 and 1.23x at 50; a draft of
the same weights: 1.75x at 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.config.schema import DraftConfig
from fleet.planning.planned import Split
from fleet.planning.timing import WORKER_OVERHEAD

PROCESSOR = "CPU"
LENGTHS = (2, 3, 4, 6, 8)
EXTRA_CPU, EXTRA_GPU = 0.55, 0.03      # of a plain pass's compute, for each token more that is verified
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
    found = {length: sum(chance**k for k in range(length + 1)) * plain / (plain + length * (extra + draft))
             for length in lengths} if plain > 0 else {lengths[0]: 0.0}
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
