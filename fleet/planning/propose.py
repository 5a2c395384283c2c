"""What a plan would be, and why: all that `quarterdeck plan` and the Split screen show. Pure; nothing is done."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.config.schema import FleetConfig, ModelConfig
from fleet.errors import NO_SUCH, FleetError, PlanRefused
from fleet.model import Link, Problem, Snapshot
from fleet.models.gguf import GgufHeader
from fleet.models.memory import KV_TYPES
from fleet.planning import explain, suggest
from fleet.planning.choose import Choice, choose, draft_size, find_model, node_config, refuse_streamed
from fleet.planning.decide import decide
from fleet.planning.draft_flags import draft_flags, with_draft
from fleet.planning.drafting import expected_of
from fleet.planning.judged import verdicts_of
from fleet.planning.ladder import Mode, Rung, Short, Wish
from fleet.planning.planned import Holding, Split, names_of, refusal, worker_names
from fleet.planning.rooms import Room, Rooms, rooms_expected
from fleet.planning.situation import Verdict
from fleet.planning.timing import WORKER_OVERHEAD, Prediction, Speed
from fleet.planning.wire import WireChoice
from fleet.planning.wished import wish_of
from fleet.runtimes.binaries import Flags


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What to change of what fleet.yaml says, to see the plan move. None and "" = as it is."""

    context: int | None = None
    type_k: str = ""
    type_v: str = ""
    slots: int | None = None
    nodes: tuple[str, ...] | None = None                  # the workers' nodes; () = none
    without: frozenset[tuple[str, str]] = frozenset()     # (node, device); device "" = all that the node gives
    head: str = ""
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One device of a proposal. Bytes; layers count from 0, the one after the model's last is the output layer."""

    node: str
    device: str                    # as its own node names it
    name: str                      # as the head names it: "RPC0"; "" = not used
    label: str
    layers: int
    first_layer: int | None        # None: no layer
    last_layer: int | None
    has_output: bool
    fraction: float                # its part of all shares
    weights: int
    kv: int
    compute: int
    reserve: int
    free: int                      # after all that, the reserve included
    limit: int                     # that it may hold
    limit_source: str              # "fleet.yaml", "worker", "probe"
    speed: Speed
    link: Link | None              # None: on the head
    link_measured: bool
    read_seconds: float            # of a token's time: its memory is read
    wait_seconds: float            # of a token's time: the round trip and the work at both of its ends
    send_seconds: float            # of a token's time: what comes back over its link


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan that fits, or why none does (`problem`)."""

    model: str
    file: str
    head: str
    mode: Mode
    fits: bool
    context: int = 0               # tokens, of all slots together
    context_pinned: bool = False
    context_trained: int | None = None
    slots: int = 0
    type_k: str = ""
    type_v: str = ""
    devices: tuple[DevicePlan, ...] = ()     # in the order of --device; those without layers too
    host: DevicePlan | None = None           # the head's processor and main memory
    output_on_host: bool = False             # its output matrix stays in the head's main memory
    given_up: tuple[Rung, ...] = ()
    prediction: Prediction | None = None
    flags: tuple[str, ...] = ()              # for the wire, beside the split itself
    flag_reasons: tuple[str, ...] = ()       # what each of them saves and gives up
    sentences: tuple[str, ...] = ()          # why
    suggestions: tuple[str, ...] = ()        # what would be better
    verdicts: tuple[Verdict, ...] = ()       # of the compatibility rules: warnings and refusals
    problem: Problem | None = None


def what_if_config(snapshot: Snapshot, config: FleetConfig, wanted: str, what_if: WhatIf) -> tuple[FleetConfig, str]:
    """The configuration with the changes in it, and the model's name in it.

    Raises:
        PlanRefused: no such model or node, or a KV type that llama.cpp does not have.
    """
    for name in (*(what_if.nodes or ()), *(node for node, _ in what_if.without), *filter(None, (what_if.head,))):
        if name not in snapshot.nodes:
            raise PlanRefused(f"No node is called {name}.", f"There are {', '.join(sorted(snapshot.nodes)) or 'none'}.",
                              code=NO_SUCH)
    for kv_type in filter(None, (what_if.type_k, what_if.type_v)):
        if kv_type not in KV_TYPES:
            raise PlanRefused(f"{kv_type[:40]!r} is no type of KV.", f"Take one of {', '.join(KV_TYPES)}.")
    model = find_model(snapshot, config, wanted)
    changed: ModelConfig = replace(
        model, context=model.context if what_if.context is None else what_if.context,
        slots=what_if.slots or model.slots, kv_type_k=what_if.type_k or model.kv_type_k,
        kv_type_v=what_if.type_v or model.kv_type_v, head=what_if.head or model.head,
        workers=model.workers if what_if.nodes is None else tuple(
            name for name in what_if.nodes if name != (what_if.head or model.head)))
    return replace(config, models={**config.models, model.name: changed}), model.name


def propose(snapshot: Snapshot, config: FleetConfig, header: GgufHeader, wanted: str,
            what_if: WhatIf | None = None, *, flags: Flags | None = None) -> Proposal:
    """Plan `wanted` on what the Snapshot shows.

    Args:
        header: of the model, all its files together.
        flags: of the head's llama-server, where they were read: which flags there are.

    Raises:
        PlanRefused: no such model or node, or no head. What does not fit is no error: the proposal says why.
    """
    what_if = what_if or WhatIf()
    config, name = what_if_config(snapshot, config, wanted, what_if)
    choice = choose(snapshot, config, name)
    refuse_streamed(choice.model)
    wish = wish_of(choice.model, node_config(config, choice.head), mode=what_if.mode)
    rooms = with_draft(rooms_expected(snapshot, config, choice, header, without=what_if.without),
                       choice.model.draft, draft_size(choice))
    empty = Proposal(choice.model.name, choice.model.file, choice.head.name, wish.mode, fits=False,
                     context=wish.context or 0, context_trained=header.context_length, type_k=wish.type_k,
                     type_v=wish.type_v)
    try:
        decision = decide(header, rooms, choice.model, node_config(config, choice.head), flags, mode=what_if.mode)
    except FleetError as error:
        return replace(empty, problem=Problem(error.code, error.what, error.remedy))
    split, wish = decision.split, decision.wish
    if isinstance(split, Short):
        why = refusal(split, rooms, choice.model.name)
        return replace(empty, context=split.ask.context, slots=split.ask.slots,
                       problem=Problem(why.code, why.what, why.remedy),
                       sentences=choice.left_out, suggestions=suggest.when_short(header, rooms, wish, split))
    try:
        return _told(snapshot, choice, header, rooms, wish, split, decision.wire, empty)
    except FleetError as error:            # the draft model's device is none
        return replace(empty, problem=Problem(error.code, error.what, error.remedy))


def _told(snapshot: Snapshot, choice: Choice, header: GgufHeader, rooms: Rooms, wish: Wish, split: Split,
          wire: WireChoice, empty: Proposal) -> Proposal:
    ask, fitted = split.fitted.ask, split.fitted
    names = names_of(split)
    drafting = draft_flags(None, choice.model.draft, worker_names(split), head=choice.head.name)
    draft = choice.model.draft
    expected = expected_of(split, draft, draft_size(choice)) if draft else None
    measured = {link.worker for link in snapshot.links if link.head == choice.head.name}
    devices = tuple(_device(h, name, part, header, measured)
                    for h, name, part in zip(split.devices, names, split.fractions, strict=True))
    return replace(
        empty, fits=True, context=ask.context, context_pinned=fitted.pinned_context, slots=ask.slots, devices=devices,
        host=_device(split.host, "CPU", 0.0 if split.used else 1.0, header, measured),
        output_on_host=split.output_on_host, given_up=fitted.given_up, prediction=split.prediction,
        flags=(*wire.argv, *drafting), flag_reasons=wire.reasons,
        sentences=(*explain.sentences(header, choice, rooms, split, wish), *choice.left_out,
                   *((expected.reason,) if expected else ())),
        suggestions=(*suggest.when_fits(header, rooms, wish, split),
                     *(("Leave `draft:` out: without it the head is expected to be as fast or faster.",)
                       if expected and not expected.pays else ())),
        verdicts=verdicts_of(choice, split, header))


def _device(holding: Holding, name: str, fraction: float, header: GgufHeader, measured: set[str]) -> DevicePlan:
    room: Room = holding.room
    has = holding.layers > 0
    link = room.link
    wait = send = 0.0
    if has and link is not None:
        wait = link.round_trip + WORKER_OVERHEAD
        send = holding.sends / link.bytes_per_second if link.bytes_per_second else 0.0
    return DevicePlan(
        room.node, room.device, name, room.label, holding.layers, holding.first if has else None,
        holding.last - 1 if has else None, has and holding.last == header.n_layers + 1, fraction, holding.weights,
        holding.kv, holding.compute, room.reserve, holding.free, room.limit, room.source, room.speed, link,
        link is not None and room.node in measured, holding.reads / room.speed.bytes_per_second, wait, send)
