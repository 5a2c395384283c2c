"""Why a split is as it is, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.model import LinkKind
from fleet.models.gguf import GgufHeader
from fleet.planning.choose import Choice
from fleet.planning.ladder import WORTH_A_MACHINE, Mode, Rung, Wish
from fleet.planning.planned import Holding, Split, size
from fleet.planning.rooms import Rooms
from fleet.planning.timing import WORKER_OVERHEAD

MOSTLY = 0.4               # of a token's time: what takes so much is named


def rate(seconds: float) -> str:
    """Seconds a token as tokens a second."""
    speed = 1 / seconds if seconds > 0 else 0.0
    return f"{speed:.1f}" if speed < 100 else f"{speed:.0f}"


def sentences(header: GgufHeader, choice: Choice, rooms: Rooms, split: Split, wish: Wish) -> tuple[str, ...]:
    """All of them, the most telling first."""
    found = [choice.head_reason, _dealt(split), *_unused(split), _output(header, split), *_given_up(split, header),
             _context(header, split), _bottleneck(split), _mapped(choice, rooms, header), *_guessed(split)]
    return tuple(sentence for sentence in found if sentence)


def _dealt(split: Split) -> str:
    used, fitted = split.used, split.fitted
    if not used and not fitted.deal.fits:
        return (f"All layers are on the processor of {split.host.room.node}, whose main memory does not hold them all: "
                "a part is read from the disk for every token.")
    if not used and Rung.LAYERS in fitted.given_up and split.devices:
        return (f"All layers are on the processor of {split.host.room.node}: the model does not fit without it, and "
                "the other devices would only slow it down.")
    if not used:
        return f"All layers are on the processor of {split.host.room.node}: no other device takes part."
    if fitted.by_user:
        return "Layers are dealt by the shares that fleet.yaml gives (`split:`)."
    if fitted.mode is Mode.MEMORY:
        return "Layers are dealt in proportion to what each device may hold (mode memory), whatever its speed."
    remote = [h for h in used if _crosses(h)]
    if len(used) == 1 and not split.host.layers:
        where = used[0].room.where
        if remote:
            return f"All layers are on {where}: they fit, and each further machine would cost a round trip a token."
        return f"All layers are on {where}: they fit, and so no layer crosses the network."
    working = [*used, *([split.host] if split.host.layers else [])]
    fastest = max(working, key=lambda h: h.room.speed.bytes_per_second)
    even = len({round(h.room.speed.bytes_per_second, -9) for h in working}) == 1
    if even:
        return "Layers are dealt for the least time a token; these devices are about equally fast and filled alike."
    dealt = (f"Layers are dealt for the least time a token: {fastest.room.where} reads fastest "
             f"({fastest.room.speed.bytes_per_second / 1e9:.0f} GB/s)")
    return f"{dealt}, and holds what the others cannot." if fastest is split.host else f"{dealt} and is filled first."


def _crosses(holding: Holding) -> bool:
    return holding.room.link is not None and holding.room.link.kind is not LinkKind.LOOPBACK


def _unused(split: Split) -> Iterable[str]:
    unused = [h for h in split.devices if not h.layers]
    if not split.used or split.fitted.by_user:
        return
    for holding in unused:
        room = holding.room
        if split.fitted.mode is Mode.MEMORY:
            yield (f"{room.where} gets no layer: its share of {size(room.limit)} would not fit it together with "
                   "buffers and reserve.")
        elif room.link is not None and _crosses(holding):
            yield (f"{room.where} gets no layer: the others have room, and it would add "
                   f"{(room.link.round_trip + WORKER_OVERHEAD) * 1000:.1f} ms to every token (a machine more is used "
                   f"where it saves {WORTH_A_MACHINE:.0%}).")
        else:
            yield f"{room.where} gets no layer: the others are faster and have room, or it cannot hold one."


def _output(header: GgufHeader, split: Split) -> str:
    logits = 4 * (header.n_vocab or 0)
    if split.output_on_host:
        return (f"The output matrix stays in the main memory of {split.host.room.node}: on a worker it would send "
                f"{size(logits)} back for every token.")
    used = split.used
    if used and _crosses(used[-1]) and logits:
        return f"{used[-1].room.where} has the output layer and sends {size(logits)} back for every token."
    return ""


def _given_up(split: Split, header: GgufHeader) -> Iterable[str]:
    given, ask = split.fitted.given_up, split.fitted.ask
    if Rung.CONTEXT in given:
        yield f"Memory is short: the context is cut to {ask.context} tokens."
    if Rung.SLOTS in given:
        yield "Memory is short: one request at a time (one slot)."
    if split.host.layers and split.used:
        many = split.host.layers != 1
        short = "Memory is short: " if Rung.LAYERS in given else ""
        yield (f"{short}{split.host.layers} of {header.n_layers + 1} layers {'are' if many else 'is'} on the "
               f"processor of {split.host.room.node}.")


def _context(header: GgufHeader, split: Split) -> str:
    ask, fitted = split.fitted.ask, split.fitted
    shared = f", shared by {ask.slots} slots" if ask.slots > 1 and ask.unified else ""
    shared = f", divided among {ask.slots} slots" if ask.slots > 1 and not ask.unified else shared
    if fitted.pinned_context:
        return f"The context of {ask.context} tokens is held as asked for (-fit off){shared}."
    if Rung.CONTEXT in fitted.given_up:
        return ""
    if ask.context >= (header.context_length or 0):
        return f"The context of {ask.context} tokens is all that the model was trained for{shared}."
    costs = "without making tokens slower" if fitted.mode is Mode.TIME else "beside the weights"
    return f"The context of {ask.context} tokens is the largest that fits {costs}{shared}."


def _bottleneck(split: Split) -> str:
    total = split.prediction.seconds_per_token
    if total <= 0:
        return ""
    parts = [split.host, *split.used]
    links = sum(h.room.link.round_trip + WORKER_OVERHEAD
                + (h.sends / h.room.link.bytes_per_second if h.room.link.bytes_per_second else 0.0)
                for h in split.used if h.room.link is not None)
    if links > MOSTLY * total:
        return f"The network takes {links / total:.0%} of each token's time."
    slowest = max(parts, key=lambda h: h.reads / h.room.speed.bytes_per_second)
    share = slowest.reads / slowest.room.speed.bytes_per_second / total
    if share > MOSTLY and len([h for h in parts if h.reads]) > 1:
        return (f"{slowest.room.where} takes {share:.0%} of each token's time: it reads {size(slowest.reads)} at "
                f"{slowest.room.speed.bytes_per_second / 1e9:.0f} GB/s.")
    return ""


def _mapped(choice: Choice, rooms: Rooms, header: GgufHeader) -> str:
    memory = choice.head.reading.memory if choice.head.reading else None
    if memory and memory.total is not None and header.file_size > memory.total:
        return (f"The file of {size(header.file_size)} is larger than the main memory of {choice.head.name} "
                f"({size(memory.total)}): it is read from the disk while it loads.")
    return ""


def _guessed(split: Split) -> Iterable[str]:
    holdings = [*split.used, *([split.host] if split.host.layers else [])]
    names = list(dict.fromkeys(h.room.where for h in holdings if h.room.speed.guessed))
    if names:
        speeds = "The speed of" if len(names) == 1 else "The speeds of"
        yield f"{speeds} {', '.join(names)}: a guess until seen at work. The prediction is as good as that."
