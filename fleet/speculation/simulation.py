"""A world of delays and acceptance to hold a controller against: seeded, no sockets, no sleep. Pure.

A round takes what `costs` says a round takes, with unknowns of this world, times noise; now and then one takes much
longer. Drafts are right by a chance for each position. Streams begin anew, and their slots have to read them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet.speculation.choice import Choice, Mode, Round, Steering
from fleet.speculation.costs import evaluated_tokens, prompts_of, unread_tokens

STRETCH = 32               # tokens of a plain stretch that nobody gave a length


@dataclass(frozen=True, slots=True)
class World:
    """What a target and its drafters are like; seconds."""

    request: float = 0.005             # c: a request more
    compute: float = 0.020             # of a pass, besides the network
    network: float = 0.0               # of a pass: the workers' round trips
    token: float = 0.001               # t: a token more in a batch
    row: float = 0.001                 # r: a row of logits more
    context: float = 0.0               # of a pass, for each 1,000 tokens of context
    drafters: Mapping[str, tuple[float, float]] = field(default_factory=lambda: {"draft": (0.005, 0.8)})
    fades: float = 1.0                 # a position's chance over the one before it
    native: tuple[float, float, int] | None = None     # (seconds a drafted token, chance, N); None = cannot
    ahead: bool = False                # the next draft is made beside a verification
    noise: float = 0.1                 # standard deviation of a round's time, as a share
    spikes: float = 0.01               # chance of a round that takes three times as long
    stream: int = 200                  # tokens of a request
    prompt: int = 40                   # tokens that a request begins with

    def pass_seconds(self, context: int) -> float:
        """Of one token of the target alone."""
        return self.compute + self.network + self.context * context / 1000 + self.token + self.row


class Play:
    """A world being played: rounds one after another."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.seconds = 0.0
        self.tokens = 0
        self.rounds = 0
        self.context = world.prompt
        self._left = world.stream
        self._slots: list[int] = []    # tokens of this stream that each of its slots has read
        self._before = (1, 0)
        self._beside = 0.0             # seconds in which the next draft could be made, 0 = it has to be made anew

    def clock(self) -> float:
        """Seconds since it began."""
        return self.seconds

    def run(self, controller: Steering, tokens: int) -> float:
        """Let it choose until that many tokens more are out; tokens a second of them."""
        begun, had = self.seconds, self.tokens
        while self.tokens - had < tokens:
            controller.record(self.round(controller.choose(self.context)))
        return (self.tokens - had) / (self.seconds - begun)

    def round(self, choice: Choice) -> Round:
        """What comes of a choice."""
        self.rounds += 1
        if choice.mode is not Mode.STRIDED:
            self._beside = 0.0
        made = {Mode.PLAIN: self._plain, Mode.NATIVE: self._native, Mode.STRIDED: self._strided,
                Mode.INJECTION: self._injection}[choice.mode](choice)
        passes = max(1, made.emitted if choice.mode is Mode.PLAIN else choice.stride)
        slow = sum(self.random.random() < self.world.spikes for _ in range(passes))
        made = replace(made, verify_seconds=made.verify_seconds * (self._noise(passes) + 2 * slow / passes),
                       draft_seconds=made.draft_seconds * self._noise(1))
        self.seconds += made.verify_seconds + made.draft_seconds
        self.tokens += made.emitted
        self.context += made.emitted
        self._left -= made.emitted
        if self._left <= 0:
            self.context, self._left, self._slots = self.world.prompt, self.world.stream, []
            self._beside = 0.0
        return made

    def _noise(self, passes: int) -> float:
        return max(0.3, self.random.gauss(1.0, self.world.noise / math.sqrt(passes)))

    def _right(self, drafter: str, length: int) -> int:
        chance = self.world.drafters[drafter][1]
        for position in range(length):
            if self.random.random() >= chance:
                return position
            chance *= self.world.fades
        return length

    def _plain(self, choice: Choice) -> Round:
        emitted = min(self._left, choice.stretch or STRETCH)
        world, new = self.world, self._left == self.world.stream
        return Round(Mode.PLAIN, 0, 1, self.context, 0, 0, emitted, 0.0,
                     emitted * world.pass_seconds(self.context), read_tokens=world.prompt if new else 0,
                     read_seconds=world.request + world.pass_seconds(0) + world.token * world.prompt if new else 0.0)

    def _native(self, choice: Choice) -> Round:
        assert self.world.native is not None
        draft, chance, length = self.world.native
        wanted = min(self._left, choice.stretch or STRETCH)
        emitted = drafted = accepted = 0
        seconds = 0.0
        while emitted < wanted:
            right = next((k for k in range(length) if self.random.random() >= chance), length)
            seconds += (length * draft + self.world.pass_seconds(self.context)
                        + length * (self.world.token + self.world.row))
            emitted, drafted, accepted = emitted + right + 1, drafted + length, accepted + right
        return Round(Mode.NATIVE, 0, 1, self.context, drafted, accepted, emitted, 0.0, seconds)

    def _strided(self, choice: Choice) -> Round:
        world, length, stride = self.world, choice.draft_length, choice.stride
        pace, chance = world.drafters[choice.drafter]
        draft = length * pace
        if self._beside:
            in_time = int(self._beside / max(1e-6, pace)) - stride
            length = max(length, min(choice.ready_length, in_time - in_time % stride))
            draft = max(0.0, (length + stride) * pace - self._beside)
        right = self._right(choice.drafter, length)
        emitted = (right // stride + 1) * stride
        prompts = prompts_of(length, stride)
        unread = unread_tokens(prompts, self.context, self._before[0], self._slots)
        self._slots[:prompts] = [self.context] * prompts
        tokens = evaluated_tokens(length, stride, *self._before) + (stride - 1) * prompts + unread
        self._before = (emitted, right)
        seconds = (world.request + stride * (world.compute + world.network + world.context * self.context / 1000)
                   + world.token * tokens + world.row * stride * prompts)
        ahead = world.ahead and right == length and self.random.random() < chance**stride
        self._beside = seconds if ahead else 0.0
        return Round(Mode.STRIDED, choice.draft_length, stride, self.context, length, right, emitted, draft, seconds,
                     choice.drafter)

    def _injection(self, choice: Choice) -> Round:
        """Cycle after cycle: a draft is made and read while the stream goes on, and what it is in time for verified."""
        world, length = self.world, choice.draft_length
        wanted = min(self._left, choice.stretch or STRETCH)
        draft, alone = length * world.drafters[choice.drafter][0], self.world.pass_seconds(self.context)
        emitted = drafted = accepted = 0
        seconds = 0.0
        while emitted < wanted:
            right = self._right(choice.drafter, length)
            meanwhile = int(draft / alone) + 1
            late = max(0, right - meanwhile)
            seconds += draft + 2 * alone + world.token * 2 * length + world.row * length
            emitted, drafted, accepted = emitted + meanwhile + late + 1, drafted + length, accepted + late
        return Round(Mode.INJECTION, length, 1, self.context, drafted, accepted, min(emitted, self._left), 0.0, seconds,
                     choice.drafter)


class Fixed:
    """A controller that always says the same."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def choose(self, context: int) -> Choice:
        """The same."""
        return self.choice

    def record(self, round: Round) -> None:
        """Nothing to learn."""

    def state(self) -> dict[str, object]:
        """Nothing to tell."""
        return {}


def best_fixed(world: World, choices: list[Choice], *, seed: int, tokens: int) -> tuple[Choice, float]:
    """The choice that would have been best all along, and its tokens a second over so many tokens."""
    speeds = [(Play(world, seed).run(Fixed(choice), tokens), number) for number, choice in enumerate(choices)]
    speed, number = max(speeds)
    return choices[number], speed
