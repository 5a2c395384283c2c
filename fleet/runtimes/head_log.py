"""A head's log, read while it grows: how far the load is, where everything sits, what went wrong.

No HTTP endpoint tells the placement; `-lv 4` logs it. How far a load is, is told by nothing while the
tensors move (b10068 prints no dots, one line before and one after): what arrived at the workers is
seen from outside (`note_arrived`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from fleet.model import Placement, PlacementState, Problem, Severity, Share
from fleet.runtimes.head_lines import (
    Buffer,
    BufferName,
    Fault,
    Lines,
    UsedDevice,
    body,
    buffer_of,
    fault_of,
    used_device_of,
)

MOST_KEPT = 64          # devices, buffers and faults of one log
MIB = 1024 * 1024

_UNITS = {"KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB, "TiB": 1024 * 1024 * MIB}
_LAYER = re.compile(r"^load_tensors: layer +(\d{1,5}) assigned to device ([A-Za-z]\w{0,20})")
_OFFLOADED = re.compile(r"^(?:llm_)?load_tensors: offloaded (\d{1,5})/(\d{1,5}) layers")
_FILE_SIZE = re.compile(r"^(?:print_info|llm_load_print_meta): (?:file|model) size +=? *([\d.]{1,12}) ([KMGT]iB)")
_N_LAYER = re.compile(r"^(?:print_info|llm_load_print_meta): n_layer +=? *(\d{1,6})$")
_CONTEXT = re.compile(r"^llama_(?:context|new_context_with_model|init_from_model): n_ctx +=? *(\d{1,12})$")
_NEW_CONTEXT = re.compile(r"^(?:llama_context: constructing|llama_new_context_with_model: n_ctx +=)")
_PROJECTING = "alloc_compute_meta"     # the function that tells what a projector (mmproj) computes with
_LISTENING = re.compile(r"^\w+: (?:server is )?listening on (http\S{1,100})")
_MODEL = re.compile(r"^load_model: loading model '(.{1,1024})'$")
_DOTS = re.compile(r"\.{2,100}")


class LoadPhase(StrEnum):
    """How far a head is."""

    STARTING = "starting"
    FITTING = "measuring the devices"
    READING = "reading the model's header"
    MOVING = "moving the weights"
    CONTEXT = "making room for the context"
    WARMING = "warming up"
    LOADED = "loaded"
    READY = "ready"


_MARKS: tuple[tuple[LoadPhase, re.Pattern[str]], ...] = tuple((phase, re.compile(pattern)) for phase, pattern in (
    (LoadPhase.FITTING, r"^\w+: fitting params to device memory"),
    (LoadPhase.READING, r"^llama_model_loader: loaded meta data"),
    (LoadPhase.MOVING, r"^(?:llm_)?load_tensors: (?:loading model tensors|offload|ggml ctx size)"),
    (LoadPhase.CONTEXT, r"^llama_(?:context: constructing|new_context_with_model: n_ctx)"),
    (LoadPhase.WARMING, r"^\w+: warming up the model"),
    (LoadPhase.LOADED, r"^\w+: model loaded$"),
    (LoadPhase.READY, r"^\w+: (?:server is )?listening on http"),
))
_ORDER = tuple(LoadPhase)
_SPAN = {  # of the whole load, by phase: where it begins and ends. The weights are nearly all of it.
    LoadPhase.STARTING: (0.0, 0.0), LoadPhase.FITTING: (0.01, 0.01), LoadPhase.READING: (0.03, 0.03),
    LoadPhase.MOVING: (0.05, 0.92), LoadPhase.CONTEXT: (0.93, 0.93), LoadPhase.WARMING: (0.97, 0.97),
    LoadPhase.LOADED: (0.99, 0.99), LoadPhase.READY: (1.0, 1.0)}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that one place holds."""

    model: int = 0
    kv: int = 0
    compute: int = 0


