"""How long a token takes: what devices have to read, and what the network between them adds. Pure.

    T = compute + sum over workers (round trip + overhead) + output bytes / bandwidth

measured with a delayed network in front of real workers: 34.8 / 57.9 / 87.4 ms a token with one worker at 0 / 20 / 50
ms round trip, 35.7 / 80.2 / 142.2 with two. Compute is bytes read / bandwidth of each device in turn: at batch one the
nodes of a split work one after another, whatever is idle meanwhile (the pipeline bubble).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.model import Device, DeviceKind, Link, LinkKind, Node
from fleet.models.gguf import GgufHeader
from fleet.planning.bandwidth import known_bandwidth, processor_bandwidth

WORKER_OVERHEAD = 0.002       # seconds a token and worker beside the round trip: 1 to 3 ms were measured
ARRIVES = 0.6                 # of a peak bandwidth while decoding: 0.45 to 0.8 in llama.cpp's own tables of 7B models
ONE_CORE = 8e9                # bytes a second that one core reads in llama.cpp's kernels (9.5 GB/s on a server, AVX2)
GUESSED_CPU = 20e9            # bytes a second: two channels of old DDR4, 0.6 of it
GUESSED_GPU = 120e9           # bytes a second: a small card of the last years
FEWEST_TOKENS = 16            # that an observed speed has to come from

__all__ = ["Link", "LinkKind", "Part", "Prediction", "Speed", "predict", "read_bytes", "speed_of"]


@dataclass(frozen=True, slots=True)
class Speed:
    """How many bytes of weights a device goes through a second while it writes one token at a time."""

    bytes_per_second: float
    source: str                    # for a person: "observed over 120 tokens", "936 GB/s peak ...", "a guess: ..."
    guessed: bool = False          # nothing is known of the device: the figure only orders it among others
    observed: bool = False         # it was seen at work


@dataclass(frozen=True, slots=True)
class Part:
    """What one device does for a token."""

    node: str
    device: str                    # as the head names it: "RPC0", "CUDA0", "CPU"
    bytes_read: int                # of weights and cache, for one token
    sends_bytes: int               # that come back over `link` for one token
    speed: Speed
    link: Link | None = None       # to the head; None = it is a device of the head itself


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds for one token of one request, and what they are made of."""

    seconds_per_token: float
    tokens_per_second: float
    terms: tuple[tuple[str, float], ...] = ()   # (what, seconds), in the order of the parts


def predict(parts: Sequence[Part]) -> Prediction:
    """The time of a token over these parts, which work one after another.

    A part that reads nothing costs nothing, its link neither: a worker without layers is not asked for a token.
    """
    terms: list[tuple[str, float]] = []
    for part in parts:
        if part.bytes_read <= 0:
            continue
        terms.append((f"{part.device} on {part.node} reads {part.bytes_read} bytes",
                      part.bytes_read / part.speed.bytes_per_second))
        if part.link is None:
            continue
        terms.append((f"round trip to {part.node}", part.link.round_trip + WORKER_OVERHEAD))
        if part.link.bytes_per_second > 0:
            terms.append((f"{part.sends_bytes} bytes from {part.node}",
                          part.sends_bytes / part.link.bytes_per_second))
    total = sum(seconds for _, seconds in terms)
    return Prediction(total, 1.0 / total if total > 0 else 0.0, tuple(terms))


def read_bytes(header: GgufHeader, layer: int) -> int:
    """Bytes of a layer's weights that one token needs: of a mixture of experts only those that it is sent to.

    `layer` == n_layers is the output layer. The input embedding is looked up, not read: it costs nothing.
    """
    if layer >= header.n_layers:
        return header.output_bytes
    experts, used = header.number("{arch}.expert_count") or 0, header.number("{arch}.expert_used_count") or 0
    if not 0 < used < experts:
        return header.layer_bytes[layer]
    routed = sum(tensor.bytes for tensor in header.tensors if tensor.layer == layer and "_exps." in tensor.name)
    return header.layer_bytes[layer] - routed + routed * used // experts


def speed_of(node: Node, device: Device | None) -> Speed:
    """How fast a device of a node reads weights; `device` None = the node's processor.

    What was observed while it served counts before what its maker states, and that before a guess.
    """
    name = device.name if device is not None else "CPU"
    observed = node.speeds.get(name)
    if observed is not None and observed.tokens >= FEWEST_TOKENS and observed.bytes_per_second > 0:
        return Speed(observed.bytes_per_second, f"observed over {observed.tokens} tokens", observed=True)
    if device is not None and device.kind is not DeviceKind.CPU:
        return _of_gpu(node, device)
    return _of_processor(node)


def _of_gpu(node: Node, device: Device) -> Speed:
    known = known_bandwidth(device.label)
    if known is None and node.reading and (device.unified or node.reading.memory.unified):
        known = known_bandwidth(node.reading.cpu.model)      # one memory, that of the chip which both are on
    if known is None:
        return Speed(GUESSED_GPU, f"a guess: {device.label or device.name} is not in the table of known devices",
                     guessed=True)
    return _arriving(*known)


def _of_processor(node: Node) -> Speed:
    cpu = node.reading.cpu if node.reading else None
    model = cpu.model if cpu else ""
    found = known_bandwidth(model)           # chips with their memory on them: Apple's, Strix Halo
    rule = found or processor_bandwidth(model)
    cores = (cpu.cores or cpu.threads) if cpu else 0      # a virtual machine may tell no cores
    most = ONE_CORE * cores if cores else None
    if rule is None:
        speed = GUESSED_CPU if most is None else min(GUESSED_CPU, most)
        return Speed(speed, f"a guess: no rule for the processor {model or 'that the node does not name'}",
                     guessed=True)
    speed = _arriving(*rule)
    if found is None and most is not None and most < speed.bytes_per_second:
        return Speed(most, f"{cores} core{'s' if cores != 1 else ''} of {ONE_CORE / 1e9:g} GB/s each, below its "
                     "memory's bandwidth", guessed=True)
    return Speed(speed.bytes_per_second, f"{speed.source}{'' if found else ', by rule: its memory is not read'}",
                 guessed=found is None)


def _arriving(peak: float, source: str) -> Speed:
    return Speed(peak * ARRIVES, f"{ARRIVES:.0%} of {peak / 1e9:.0f} GB/s peak ({source})")
