"""What was measured: the way between a head and a worker, and how fast a device reads its memory while it serves."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.model.machine import LinkKind


@dataclass(frozen=True, slots=True)
class Link:
    """The network between a head and one worker, over the path that RPC takes."""

    round_trip: float                     # seconds
    bytes_per_second: float               # from the worker to the head, in a short burst; 0 = not known
    kind: LinkKind = LinkKind.UNKNOWN     # what carries it, the worse of both ends
    measured_at: float = 0.0              # engine clock
    best: float = 0.0                     # bytes a second, the most that was ever seen of it
    head: str = ""                        # node of the head
    worker: str = ""                      # node of the worker


@dataclass(frozen=True, slots=True)
class DeviceReads:
    """What one device of a split does for a token, by the plan."""

    node: str
    device: str                           # as its own node names it: "CPU", "CUDA0"
    bytes_read: int                       # of weights
    sends_bytes: int = 0                  # to the head; 0 = it is the head's own


@dataclass(frozen=True, slots=True)
class ObservedSpeed:
    """Bytes of a model that a device has read a second while it wrote tokens, as a head's own counters give them."""

    bytes_per_second: float
    tokens: int                           # that the figure comes from
    observed_at: float = 0.0              # engine clock