class HeadLog:
    """Takes a head's log in pieces of any size. A log that starts midway just tells less."""

    def __init__(self) -> None:
        self.phase = LoadPhase.STARTING
        self.model_path = ""
        self.n_layers: int | None = None
        self.context: int | None = None                    # tokens, of all slots together
        self.offloaded: tuple[int, int] | None = None      # layers, as printed; "19/19" also without any GPU
        self.file_bytes: int | None = None                 # of all tensors
        self.url = ""                                      # where it listens, once it does
        self.devices: tuple[UsedDevice, ...] = ()
        self.faults: tuple[Fault, ...] = ()
        self._lines = Lines()
        self._model: dict[BufferName, int] = {}
        self._kv: dict[BufferName, int] = {}
        self._compute: dict[tuple[BufferName, int], int] = {}      # by context too
        self._contexts = 0                                         # made so far: the model's, a draft model's
        self._layers: dict[str, int] = {}
        self._arrived = 0.0
        self._dots = 0.0

    def feed(self, text: str) -> None:
        """Take more of the log."""
        for line in self._lines.feed(text):
            self._line(body(line))
        if self.phase is LoadPhase.MOVING and _DOTS.fullmatch(self._lines.part):
            self._dots = max(self._dots, len(self._lines.part) / 100)    # older builds: a hundred dots a load

    @property
    def progress(self) -> float:
        """How much of the load is done, 0 to 1."""
        begin, end = _SPAN[self.phase]
        return begin + (end - begin) * min(1.0, max(self._arrived, self._dots))

    @property
    def buffers(self) -> dict[BufferName, Sizes]:
        """What every place holds."""
        compute: dict[BufferName, int] = {}
        for (place, _), size in self._compute.items():
            compute[place] = compute.get(place, 0) + size
        return {place: Sizes(self._model.get(place, 0), self._kv.get(place, 0), compute.get(place, 0))
                for place in dict.fromkeys((*self._model, *self._kv, *compute))}

    def note_arrived(self, grown: Mapping[str, int]) -> None:
        """Tell how much the workers' memory has grown since the load began, by host:port, in bytes.

        Each counts up to what the log says that it is to hold: a worker's memory overshoots while a
        tensor is in flight, and a GPU's weights do not show in it (such a worker just adds nothing).
        """
        planned = {place.endpoint: 0 for place in self._model if place.endpoint}
        for place, size in self._model.items():
            if place.endpoint:
                planned[place.endpoint] += size
        total = sum(planned.values())
        if total:
            arrived = sum(min(max(0, grown.get(endpoint, 0)), size) for endpoint, size in planned.items())
            self._arrived = max(self._arrived, arrived / total)

    def layers_of(self, device: str) -> int | None:
        """Layers on a device by the head's name of it; logged from -lv 5 on, None otherwise."""
        return self._layers.get(device, 0) if self._layers else None

    def _line(self, text: str) -> None:
        if match := _MODEL.match(text):
            self._begin(match[1])
        if self.phase is not LoadPhase.READY:
            for phase, pattern in _MARKS:
                if pattern.match(text) and _ORDER.index(phase) > _ORDER.index(self.phase):
                    self.phase = phase
        if buffer := buffer_of(text):
            self._buffer(buffer, -1 if text.startswith(_PROJECTING) else self._contexts)
        elif (device := used_device_of(text)) is not None:
            if device not in self.devices and len(self.devices) < MOST_KEPT:
                self.devices += (device,)
        elif fault := fault_of(text):
            self.faults = (*self.faults[-MOST_KEPT + 1:], fault)
        else:
            self._figures(text)

    def _begin(self, path: str) -> None:
        """A load begins: the first, or one after the server slept."""
        self.model_path, self.phase, self.devices = path, LoadPhase.STARTING, ()
        self._arrived, self._dots, self._contexts = 0.0, 0.0, 0
        for holder in (self._model, self._kv, self._compute, self._layers):
            holder.clear()

    def _buffer(self, buffer: Buffer, context: int) -> None:
        """Note it. `context`: which of the contexts made so far, that is whose buffer it is to compute with."""
        if buffer.use == "compute":        # told anew whenever it is reserved anew; each context has its own
            if (buffer.place, context) in self._compute or len(self._compute) < MOST_KEPT:
                self._compute[buffer.place, context] = buffer.bytes
            return
        holder = self._model if buffer.use == "model" else self._kv
        if buffer.place in holder or len(holder) < MOST_KEPT:    # in parts: mapped and repacked, windowed and full
            holder[buffer.place] = holder.get(buffer.place, 0) + buffer.bytes

    def _figures(self, text: str) -> None:
        if _NEW_CONTEXT.match(text):
            self._contexts += 1
        if match := _LAYER.match(text):
            if match[2] in self._layers or len(self._layers) < MOST_KEPT:
                self._layers[match[2]] = self._layers.get(match[2], 0) + 1
        elif match := _OFFLOADED.match(text):
            self.offloaded = int(match[1]), int(match[2])
        elif match := _FILE_SIZE.match(text):
            self.file_bytes = _size(match[1], match[2])
        elif match := _N_LAYER.match(text):
            self.n_layers = int(match[1])
        elif match := _CONTEXT.match(text):
            self.context = int(match[1])
        elif match := _LISTENING.match(text):
            self.url = match[1]


