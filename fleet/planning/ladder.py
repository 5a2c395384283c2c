"""From what is wanted to what fits: the rungs that are taken when memory is short, in llama.cpp's own order. Pure.

First the fastest deal at a comfortable context, then the largest context that does not make it slower. Where that
context does not fit: a smaller one, then fewer slots, then layers on the head's own processor. What the user pinned is
held: a pinned context or number of slots is never changed, it is then said that it does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fleet.config.schema import SplitMode as Mode
from fleet.models.memory import Ask
from fleet.planning.sizes import ModelSizes
from fleet.planning.solve import Deal, Layer, Place, by_memory, solve, weighed
from fleet.planning.split import layers_by_weight

COMFORTABLE = 8192            # tokens: what a conversation with a few pages of text takes
LEAST = 4096                  # tokens: llama-server's own --fit-ctx
STEP = 1024                   # tokens: contexts that are chosen are multiples of it
DEFAULT_SLOTS = 4             # llama-server's -np auto: four slots that share one cache
SLOWER = 1.05                 # of the fastest: what a larger context may cost in speed
WORTH_A_MACHINE = 0.05        # of a token's time: a device across the network is used where it saves more than this;
                              # predictions are no more exact, and each machine is one more that can fail


class Rung(StrEnum):
    """What was given up to make the model fit."""

    CONTEXT = "context"
    SLOTS = "slots"
    LAYERS = "layers"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a model is wanted with. None: the planner's choice."""

    context: int | None = None         # tokens of all slots together; 0 = what the model was trained for
    slots: int | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attention: bool = True
    unified: bool | None = None        # None = as llama-server does: shared when slots are its own choice
    swa_full: bool = False
    ubatch: int = 512
    mode: Mode = Mode.TIME
    gpu_layers: int | None = None      # output layer included; None = all

    def ask(self, context: int, slots: int) -> Ask:
        """The same with figures for what was left open."""
        unified = self.slots is None if self.unified is None else self.unified
        return Ask(max(1, context), slots, self.type_k, self.type_v, self.flash_attention, unified, self.swa_full,
                   self.ubatch)


@dataclass(frozen=True, slots=True)
class Table:
    """The devices to deal to: the head's processor, which takes the first layers, and all others in their order."""

    host: Place
    devices: tuple[Place, ...]
    weights: tuple[float | None, ...] = ()   # the user's own shares, one a device; () = none

    @property
    def places(self) -> tuple[Place, ...]:
        """All of them, the host first."""
        return (self.host, *self.devices)


@dataclass(frozen=True, slots=True)
class Fitted:
    """What fits: a deal over the host and the devices (the host's count first), and what it was made for."""

    deal: Deal
    ask: Ask
    mode: Mode
    given_up: tuple[Rung, ...] = ()
    pinned_context: bool = False
    by_user: bool = False              # the shares are the user's own

    @property
    def gpu_layers(self) -> int:
        """`-ngl`: layers that are not on the head's processor, the output layer included."""
        return sum(self.deal.counts[1:])


@dataclass(frozen=True, slots=True)
class Short:
    """Nothing fits: the closest that was looked at, for the sentence that says so."""

    ask: Ask
    needed: int                        # bytes of layers, KV and the least buffers
    room: int                          # bytes of all places together, reserves taken off
    largest_layer: int                 # bytes


def fit(sizes: ModelSizes, table: Table, wish: Wish) -> Fitted | Short:
    """The deal to take.

    Without devices all layers are the host's.
    """
    trained = max(sizes.header.context_length or LEAST, 1)
    slots = wish.slots or DEFAULT_SLOTS
    pinned = trained if wish.context == 0 else wish.context
    wanted = pinned if pinned is not None else min(COMFORTABLE, trained)
    for context, count, rungs in _rungs(wanted, pinned is not None, slots, wish.slots is None):
        ask = wish.ask(context, count)
        deal = _deal(sizes, table, wish, ask, with_host=Rung.LAYERS in rungs)
        if deal is None:
            continue
        if pinned is None:
            ask, deal = _largest(sizes, table, wish, ask, deal, trained, with_host=Rung.LAYERS in rungs)
        rungs = tuple(rung for rung in rungs if rung is not Rung.CONTEXT or ask.context < wanted)
        return Fitted(deal, ask, wish.mode, rungs, pinned is not None, any(w is not None for w in table.weights))
    return _short(sizes, table, wish.ask(context, count))


def _rungs(wanted: int, pinned: bool, slots: int, free_slots: bool) -> list[tuple[int, int, tuple[Rung, ...]]]:
    """Context, slots and what was given up for them, in the order in which they are tried."""
    rungs: list[tuple[int, int, tuple[Rung, ...]]] = [(wanted, slots, ())]
    given: tuple[Rung, ...] = ()
    context = wanted
    if not pinned and wanted > LEAST:
        context, given = LEAST, (Rung.CONTEXT,)
        rungs.append((context, slots, given))
    if free_slots and slots > 1:
        rungs.append((context, 1, (*given, Rung.SLOTS)))
        rungs.append((context, slots, (*given, Rung.LAYERS)))     # main memory may have room for all of them
        slots, given = 1, (*given, Rung.SLOTS)
    rungs.append((context, slots, (*given, Rung.LAYERS)))
    return rungs


