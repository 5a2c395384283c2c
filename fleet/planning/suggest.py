"""What would be better than a plan: other KV, a smaller quantisation, one machine alone, more memory. Pure."""

from __future__ import annotations

from dataclasses import replace

from fleet.models.gguf import GgufHeader
from fleet.planning.explain import rate
from fleet.planning.ladder import Mode, Short, Wish
from fleet.planning.planned import Split, fastest_alone, plan_split, size
from fleet.planning.rooms import Rooms

WORTH_SAYING = 0.95            # of the time: so much faster has another plan to be
MORE_CONTEXT = 1.25            # times: so much larger has another context to be
# Bits a weight of llama.cpp's usual mixtures on a 8B model (examples/quantize/README.md), the larger first.
QUANTISATIONS = (("Q8_0", 8.50), ("Q6_K", 6.56), ("Q5_K_M", 5.70), ("Q4_K_M", 4.89), ("IQ4_XS", 4.46),
                 ("Q3_K_M", 4.00), ("Q2_K", 3.16), ("IQ2_XS", 2.59))


def when_fits(header: GgufHeader, rooms: Rooms, wish: Wish, split: Split) -> tuple[str, ...]:
    """What to try when a plan fits."""
    found = [_alone(header, rooms, wish, split), _plain_time(header, rooms, wish, split),
             _smaller_kv(header, rooms, wish, split), _whole_context(header, rooms, wish, split)]
    if split.host.layers and split.used:
        found.append(_smaller(header, rooms, wish, whole=True))
    return tuple(sentence for sentence in found if sentence)


def when_short(header: GgufHeader, rooms: Rooms, wish: Wish, short: Short) -> tuple[str, ...]:
    """What to try when none does."""
    found = []
    for kv_type in ("q8_0", "q4_0"):
        if kv_type not in (wish.type_k, wish.type_v) and wish.flash_attention:
            other = plan_split(header, rooms, replace(wish, type_k=kv_type, type_v=kv_type))
            if isinstance(other, Split):
                found.append(f"With --kv {kv_type} it fits, at a context of {other.fitted.ask.context} tokens.")
                break
    if wish.context is not None:
        other = plan_split(header, rooms, replace(wish, context=None))
        if isinstance(other, Split):
            found.append(f"Without a pinned context it fits, with {other.fitted.ask.context} tokens.")
    found.append(_smaller(header, rooms, wish, whole=False))
    missing = short.needed - short.room
    if missing > 0:
        found.append(f"{size(missing)} more memory in the fleet would do: another node, or less in use on these.")
    return tuple(sentence for sentence in found if sentence)


def _alone(header: GgufHeader, rooms: Rooms, wish: Wish, split: Split) -> str:
    """One machine alone, where that is faster."""
    if not split.workers:
        return ""
    alone = fastest_alone(header, rooms, replace(wish, context=split.fitted.ask.context, mode=Mode.TIME))
    if alone is None or not _faster(alone, split):
        return ""
    node = rooms.host.node
    return (f"{node} alone is faster: {rate(alone.prediction.seconds_per_token)} instead of "
            f"{rate(split.prediction.seconds_per_token)} tokens a second (`--nodes none`, or `workers: []`).")


def _plain_time(header: GgufHeader, rooms: Rooms, wish: Wish, split: Split) -> str:
    """The default mode, where the other was asked for."""
    if wish.mode is not Mode.MEMORY or split.fitted.by_user:
        return ""
    other = plan_split(header, rooms, replace(wish, mode=Mode.TIME, context=split.fitted.ask.context))
    if isinstance(other, Split) and _faster(other, split):
        return (f"Mode time would give {rate(other.prediction.seconds_per_token)} tokens a second instead of "
                f"{rate(split.prediction.seconds_per_token)}.")
    return ""


def _has_all(header: GgufHeader, split: Split) -> bool:
    fitted = split.fitted
    return fitted.pinned_context or fitted.by_user or fitted.ask.context >= (header.context_length or 0)


def _smaller_kv(header: GgufHeader, rooms: Rooms, wish: Wish, split: Split) -> str:
    ask = split.fitted.ask
    if not _has_all(header, split) and (ask.type_k, ask.type_v) == ("f16", "f16") and wish.flash_attention:
        other = plan_split(header, rooms, replace(wish, type_k="q8_0", type_v="q8_0"))
        if isinstance(other, Split) and other.fitted.ask.context >= MORE_CONTEXT * ask.context:
            return (f"With --kv q8_0 the context could be {other.fitted.ask.context} tokens, at "
                    f"{rate(other.prediction.seconds_per_token)} tokens a second.")
    return ""


def _whole_context(header: GgufHeader, rooms: Rooms, wish: Wish, split: Split) -> str:
    trained = header.context_length or 0
    if _has_all(header, split):
        return ""
    whole = plan_split(header, rooms, replace(wish, context=0))
    if isinstance(whole, Split):
        return (f"All {trained} tokens of context would fit too, at {rate(whole.prediction.seconds_per_token)} tokens "
                f"a second (--context {trained}).")
    return ""


def _smaller(header: GgufHeader, rooms: Rooms, wish: Wish, *, whole: bool) -> str:
    """The largest quantisation that fits, an estimate by bits a weight; `whole`: without the head's processor."""
    parameters = sum(_values(shape.shape) for shape in header.tensors)
    bits = 8 * header.tensor_bytes / parameters if parameters else 0.0
    for name, smaller in QUANTISATIONS:
        if not bits or smaller > 0.95 * bits:
            continue
        other = plan_split(_scaled(header, smaller / bits), rooms, wish)
        if isinstance(other, Split) and not (whole and other.host.layers and other.used):
            of_it = " whole" if not other.host.layers else f", with {other.host.layers} layers on the processor"
            return (f"A {name} of the same model, about {size(round(header.tensor_bytes * smaller / bits))}, would fit"
                    f"{of_it}: roughly {rate(other.prediction.seconds_per_token)} tokens a second.")
    return ""


def _scaled(header: GgufHeader, ratio: float) -> GgufHeader:
    return replace(header, tensors=tuple(replace(tensor, bytes=round(tensor.bytes * ratio))
                                         for tensor in header.tensors))


def _values(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


def _faster(one: Split, other: Split) -> bool:
    return one.prediction.seconds_per_token < WORTH_SAYING * other.prediction.seconds_per_token