def _size(number: str, unit: str) -> int | None:
    try:
        return int(float(number) * _UNITS[unit])
    except ValueError:
        return None


def real_shares(log: HeadLog, endpoints: Mapping[str, str], head: str) -> tuple[Share, ...]:
    """What every device really holds, by the log, in the head's order; () when it tells nothing.

    Args:
        log: of the head.
        endpoints: node of each worker by the host:port that `--rpc` has.
        head: node of the head.
    """
    names: dict[str, list[str]] = {}
    for device in log.devices:
        if device.endpoint:
            names.setdefault(device.endpoint, []).append(device.name)
    shares = []
    for place, sizes in log.buffers.items():
        if place.endpoint:
            known, index = names.get(place.endpoint, []), int(place.device)
            name = known[index] if index < len(known) else f"RPC{index}[{place.endpoint}]"
            node = endpoints.get(place.endpoint, place.endpoint)
        else:
            name, node = place.device, head
        shares.append(Share(node, name, place.endpoint, layers=log.layers_of(name), model_bytes=sizes.model,
                            kv_bytes=sizes.kv, compute_bytes=sizes.compute))
    order = {(device.endpoint, device.name): number for number, device in enumerate(log.devices)}
    return tuple(sorted(shares, key=lambda share: (share.device == "CPU", not share.endpoint, order.get(
        (share.endpoint, share.device), len(order)))))


# ---------------------------------------------------------------------------------------------

TOLERANCE = 0.02                 # of the plan: it was exact to 0.01 MiB on CPU workers, GPUs pad each tensor
TOLERANCE_BYTES = 16 * MIB
KV_TOLERANCE = 0.05              # of the plan: it was exact for the models that were measured
KV_TOLERANCE_BYTES = 32 * MIB


def judge_placement(planned: tuple[Share, ...], real: tuple[Share, ...]) -> Placement:
    """Planned against real placement, by the bytes of the weights.

    A device may differ by 2 % and 16 MiB. Main memory of the head is judged by what the others lack,
    since a mapped file counts there from the first to the last tensor used. A KV cache that is larger than planned
    takes nothing from the weights: all is in its place, and that it is larger is told.
    """
    if not planned or not any(share.model_bytes for share in real):
        return Placement(planned, real)
    real = _as_planned(planned, real)
    holds = {(share.endpoint, share.device): share.model_bytes or 0 for share in real}
    wanted = [share for share in planned if share.device != "CPU" and _is_planned(share)]
    workers = [share for share in wanted if share.endpoint]
    if workers and not any(size for (endpoint, _), size in holds.items() if endpoint):
        return Placement(planned, real, PlacementState.LOCAL, Problem(
            "healthy-but-local", f"The head answers, but holds the whole model itself: {_named(workers)} "
            f"{'holds' if len(workers) == 1 else 'hold'} nothing of it.",
            "The worker was refused or not reached when the head started; see the first lines of the head's log."))
    empty = [share for share in wanted if not holds.get((share.endpoint, share.device))]
    if empty:
        return Placement(planned, real, PlacementState.PARTIAL, Problem(
            "worker-empty", f"{_named(empty)} should hold a part of the model and "
            f"{'holds' if len(empty) == 1 else 'hold'} nothing.",
            "See the first lines of the head's log for a worker that was not reached, then bring the model up again."))
    if over := _over(planned, wanted, real, holds):
        return Placement(planned, real, PlacementState.OVER, Problem("placement-differs", over,
                         "Another split is in force than the planned one; bring the model up again."))
    return Placement(planned, real, PlacementState.MATCHES, _larger_kv(planned, real))