def _largest(sizes: ModelSizes, table: Table, wish: Wish, ask: Ask, deal: Deal, trained: int, *,
             with_host: bool) -> tuple[Ask, Deal]:
    """The largest context for which the deal is not slower than at the one that was found to fit."""
    best = ask, deal

    def holds(context: int) -> bool:
        nonlocal best
        asked = replace(ask, context=context)
        found = _deal(sizes, table, wish, asked, with_host=with_host)
        if found is None or not found.fits or (wish.mode is Mode.TIME and found.seconds > deal.seconds * SLOWER):
            return False
        best = asked, found
        return True

    if trained <= ask.context or holds(trained):
        return best
    low, high = ask.context // STEP, trained // STEP
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle * STEP) else (low, middle)
    return best


def _deal(sizes: ModelSizes, table: Table, wish: Wish, ask: Ask, *, with_host: bool) -> Deal | None:
    """The deal of one ask by the mode, or by what the user said of shares and layers."""
    layers, compute, places = sizes.layers(ask), sizes.compute(ask), table.places
    if not table.devices or wish.gpu_layers == 0:
        found = _alone(layers, places, compute)
        return found if found.fits or with_host else None      # what main memory does not hold is read from the disk
    held = max(0, len(layers) - wish.gpu_layers) if wish.gpu_layers is not None else 0
    if any(weight is not None for weight in table.weights):
        # The user's own shares are not argued with: their device, their risk.
        counts = layers_by_weight(len(layers) - 1 - held, [weight or 0.0 for weight in table.weights])
        return weighed(layers, places, compute, (held, *counts))
    if held or not with_host:
        return _behind(layers, places, _dealer(wish.mode), compute, held)
    found, alone = _over_host(layers, places, _dealer(wish.mode), compute), _alone(layers, places, compute)
    wanted = any(place.least for place in table.devices)
    if wish.mode is Mode.TIME and found is not None and alone.fits and alone.seconds < found.seconds and not wanted:
        return alone              # its processor has to work anyway, and what it would be helped by is slower
    return found


def _dealer(mode: Mode) -> Callable[..., Deal | None]:
    return _fastest if mode is Mode.TIME else by_memory


def _fastest(layers: Sequence[Layer], places: Sequence[Place], compute: Callable[[int, int], int]) -> Deal | None:
    """The fastest deal in which each device across the network is worth it."""
    found = solve(layers, places, compute)
    far = [number for number, place in enumerate(places) if place.hop]
    if found is None or not any(found.counts[number] for number in far if not places[number].least):
        return found
    each = WORTH_A_MACHINE * found.seconds
    dearer = [replace(place, hop=place.hop + each) if place.hop else place for place in places]
    sparing = solve(layers, dearer, compute)
    return weighed(layers, places, compute, sparing.counts) if sparing is not None else found


def _behind(layers: Sequence[Layer], places: Sequence[Place], dealer: Callable[..., Deal | None],
            compute: Callable[[int, int], int], held: int) -> Deal | None:
    """The deal in which the host has exactly its first layers.

    Devices that should take part do, where they can.
    """
    def over(devices: Sequence[Place]) -> Deal | None:
        return dealer(layers[held:], devices, lambda first, last: compute(first + held, last + held))

    found = over(places[1:]) or over([replace(place, least=0) for place in places[1:]])
    if found is None:
        return None
    whole = weighed(layers, places, compute, (held, *found.counts))
    return whole if whole.fits else None


def _over_host(layers: Sequence[Layer], places: Sequence[Place], dealer: Callable[..., Deal | None],
               compute: Callable[[int, int], int]) -> Deal | None:
    """The deal with the fewest layers on the host: by halves, since one layer fewer never fits worse."""
    low, high, best = 0, len(layers), None
    while low < high:
        middle = (low + high) // 2
        found = _behind(layers, places, dealer, compute, middle)
        if found is not None:
            best, high = found, middle
        else:
            low = middle + 1
    alone = _alone(layers, places, compute)
    return alone if best is None and alone.fits else best


def _alone(layers: Sequence[Layer], places: Sequence[Place], compute: Callable[[int, int], int]) -> Deal:
    """All layers on the host."""
    return weighed(layers, places, compute, (len(layers), *(0 for _ in places[1:])))


def _short(sizes: ModelSizes, table: Table, ask: Ask) -> Short:
    layers, compute = sizes.layers(ask), sizes.compute(ask)
    held = sum(layer.weights + layer.kv for layer in layers)
    room = sum(max(0, place.limit - place.reserve) for place in table.places)
    return Short(ask, held + compute(0, len(layers)), room, max(layer.weights + layer.kv for layer in layers))

