"""The controller in seeded worlds: as good as the best fixed choice, off when it loses, quick to see a change."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.speculation.choice import Choice, Mode, Round
from fleet.speculation.controller import SHAPES, Controller
from fleet.speculation.simulation import Play, World, best_fixed

TOKENS = 4000              # twenty answers
SEEDS = range(3)

GPU = World(compute=0.050, token=0.0002, row=0.0002, request=0.002)
SLOW = World(request=0.030, compute=0.010, token=0.0044, row=0.006, drafters={"draft": (0.022, 0.85)})
"""Two cores that do everything, as in the lab: tokens and rows are dear."""


def lab(milliseconds: float, **other: object) -> World:
    """Two workers that far away."""
    return replace(SLOW, network=2 * milliseconds / 1000, **other)


WORLDS = {
    "a GPU": (GPU, (Mode.STRIDED,)),
    "a GPU, the next draft made ahead": (replace(GPU, ahead=True), (Mode.STRIDED,)),
    "a GPU, a draft that is mostly wrong": (replace(GPU, drafters={"draft": (0.005, 0.3)}), (Mode.STRIDED,)),
    "a GPU, a draft as slow as itself": (replace(GPU, drafters={"draft": (0.060, 0.9)}), (Mode.STRIDED,)),
    "three drafters": (replace(GPU, drafters={"slow": (0.060, 0.95), "fast": (0.004, 0.7), "ngram": (0.0001, 0.25)}),
                       (Mode.STRIDED,)),
    "cores, no delay": (lab(0), (Mode.STRIDED,)),
    "cores, no delay, native": (lab(0, native=(0.020, 0.85, 4)), (Mode.STRIDED, Mode.NATIVE)),
    "cores, 20 ms": (lab(20), (Mode.STRIDED,)),
    "cores, 50 ms, native": (lab(50, native=(0.020, 0.85, 4)), (Mode.STRIDED, Mode.NATIVE)),
    "cores, 100 ms": (lab(100), (Mode.STRIDED,)),
    "cores, 100 ms, a draft for nothing": (lab(100, drafters={"ngram": (0.0002, 0.9)}), (Mode.STRIDED,)),
}


def choices(world: World, modes: tuple[Mode, ...]) -> list[Choice]:
    """All that could be chosen throughout."""
    found = [Choice(Mode.PLAIN)] + ([Choice(Mode.NATIVE)] if Mode.NATIVE in modes else [])
    return found + [Choice(Mode.STRIDED, length, stride, drafter) for drafter in world.drafters
                    for length, stride in SHAPES if length // stride < 9]


def steered(world: World, modes: tuple[Mode, ...], seed: int) -> tuple[Play, Controller]:
    """A world and a controller that knows nothing of it."""
    play = Play(world, seed)
    return play, Controller({Mode.PLAIN, *modes}, list(world.drafters), clock=play.clock)


@pytest.mark.parametrize("name", WORLDS)
def test_a_steady_world_is_played_within_five_percent_of_the_best_fixed_choice_trials_and_all(name: str) -> None:
    world, modes = WORLDS[name]
    # Longer for the fixed ones, or luck would choose the best among a dozen.
    _, best = best_fixed(world, choices(world, modes), seed=200, tokens=2 * TOKENS)
    shares = []
    for seed in range(6):
        play, controller = steered(world, modes, seed)
        shares.append(play.run(controller, TOKENS) / best)
    assert statistics.mean(shares) >= 0.95


@pytest.mark.parametrize("name", ["cores, no delay", "cores, no delay, native", "a GPU, a draft as slow as itself"])
def test_what_loses_is_off_at_once_and_tried_rarely(name: str) -> None:
    world, modes = WORLDS[name]
    play, controller = steered(world, modes, 1)
    drafting, last = 0, ""
    for _ in range(200):
        choice = controller.choose(play.context)
        drafting += choice.mode is not Mode.PLAIN
        last = choice.reason if choice.mode is Mode.PLAIN else last
        controller.record(play.round(choice))
    assert drafting <= 30              # a look of four rounds now and then
    assert "Off" in last and controller.state()["mode"] == "plain"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), compute=st.floats(0.005, 0.1), network=st.floats(0, 0.2),
       token=st.floats(0, 0.2), draft=st.floats(0, 1.2), chance=st.floats(0.02, 0.98), noise=st.floats(0, 0.25))
def test_no_world_makes_it_much_slower_than_the_target_alone(
        seed: int, compute: float, network: float, token: float, draft: float, chance: float, noise: float) -> None:
    world = World(compute=compute, network=network, token=token * compute, row=token * compute,
                  drafters={"draft": (draft * compute, chance)}, noise=noise, spikes=0.0)
    play, controller = steered(world, (Mode.STRIDED,), seed)
    plain = Play(world, seed).run(_Always(Choice(Mode.PLAIN)), TOKENS)
    assert play.run(controller, TOKENS) >= 0.93 * plain


class _Always(Controller):
    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    def choose(self, context: int) -> Choice:
        return self._choice

    def record(self, round: Round) -> None:
        pass


def had_after(before: World, after: World, rounds: int = 50) -> list[float]:
    """The share of the best fixed choice that is had from `rounds` after a change on."""
    shares = []
    _, best = best_fixed(after, choices(after, (Mode.STRIDED,)), seed=200, tokens=2 * TOKENS)
    for seed in SEEDS:
        play, controller = steered(before, (Mode.STRIDED,), seed)
        play.run(controller, 1500)
        play.world = after
        for _ in range(rounds):
            controller.record(play.round(controller.choose(play.context)))
        shares.append(play.run(controller, 1000) / best)
    return shares


CHANGES = {
    "a drafter grows bad": (GPU, replace(GPU, drafters={"draft": (0.005, 0.1)})),
    "a drafter grows good": (replace(GPU, drafters={"draft": (0.005, 0.1)}), GPU),
    "the network grows slow": (lab(0), lab(100)),
    "the network grows fast": (lab(100), lab(0)),
    "the drafter grows slow": (GPU, replace(GPU, drafters={"draft": (0.080, 0.8)})),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_followed_within_fifty_rounds(name: str) -> None:
    assert statistics.mean(had_after(*CHANGES[name])) >= 0.9


@pytest.mark.parametrize("name", ["a GPU", "cores, 100 ms", "three drafters"])
def test_it_does_not_oscillate(name: str) -> None:
    world, modes = WORLDS[name]
    play, controller = steered(world, modes, 4)
    play.run(controller, 600)
    kinds = []
    for _ in range(200):
        choice = controller.choose(play.context)
        kinds.append(choice.mode)
        controller.record(play.round(choice))
    assert sum(a is not b for a, b in pairwise(kinds)) <= 8


def test_the_first_thing_is_the_targets_own_speed() -> None:
    controller = Controller({Mode.PLAIN, Mode.STRIDED}, ["draft"], clock=lambda: 0.0)
    assert controller.choose(10).mode is Mode.PLAIN
    assert controller.state()["plain_tokens_per_second"] is None


def test_without_a_drafter_there_is_nothing_but_the_target() -> None:
    controller = Controller({Mode.PLAIN, Mode.STRIDED}, [], clock=lambda: 0.0)
    assert controller.choose(10) == Choice(Mode.PLAIN, 0, 1, "", "No way to speculate is available here.")


def test_a_round_never_has_more_prompts_than_the_target_has_slots() -> None:
    world = replace(GPU, drafters={"draft": (0.0, 0.97)})
    play = Play(world, 1)
    controller = Controller({Mode.PLAIN, Mode.STRIDED}, ["draft"], clock=play.clock, slots=3)
    for _ in range(100):
        choice = controller.choose(play.context)
        assert choice.mode is Mode.PLAIN or choice.draft_length // choice.stride + 1 <= 3
        controller.record(play.round(choice))


def test_the_state_is_json_and_tells_speed_against_the_same_targets_own() -> None:
    play, controller = steered(GPU, (Mode.STRIDED,), 2)
    play.run(controller, 800)
    state = json.loads(json.dumps(controller.state()))
    assert state["mode"] == "strided" and state["speed_up"] > 1.5
    assert state["plain_tokens_per_second"] == pytest.approx(1 / GPU.pass_seconds(100), rel=0.2)
    assert 0.6 < state["by_position"][0] < 0.95 and state["drafters"]["draft"]["rounds"] > 100


def test_a_head_that_drafts_by_itself_has_nothing_to_be_held_against() -> None:
    world = replace(GPU, native=(0.005, 0.8, 4))
    play = Play(world, 1)
    controller = Controller({Mode.NATIVE, Mode.STRIDED}, ["draft"], clock=play.clock)
    play.run(controller, 300)
    assert controller.state()["plain_tokens_per_second"] is None
    assert controller.state()["mode"] in ("native", "strided")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_odd_figures_are_left_out(seconds: float) -> None:
    controller = Controller({Mode.PLAIN, Mode.STRIDED}, ["draft"], clock=lambda: 0.0)
    controller.record(Round(Mode.STRIDED, 4, 1, 10, 4, 9, -3, 0.0, seconds, "draft"))
    assert controller.state()["rounds"] == 0


def test_a_drafter_that_comes_later_is_taken_note_of() -> None:
    controller = Controller({Mode.PLAIN, Mode.STRIDED}, ["draft"], clock=lambda: 0.0)
    controller.record(Round(Mode.PLAIN, 12, 1, 10, 0, 0, 12, 0.0, 0.6))
    controller.record(Round(Mode.STRIDED, 4, 1, 22, 4, 4, 5, 0.02, 0.07, "other"))
    assert controller.state()["drafters"]["other"]["acceptance"] > 0.7
