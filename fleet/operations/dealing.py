"""Deal a model's layers for a bring-up: once by what the probes saw, and again by what the workers themselves say.

The first time decides whether it fits at all, and which workers are needed; the second time what the head is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.model import DeviceReads, Node, Share
from fleet.operations.arrangement import Arrangement, Seat
from fleet.operations.hands import Hands, node_of
from fleet.operations.streaming import Streaming
from fleet.planning.choose import draft_size, node_config
from fleet.planning.decide import Decision, decide
from fleet.planning.draft_flags import draft_flags, with_draft
from fleet.planning.ladder import Rung, Short
from fleet.planning.planned import Split, names_of, reads_of, refusal, shares_of, worker_names
from fleet.planning.rooms import Room, Rooms, link_of, local_gpus, room_of, rooms_expected, together, weighted
from fleet.planning.shares import told_name, worker_room


@dataclass(frozen=True, slots=True)
class Dealt:
    """What the head is told, and what should come of it."""

    endpoints: tuple[str, ...]         # of the workers that are used, in order
    devices: tuple[str, ...]           # --device
    tensor_split: tuple[int, ...]      # whole layer counts, one a device
    gpu_layers: int | None             # None = all
    context: int
    slots: int | None                  # None = llama-server's own choice
    wire: tuple[str, ...]              # flags for the network
    planned: tuple[Share, ...]
    seats: tuple[Seat, ...]            # of the workers that are used
    reads: tuple[DeviceReads, ...]     # what each device does for a token


def check_fits(hands: Hands, arrangement: Arrangement) -> tuple[str, ...]:
    """Refuse what cannot fit, by what the probes saw, and leave out the workers that would hold nothing.

    Gives what to know of it, in sentences.

    Raises:
        PlanRefused: it does not fit.
    """
    rooms = rooms_expected(hands.snapshot(), hands.config, arrangement.choice, arrangement.header,
                           local=_local(arrangement))
    split = _decided(arrangement, rooms)[1]
    needed = set(split.workers)
    idle = [seat for number, seat in enumerate(arrangement.seats) if number not in needed]
    arrangement.seats = tuple(seat for number, seat in enumerate(arrangement.seats) if number in needed)
    return tuple(f"The worker on {seat.choice.where} takes no part: the other devices have room for the model, and it "
                 "would add a round trip to every token." for seat in idle)


def deal(hands: Hands, arrangement: Arrangement) -> Dealt:
    """Deal the layers by what the workers said of themselves.

    Raises:
        PlanRefused: it does not fit after all.
    """
    if arrangement.streaming is not None:
        return _streamed(arrangement, arrangement.streaming)
    decision, split = _decided(arrangement, rooms_told(hands, arrangement))
    names, model = names_of(split), arrangement.choice.model
    endpoints = [arrangement.seats[h.room.worker].endpoint if h.room.worker is not None else "" for h in split.devices]
    seats = tuple(arrangement.seats[number] for number in split.workers)
    fitted = split.fitted
    drafting = draft_flags(arrangement.head_flags, model.draft, worker_names(split), head=arrangement.head_node)
    gpu_layers = fitted.gpu_layers if split.host.layers and split.devices else model.gpu_layers
    return Dealt(
        tuple(seat.endpoint for seat in seats), tuple(filter(None, names)),
        tuple(holding.layers for holding in split.used), gpu_layers, fitted.ask.context,
        1 if Rung.SLOTS in fitted.given_up else model.slots, (*decision.wire.argv, *drafting),
        shares_of(split, names, endpoints, arrangement.header), seats, reads_of(split, arrangement.header))


def _streamed(arrangement: Arrangement, streaming: Streaming) -> Dealt:
    """Everything on the head's processor, mapped from its disk: no device takes a layer."""
    header, ask, needs = arrangement.header, streaming.ask, streaming.needs
    share = Share(arrangement.head_node, "CPU", "", 1.0, header.n_layers + 1, header.tensor_bytes, needs.cache,
                  needs.buffers)
    reads = DeviceReads(arrangement.head_node, "CPU", needs.shared + needs.token)
    return Dealt((), ("none",), (), 0, ask.context, ask.slots, streaming.arguments, (share,), (), (reads,))


def _decided(arrangement: Arrangement, rooms: Rooms) -> tuple[Decision, Split]:
    model = arrangement.choice.model
    rooms = with_draft(rooms, model.draft, draft_size(arrangement.choice))
    decision = decide(arrangement.header, rooms, model, arrangement.head, arrangement.head_flags)
    if isinstance(decision.split, Short):
        raise refusal(decision.split, rooms, model.name)
    return decision, decision.split


def rooms_told(hands: Hands, arrangement: Arrangement) -> Rooms:
    """The devices that can take layers, as the workers' answers tell them, in the order of the seats."""
    choice, snapshot = arrangement.choice, hands.snapshot()
    head = node_of(hands, arrangement.head_node)
    answers = [arrangement.answers[seat.endpoint] for seat in arrangement.seats]
    offered: dict[str, int] = {}
    for seat, answer in zip(arrangement.seats, answers, strict=True):
        offered[seat.choice.node.name] = offered.get(seat.choice.node.name, 0) + len(answer.devices)
    devices: list[Room] = []
    for number, (seat, answer) in enumerate(zip(arrangement.seats, answers, strict=True)):
        node: Node = node_of(hands, seat.choice.node.name)
        vram, wanted = node_config(hands.config, node).vram, seat.choice.config.devices
        for index, told in enumerate(answer.devices):
            free = worker_room(node, vram, wanted, sharing=offered[node.name], index=index, told_free=told.free)
            devices.append(room_of(node, told_name(node, wanted, index), number, vram, free,
                                   link_of(snapshot, head, node), choice))
    vram = arrangement.head.vram
    devices += [room_of(head, name, None, vram, free, None, choice) for name, free in _local(arrangement)]
    return together(head, vram, weighted(devices, choice.model.split), arrangement.header)


def _local(arrangement: Arrangement) -> list[tuple[str, int]]:
    """The head's own GPUs as its llama-server lists them; what a head of ours fills there now may be its again."""
    held = dict(local_gpus(arrangement.choice.head))
    return [(device.name, max(device.memory_free, held.get(device.name, 0)))
            for device in arrangement.local_devices]
