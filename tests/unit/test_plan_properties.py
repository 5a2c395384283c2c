"""Whole plans of random fleets and models: what holds of every one of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.config.schema import SplitMode
from fleet.models.gguf import GgufHeader, TensorInfo
from fleet.planning.ladder import Rung, Wish
from fleet.planning.planned import Split, names_of, plan_split, shares_of
from fleet.planning.rooms import Link, Room, Rooms
from fleet.planning.timing import Speed

MIB = 1 << 20

widths = st.sampled_from((512, 1024, 2048))
rooms = st.builds(
    Room, node=st.sampled_from("abcd"), device=st.just("CUDA0"), worker=st.none(), limit=st.integers(0, 3000 * MIB),
    speed=st.builds(Speed, st.sampled_from((40e9, 100e9, 400e9)), st.just("")), reserve=st.sampled_from((0, 64 * MIB)),
    link=st.one_of(st.none(), st.builds(Link, st.floats(0, 0.02), st.floats(1e6, 1e9))), named=st.booleans())


@st.composite
def fleets(draw) -> Rooms:
    devices = draw(st.lists(rooms, min_size=0, max_size=5))
    placed = sorted((replace(room, worker=number if room.link else None) for number, room in enumerate(devices)),
                    key=lambda room: room.worker is None)
    workers = {room.worker: number for number, room in enumerate(p for p in placed if p.worker is not None)}
    host = Room("a", "CPU", None, draw(st.integers(0, 4000 * MIB)), Speed(20e9, ""), 64 * MIB)
    return Rooms(host, tuple(replace(room, worker=workers.get(room.worker)) for room in placed))


@st.composite
def models(draw) -> GgufHeader:
    layers, width, vocabulary = draw(st.integers(1, 24)), draw(widths), draw(st.sampled_from((1000, 32_000)))
    sizes = [draw(st.integers(1, 120)) * MIB for _ in range(layers)]
    pieces = [("token_embd.weight", vocabulary * width), *(
        (f"blk.{number}.attn_q.weight", size) for number, size in enumerate(sizes))]
    if draw(st.booleans()):
        pieces.append(("output.weight", vocabulary * width))
    return GgufHeader(3, {
        "general.architecture": "llama", "llama.block_count": layers, "llama.embedding_length": width,
        "llama.context_length": draw(st.sampled_from((2048, 32_768))), "llama.attention.head_count": width // 64,
        "llama.attention.head_count_kv": 4, "llama.vocab_size": vocabulary}, {},
        tuple(TensorInfo(name, (size,), "Q8_0", 0, size) for name, size in pieces), 0, sum(size for _, size in pieces))


wishes = st.builds(Wish, context=st.sampled_from((None, None, 0, 4096)), slots=st.sampled_from((None, 1, 3)),
                   type_k=st.sampled_from(("f16", "q8_0")), mode=st.sampled_from(SplitMode))


@settings(max_examples=80, deadline=None)
@given(models(), fleets(), wishes, st.booleans())
def test_every_plan_places_every_layer_once_and_no_device_is_over_its_limit(header, fleet, wish, move):
    split = plan_split(header, fleet, wish, may_move_output=move)
    if not isinstance(split, Split):
        return
    holdings = (split.host, *split.devices)
    assert [h.first for h in holdings] == [0, *(h.last for h in holdings[:-1])]
    assert holdings[-1].last == header.n_layers + 1
    for holding in split.used:
        assert holding.used + holding.room.reserve <= holding.room.limit
    if fleet.devices and split.host.layers:
        assert split.host.used + split.host.room.reserve <= split.host.room.limit
    assert abs(sum(split.fractions) - (1.0 if split.used else 0.0)) < 1e-9
    assert wish.context is None or split.fitted.ask.context == (wish.context or header.context_length)
    assert wish.slots is None or split.fitted.ask.slots == wish.slots
    assert split == plan_split(header, fleet, wish, may_move_output=move), "the same each time"


@settings(max_examples=80, deadline=None)
@given(models(), fleets(), wishes)
def test_the_head_is_told_of_all_that_is_used_and_the_shares_hold_all_bytes(header, fleet, wish):
    split = plan_split(header, fleet, wish)
    if not isinstance(split, Split):
        return
    names = names_of(split)
    assert len({name for name in names if name.startswith("RPC")}) == sum(name.startswith("RPC") for name in names)
    shares = shares_of(split, names, [""] * len(names), header)
    twice = header.output_bytes if header.tied_output and split.used else 0
    assert sum(share.model_bytes for share in shares) == header.tensor_bytes + twice
    assert [share.layers for share in shares[:-1]] == [h.layers for h in split.used]


@settings(max_examples=60, deadline=None)
@given(models(), fleets(), wishes, st.integers(1, 2000), st.data())
def test_more_memory_never_makes_a_plan_impossible(header, fleet, wish, more, data):
    wish = replace(wish, mode=SplitMode.TIME)
    if not isinstance(plan_split(header, fleet, wish), Split) or not fleet.devices:
        return
    number = data.draw(st.integers(0, len(fleet.devices) - 1))
    larger = Rooms(fleet.host, tuple(replace(room, limit=room.limit + more * MIB) if n == number else room
                                     for n, room in enumerate(fleet.devices)))
    assert isinstance(plan_split(header, larger, wish), Split)


@settings(max_examples=60, deadline=None)
@given(models(), fleets(), wishes)
def test_time_is_never_slower_than_memory_at_the_same_context(header, fleet, wish):
    by_memory = plan_split(header, fleet, replace(wish, mode=SplitMode.MEMORY))
    if not isinstance(by_memory, Split) or Rung.LAYERS in by_memory.fitted.given_up:
        return
    ask = by_memory.fitted.ask
    by_time = plan_split(header, fleet, replace(wish, mode=SplitMode.TIME, context=ask.context, slots=ask.slots,
                                                unified=ask.unified))
    assert isinstance(by_time, Split)
    if not any(room.named for room in fleet.devices):
        slower = by_memory.prediction.seconds_per_token
        assert by_time.prediction.seconds_per_token <= slower * 1.0001
