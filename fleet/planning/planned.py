"""A model, rooms and a wish become a split: who holds what, how long a token takes, what the head is told. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, log10

from fleet.errors import PlanRefused
from fleet.model import DeviceReads, Share
from fleet.models.gguf import GgufHeader
from fleet.planning.ladder import Fitted, Mode, Short, Table, Wish, fit
from fleet.planning.rooms import Room, Rooms
from fleet.planning.sizes import ModelSizes
from fleet.planning.solve import Place
from fleet.planning.split import MOST_DEVICES, fractions
from fleet.planning.timing import Part, Prediction, predict

GIB = 1024 ** 3
MIB = 1024 ** 2
NO_ROOM = "no-room"            # the code of a refusal because memory does not hold it
WORTH_MOVING = 0.97            # of the time: the output matrix leaves its device when that saves at least so much,
WORTH_A_TOKEN = 0.001          # and at least so many seconds


@dataclass(frozen=True, slots=True)
class Holding:
    """What one device gets. Layers count from 0; the one after the last is the output layer."""

    room: Room
    first: int
    last: int                  # one past the last layer; equal to `first` for none
    weights: int               # bytes
    kv: int
    compute: int
    reads: int                 # bytes, for one token
    sends: int                 # bytes over its link, for one token

    @property
    def layers(self) -> int:
        """How many."""
        return self.last - self.first

    @property
    def used(self) -> int:
        """Bytes that it fills."""
        return self.weights + self.kv + self.compute

    @property
    def free(self) -> int:
        """Bytes that stay free of what it may hold, the reserve included."""
        return self.room.limit - self.used


@dataclass(frozen=True, slots=True)
class Split:
    """A split that was decided on. `host` is the head's processor and main memory."""

    fitted: Fitted
    host: Holding
    devices: tuple[Holding, ...]
    output_on_host: bool
    prediction: Prediction

    @property
    def used(self) -> tuple[Holding, ...]:
        """The devices that get something, in order."""
        return tuple(holding for holding in self.devices if holding.layers)

    @property
    def workers(self) -> tuple[int, ...]:
        """Numbers of the workers that are used, in order."""
        return tuple(dict.fromkeys(h.room.worker for h in self.used if h.room.worker is not None))

    @property
    def fractions(self) -> tuple[float, ...]:
        """Each device's part: of the memory in memory mode, else of the layers."""
        if not self.used:
            return tuple(0.0 for _ in self.devices)
        if self.fitted.mode is Mode.MEMORY and not self.fitted.by_user:
            return fractions([float(h.room.limit) if h.layers else 0.0 for h in self.devices])
        return fractions([float(h.layers) for h in self.devices])


def plan_split(header: GgufHeader, rooms: Rooms, wish: Wish, *, may_move_output: bool = False) -> Split | Short:
    """Decide it.

    Args:
        may_move_output: whether the head can be told to keep the output matrix in its own main memory (`-ot`).

    Raises:
        PlanRefused: the wish cannot be (a type of KV that does not exist, a quantised V without flash attention).
    """
    rooms = Rooms(rooms.host, _at_most(rooms.devices), rooms.left_out)
    found = _planned(header, rooms, wish, output_on_host=False)
    if not may_move_output or not rooms.devices or (isinstance(found, Split) and not _output_is_remote(found)):
        return found
    moved = _planned(header, rooms, wish, output_on_host=True)
    if isinstance(moved, Short) or isinstance(found, Short):
        return moved if isinstance(found, Short) else found
    if moved.fitted.ask.context < found.fitted.ask.context:
        return found
    before, after = found.prediction.seconds_per_token, moved.prediction.seconds_per_token
    return moved if after < min(WORTH_MOVING * before, before - WORTH_A_TOKEN) else found


def _output_is_remote(split: Split) -> bool:
    used = split.used
    return bool(used) and used[-1].room.link is not None


def _planned(header: GgufHeader, rooms: Rooms, wish: Wish, *, output_on_host: bool) -> Split | Short:
    sizes = ModelSizes(header, output_on_host=output_on_host)
    places = [_place(sizes, room) for room in rooms.devices]
    if output_on_host and places and places[-1].least:
        places[-1] = replace(places[-1], least=2)      # the output layer is dealt to it, but is nothing there
    table = Table(_place(sizes, rooms.host), tuple(places),
                  tuple(room.weight for room in rooms.devices))
    fitted = fit(sizes, table, wish)
    if isinstance(fitted, Short):
        return fitted
    layers, compute = sizes.layers(fitted.ask), sizes.compute(fitted.ask)
    holdings = []
    for room, (first, last) in zip((rooms.host, *rooms.devices), fitted.deal.ranges, strict=True):
        mine = layers[first:last]
        sends = sizes.hidden_bytes if mine else 0
        if mine and last == len(layers) and not output_on_host:
            sends = sizes.logits_bytes
        holdings.append(Holding(
            room, first, last, sum(layer.weights for layer in mine), sum(layer.kv for layer in mine),
            compute(first, last) if mine else 0, sum(layer.read for layer in mine), sends))
    host, *devices = holdings
    moved = sizes.host_read
    parts = [Part(host.room.node, "CPU", host.reads + moved, 0, host.room.speed)]
    parts += [Part(h.room.node, h.room.device, h.reads, h.sends, h.room.speed, h.room.link) for h in devices]
    return Split(fitted, host, tuple(devices), output_on_host, predict(parts))


