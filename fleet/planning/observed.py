"""How fast devices really are: from the tokens that a head has written and the seconds that these took. Pure.

A head counts both (`/metrics`), since it was started. What of a token's time was not the network's was reading. Of
several devices nobody tells who took how long: each is then taken to be faster or slower than its maker's figures let
expect by the same factor, which is exact for one device and for equal ones. Requests that ran at the same time make
the figure smaller than a lone one would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.model import Device, DeviceReads, Node, ObservedSpeed, Snapshot
from fleet.planning.timing import FEWEST_TOKENS, WORKER_OVERHEAD, speed_of

LEAST_READING = 0.2       # of a token's time: where the network takes more, the rest says little


def observe(snapshot: Snapshot, head: str, reads: Sequence[DeviceReads], tokens: float, seconds: float,
            now: float) -> dict[str, dict[str, ObservedSpeed]]:
    """Speeds by node and device; {} where the counters say too little, or a link was never measured.

    Args:
        reads: what each device reads for a token, by the plan.
        tokens, seconds: that the head has counted.
    """
    used = [part for part in reads if part.bytes_read > 0]
    if tokens < FEWEST_TOKENS or seconds <= 0 or not used or any(part.node not in snapshot.nodes for part in used):
        return {}
    network = 0.0
    for part in used:
        if part.node == head:
            if part.sends_bytes:
                network += WORKER_OVERHEAD       # a worker on the head's own node: no cable, and still its messages
            continue
        link = snapshot.link(head, part.node)
        if link is None:
            return {}
        network += link.round_trip + WORKER_OVERHEAD
        network += part.sends_bytes / link.bytes_per_second if link.bytes_per_second > 0 else 0.0
    reading = seconds / tokens - network
    if reading < LEAST_READING * seconds / tokens:
        return {}
    usual = [_usual(snapshot.nodes[part.node], part.device) for part in used]
    factor = sum(part.bytes_read / speed for part, speed in zip(used, usual, strict=True)) / reading
    found: dict[str, dict[str, ObservedSpeed]] = {}
    for part, speed in zip(used, usual, strict=True):
        found.setdefault(part.node, {})[part.device] = ObservedSpeed(speed * factor, int(tokens), now)
    return found


def merged(known: Mapping[str, ObservedSpeed], found: Mapping[str, ObservedSpeed]) -> Mapping[str, ObservedSpeed]:
    """What was known of a node's devices with what was seen now; the same object where nothing is new."""
    new = {name: speed for name, speed in found.items()
           if name not in known or known[name].tokens != speed.tokens
           or known[name].bytes_per_second != speed.bytes_per_second}
    return {**known, **new} if new else known


def _usual(node: Node, name: str) -> float:
    """What is expected of a device of which nothing was seen."""
    devices: tuple[Device, ...] = node.reading.devices if node.reading else ()
    device = next((device for device in devices if device.name == name), None)
    return speed_of(replace(node, speeds={}), device).bytes_per_second
