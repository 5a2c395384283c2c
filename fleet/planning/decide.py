"""The whole decision for one model on given rooms: the split, and the flags for the wire that go with it. Pure.

The two depend on each other: flags follow from the links of the workers that are used, and some of them change what
fits (`--swa-full` makes the cache of windowed layers larger, `-fa off` its buffers).
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.config.schema import ModelConfig, NodeConfig, SplitMode
from fleet.model import Link
from fleet.models.gguf import GgufHeader
from fleet.planning.drafting import network_of
from fleet.planning.injection_flags import has_pool, injection_flags, pool_pays
from fleet.planning.ladder import Short, Wish
from fleet.planning.planned import Split, plan_split
from fleet.planning.rooms import Rooms
from fleet.planning.strided_flags import strided_flags
from fleet.planning.wire import WireChoice, wire_flags
from fleet.planning.wished import wish_of
from fleet.runtimes.binaries import Flags
from fleet.speculation.settings import SpeculationMode

OVERRIDES = ("-ot", "--override-tensor")


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided: `split` is a `Short` when nothing fits."""

    split: Split | Short
    wish: Wish
    wire: WireChoice = WireChoice()


def decide(header: GgufHeader, rooms: Rooms, model: ModelConfig, head: NodeConfig, flags: Flags | None, *,
           mode: SplitMode | None = None) -> Decision:
    """Decide it.

    Args:
        head: settings of the head's node.
        flags: of the head's llama-server; None = not read, then no flags are chosen.

    Raises:
        PlanRefused: what is wished for cannot be.
    """
    def planned(links: list[Link], *, room: bool, decided: Split | None = None) -> Decision:
        context = decided.fitted.ask.context if decided else model.context
        wire = WireChoice() if flags is None else wire_flags(
            header, links, flags, given=given, kv_type_v=model.kv_type_v, flash_attention=model.flash_attention,
            context=context, output_on_head=decided.output_on_host if decided else False, room_for_full_window=room)
        if flags is not None and model.speculation is not None and model.speculation.verifies:
            wire = strided_flags(header, links, flags, wire, given=given, kv_type_v=model.kv_type_v,
                                 flash_attention=model.flash_attention, room_for_full_window=room)
            if model.draft is None and (model.speculation.mode is SpeculationMode.INJECTION or (
                    model.speculation.mode is SpeculationMode.AUTO and decided is not None and has_pool(flags)
                    and pool_pays(decided.prediction.seconds_per_token, network_of(decided)))):
                wire = injection_flags(flags, wire, given=given)
        wish = wish_of(model, head, mode=mode, wire=wire.argv)
        if decided is not None and wish == before.wish:
            return Decision(decided, wish, wire)
        return Decision(plan_split(header, rooms, wish, may_move_output=may_move), wish, wire)

    given = (*head.head.extra_args, *model.extra_args)
    may_move = (flags is None or flags.has("-ot")) and not any(name in given for name in OVERRIDES)
    links = [room.link for room in rooms.devices if room.link is not None]
    before = planned(links, room=True)
    room = isinstance(before.split, Split)
    if not room:
        before = planned(links, room=False)
    if isinstance(before.split, Short):
        return before
    after = planned(links_of(before.split), room=room, decided=before.split)
    if isinstance(after.split, Short):
        return before
    if after.split is not before.split:      # planned anew: the output may have moved with it
        before = after
        after = planned(links_of(after.split), room=room, decided=after.split)
    return after


def links_of(split: Split) -> list[Link]:
    """The links of the workers that are used, in order."""
    found = {holding.room.worker: holding.room.link for holding in split.used}
    return [link for worker, link in found.items() if worker is not None and link is not None]