def _place(sizes: ModelSizes, room: Room) -> Place:
    """A room for the solver, in the terms of `timing.predict`: what it costs to be used at all, and for the output."""
    hop = output = 0.0
    if room.link is not None:
        def cost(sends: int) -> float:
            part = Part(room.node, room.device, 1, sends, room.speed, room.link)
            return predict([part]).seconds_per_token - 1 / room.speed.bytes_per_second
        hop = cost(sizes.hidden_bytes)
        output = 0.0 if sizes.output_on_host else cost(sizes.logits_bytes) - hop
    return Place(room.where, room.limit, room.reserve, 1 / _two_digits(room.speed.bytes_per_second), hop, output,
                 1 if room.named else 0)


def _two_digits(speed: float) -> float:
    """A speed no more exact than it is known: devices that differ by less are alike, and are filled alike."""
    return round(speed, 1 - floor(log10(speed))) if speed > 0 else 1.0


def _at_most(devices: Sequence[Room]) -> tuple[Room, ...]:
    """No more devices than llama.cpp can split over: those with the most memory. The others may hold nothing."""
    ranked = sorted(range(len(devices)), key=lambda n: (-devices[n].named, -devices[n].limit, n))[:MOST_DEVICES]
    return tuple(room if number in ranked else replace(room, limit=0, named=False,
                                                       weight=None if room.weight is None else 0.0)
                 for number, room in enumerate(devices))


def names_of(split: Split) -> tuple[str, ...]:
    """What the head calls each device, "" for one that is not used.

    `RPC0`, `RPC1` ... are numbered over all devices of the workers that are used, whether they get layers or not.
    """
    used, names, number = set(split.workers), [], 0
    for holding in split.devices:
        name = holding.room.device
        if holding.room.worker is not None:
            name = f"RPC{number}"
            number += holding.room.worker in used
        names.append(name if holding.layers else "")
    return tuple(names)


def worker_names(split: Split) -> dict[str, str]:
    """What the head calls the first device of each worker's node that takes part: {"pi": "RPC0"}."""
    used, found, number = set(split.workers), {}, 0
    for holding in split.devices:
        if holding.room.worker in used:
            found.setdefault(holding.room.node, f"RPC{number}")
            number += 1
    return found


def reads_of(split: Split, header: GgufHeader) -> tuple[DeviceReads, ...]:
    """What each device that is used does for a token, the head's processor last."""
    host = split.host.reads + (header.output_bytes if split.output_on_host else 0)
    return (*(DeviceReads(h.room.node, h.room.device, h.reads, h.sends if h.room.link is not None else 0)
              for h in split.used), DeviceReads(split.host.room.node, "CPU", host))


def shares_of(split: Split, names: Sequence[str], endpoints: Sequence[str], header: GgufHeader) -> tuple[Share, ...]:
    """The planned placement as records: the devices by the head's names of them, then its main memory.

    Args:
        names: the head's name of each device of the split ("RPC0").
        endpoints: host:port of each one's worker as the head dials it, "" on the head itself.
    """
    shares = [Share(h.room.node, name, endpoint, part, h.layers, h.weights, h.kv, h.compute)
              for h, name, endpoint, part in zip(split.devices, names, endpoints, split.fractions, strict=True)
              if h.layers]
    host = split.host
    kept = header.input_bytes + host.weights
    if host.last == header.n_layers + 1 and header.tied_output:
        kept -= header.output_bytes        # the input embedding is the output matrix, and in one place it is one
    if split.output_on_host and not header.tied_output:
        kept += header.output_bytes
    shares.append(Share(host.room.node, "CPU", "", None if split.used else 1.0, host.layers, kept, host.kv,
                        host.compute))
    return tuple(shares)


def refusal(short: Short, rooms: Rooms, model: str) -> PlanRefused:
    """Why it does not fit, with figures."""
    ask, largest = short.ask, max((*rooms.devices, rooms.host), key=lambda room: room.limit - room.reserve)
    what = (f"{model} does not fit: with a context of {ask.context} tokens it takes {size(short.needed)}, and "
            f"{_listed(rooms)} can hold {size(short.room)} together.")
    if short.needed <= short.room:
        what = (f"{model} does not fit, though all devices together have room for it: layers are dealt whole, and "
                f"with buffers and reserves no way was found to deal them. The largest layer takes "
                f"{size(short.largest_layer)}; {largest.where} can hold {size(largest.limit - largest.reserve)}.")
    return PlanRefused(what, "Take a smaller quantisation or another KV type (--kv q8_0), free memory, or add a "
                       "machine.", code=NO_ROOM)


def size(count: int) -> str:
    """Bytes for a sentence."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{round(max(count, 0) / MIB)} MiB"


def _listed(rooms: Rooms) -> str:
    count = len(rooms.devices)
    return f"{count} device{'s' if count != 1 else ''} and the main memory of {rooms.host.node}"


def fastest_alone(header: GgufHeader, rooms: Rooms, wish: Wish) -> Split | None:
    """The split over the head's own devices alone, its processor last; None when it does not fit there."""
    own = tuple(room for room in rooms.devices if room.node == rooms.host.node and room.worker is None)
    found = _planned(header, Rooms(rooms.host, own), wish, output_on_host=False)
    return found if isinstance(found, Split) else None

