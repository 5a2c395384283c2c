"""The node table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from app.present.units import UNKNOWN, age, fraction, gib, is_live, used_of
from app.present.words import KIND_WORDS, LINK_WORDS, NODE_SIGNS, SERVICE_SIGNS, needs_help
from fleet.model import Device, DeviceKind, Node, NodeReading, NodeState, ServiceState, Snapshot
from widgets.meters import Meter
from widgets.row_spec import Row
from widgets.spans import Line, Span, Tone, joined, line

EMPTY = (
    line("No machines yet."),
    line(Span("Press ", Tone.MUTED), "n", Span(" to add one by its address, name it in fleet.yaml,", Tone.MUTED)),
    line(Span("or wait: the network and ~/.ssh/config are being searched.", Tone.MUTED)),
)

# Noise in front of what people call their cards.
_MAKERS = ("NVIDIA GeForce ", "NVIDIA ", "AMD Radeon ", "AMD ", "Intel(R) ", "Intel ", "Apple ")


def rows(snapshot: Snapshot, now: float) -> tuple[Row, ...]:
    """One row a node, in the engine's order."""
    return tuple(_row(node, now, snapshot.refresh) for node in snapshot.nodes.values())


def _row(node: Node, now: float, refresh: float) -> Row:
    sign = NODE_SIGNS[node.state]
    live = is_live(now, node.read_at, refresh) and node.state is NodeState.UP
    old = age(now, node.read_at, refresh)
    stale = "" if live or node.read_at is None else "stale"
    used, total = memory(node.reading) if node.reading else (None, None)
    dim = node.state in (NodeState.SEEN, NodeState.GONE)
    return Row(
        key=node.name,
        cells=(
            sign.line,
            (Span(node.name, Tone.MUTED if dim else Tone.STRONG),),
            (Span(kind_of(node), Tone.MUTED),),
            address_line(node),
            (Span(devices_in_short(node.reading), Tone.PLAIN if live else Tone.MUTED),),
            memory_meter(used, total, live=live),
            services_in_short(node),
            (Span(old, Tone.MUTED if live or node.read_at is None else Tone.WARN),),
        ),
        order=(
            _rank(node), node.name, kind_of(node), node.address.host if node.address else "",
            devices_in_short(node.reading), total or 0, len(node.services),
            _age_order(node, now, live)),
        search=" ".join((*node.aliases, *(a.host for a in node.addresses), stale)),
    )


def _age_order(node: Node, now: float, live: bool) -> float:
    """What the age column sorts by; as coarse as what it shows, or every row would differ all the time."""
    if node.read_at is None:
        return float("inf")
    return 0.0 if live else (now - node.read_at) // 5 * 5


def _rank(node: Node) -> int:
    """Sorting by state puts those first that need a person."""
    return 0 if needs_help(node) else 1 if node.state is NodeState.UP else 2


def kind_of(node: Node) -> str:
    """What sort of machine it is."""
    if node.local:
        return "local"
    reading = node.reading
    if reading is None:
        return UNKNOWN
    if reading.os == "Darwin":
        return "Mac"
    gpus = split_devices(reading)
    if any(device.unified for device in gpus):
        return "unified"
    if gpus:
        return "GPU box"
    return "CPU box"


def split_devices(reading: NodeReading) -> tuple[Device, ...]:
    """The devices that hold a model on this node when it has better than its processor."""
    return tuple(d for d in reading.devices if d.kind is not DeviceKind.CPU and not d.integrated)


def memory(reading: NodeReading) -> tuple[int | None, int | None]:
    """(used, total) bytes of what would hold a model: of all GPUs, else main memory."""
    gpus = split_devices(reading)
    if not gpus:
        total = reading.memory.total
        return used_of(total, reading.memory.available), total
    totals = [device.memory_total for device in gpus if device.memory_total is not None]
    if not totals:
        return None, None
    pairs = [used_of(device.memory_total, device.memory_free) for device in gpus]
    known = [used for used in pairs if used is not None]
    return (sum(known) if len(known) == len(totals) else None), sum(totals)


def memory_meter(used: int | None, total: int | None, *, live: bool = True) -> Meter:
    """A bar and "used/total" in GiB."""
    figures: Line = (Span(f"{gib(used)}/{gib(total).strip():<5}", Tone.PLAIN if live else Tone.MUTED),)
    if total is None:
        figures = (Span(f"{UNKNOWN:>5}", Tone.MUTED),)
    return Meter(fraction(used, total), figures, Tone.BAR if live else Tone.MUTED, longest=16)


def short_label(device: Device) -> str:
    """What people call a device."""
    label = device.label or device.name
    for maker in _MAKERS:
        if label.startswith(maker):
            return label[len(maker):]
    return label


def devices_in_short(reading: NodeReading | None) -> str:
    """ "2× RTX 3090", "M2 Max", "16 cores"."""
    if reading is None:
        return UNKNOWN
    gpus = split_devices(reading)
    if gpus:
        counted = Counter(short_label(device) for device in gpus)
        return ", ".join(f"{n}× {label}" if n > 1 else label for label, n in counted.items())
    cores = reading.cpu.cores or reading.cpu.threads
    return f"{cores} cores" if cores else "CPU"


def address_line(node: Node) -> Line:
    """The address in use and what carries it."""
    if node.local:
        return (Span("–", Tone.MUTED),)
    address = node.address or (node.addresses[0] if node.addresses else None)
    if address is None:
        return (Span("no address", Tone.WARN),)
    word = LINK_WORDS[address.kind]
    port = f":{address.port}" if address.port != 22 else ""
    return line(f"{address.host}{port}", Span(f" {word}" if word else "", Tone.MUTED))


def services_in_short(node: Node) -> Line:
    """What runs there: those in trouble first."""
    groups = Counter((service.record.kind, service.state) for service in node.services)
    trouble = (ServiceState.FAILED, ServiceState.STUCK, ServiceState.UNKNOWN)
    parts: list[Line] = []
    for (kind, state), number in sorted(groups.items(), key=lambda item: item[0][1] not in trouble):
        one, many = KIND_WORDS[kind]
        sign = SERVICE_SIGNS[state]
        what = one if number == 1 else f"{number} {many}"
        tone = sign.tone if state in trouble else Tone.PLAIN
        parts.append((Span(f"{what} {sign.word}", tone),))
    foreign: Sequence[object] = node.foreign
    if foreign:
        parts.append((Span(f"{len(foreign)} foreign", Tone.WARN),))
    return joined(parts, ", ") or (Span(UNKNOWN, Tone.MUTED),)


def can_connect(node: Node | None) -> bool:
    """Whether trying a machine now makes sense: it is another one, and we are not in."""
    return node is not None and not node.local and node.state not in (NodeState.UP, NodeState.CONNECTING)