def _larger_kv(planned: tuple[Share, ...], real: tuple[Share, ...]) -> Problem | None:
    """A device whose KV cache takes more than it was planned to."""
    given = {(share.endpoint, share.device): share.kv_bytes for share in planned}
    for share in real:
        plan, size = given.get((share.endpoint, share.device)), share.kv_bytes or 0
        if plan is not None and size > plan + KV_TOLERANCE * plan + KV_TOLERANCE_BYTES:
            return Problem("kv-differs", f"{_named([share])} holds {_mib(size)} of KV cache where {_mib(plan)} were "
                           "planned.", "Leave more memory free there, or lower the context, if it runs out.",
                           Severity.WARNING)
    return None


def _as_planned(planned: tuple[Share, ...], real: tuple[Share, ...]) -> tuple[Share, ...]:
    """Real shares under the plan's names: a head that went on without a worker numbers the others anew."""
    free: dict[str, list[str]] = {}
    for share in planned:
        if share.endpoint:
            free.setdefault(share.endpoint, []).append(share.device)
    names = {endpoint: tuple(devices) for endpoint, devices in free.items()}
    for share in real:
        if share.device in free.get(share.endpoint, ()):
            free[share.endpoint].remove(share.device)
    renamed = []
    for share in real:
        known, device = names.get(share.endpoint, ()), share.device
        if known and device not in known:
            within = re.match(r"RPC(\d{1,3})\[", device)
            if within and int(within[1]) < len(known):
                device = known[int(within[1])]
            elif free[share.endpoint]:
                device = free[share.endpoint].pop(0)
        renamed.append(replace(share, device=device))
    return tuple(renamed)


def _is_planned(share: Share) -> bool:
    """An output layer whose matrix stays on the head is a layer of no bytes."""
    return share.layers != 0 if share.model_bytes is None else share.model_bytes > 0


def _over(planned: tuple[Share, ...], wanted: list[Share], real: tuple[Share, ...],
          holds: Mapping[tuple[str, str], int]) -> str:
    """What holds more or less than it was given, in a sentence; "" when all is as planned."""
    given = {(share.endpoint, share.device): share.model_bytes for share in planned}
    for share in real:
        plan = given.get((share.endpoint, share.device), 0)
        size = share.model_bytes or 0
        if share.device != "CPU" and plan is not None and size > plan + TOLERANCE * plan + TOLERANCE_BYTES:
            return f"{_named([share])} holds {_mib(size)} of the model where {_mib(plan)} were planned."
    for share in wanted:
        plan, size = share.model_bytes, holds[share.endpoint, share.device]
        if plan is not None and size < plan - TOLERANCE * plan - TOLERANCE_BYTES:
            return (f"{_named([share])} holds only {_mib(size)} of the model where {_mib(plan)} were planned; the "
                    "rest is in the head's main memory.")
    return ""


def _named(shares: list[Share]) -> str:
    return ", ".join(f"{share.device} on {share.node}" for share in shares)


def _mib(size: int) -> str:
    return f"{size / MIB:.0f} MiB"

