"""Drafts for a stream that verifies them by itself: they are put into the n-gram pool of its head.

A llama-server with `--spec-type ngram-mod` keeps one pool of n-grams for all its slots. The prompt of any request goes
into it once it was read, and a slot that writes proposes what the pool has for its last tokens, and verifies that in
one pass. So a draft that is sent as the prompt of a side request is verified by the stream (b10068: 64 tokens in 8
passes). One stream and two slots, however long the context: a side prompt is the last tokens and the draft. Whatever is
put in can only be rejected. The stream is never waited for, and goes on alone while there is no draft.

The settings that this needs: a short match (`--spec-ngram-mod-n-match`, 24 by default) and short drafts taken
(`--spec-ngram-mod-n-min`, 48 by default). Builds do not tell what they have (b10068 says "none" in /props), so a head
is tried out: `takes_drafts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from fleet.proxy.wire import WireError
from fleet.runtimes.head_answers import count, mapping
from fleet.speculation.asking import Asker, Refused
from fleet.speculation.drafters import Context
from fleet.speculation.race import Race
from fleet.speculation.target import ids_of

TAIL = 32                  # tokens before a draft that go with it: more than any n-gram that is looked up
LONGEST_SIDE = 512         # tokens of a side prompt, after which it begins anew with a tail
RETRY = 8                  # tokens that the stream writes alone where there is no draft
FIRST_TRIED = 5            # tokens that it writes before: enough for a draft model to draft, too few for its last
                           # tokens to be any that the pool has from before
TRIED, MOST_TRIED = 8, 12  # tokens of the draft by which a head is tried out, and that it then writes
TRY_TIMEOUT = 60.0         # seconds of one of these requests
TRIES = 2                  # with other tokens each: a near tie may fall another way the second time
NEEDED = ("Injection needs a head that was started with --spec-type ngram-mod --spec-ngram-mod-n-match 6 "
          "--spec-ngram-mod-n-min 2 --spec-ngram-mod-n-max 16, and two slots with -kvu --no-cache-idle-slots.")

Judged = Callable[[str, Sequence[int], Sequence[int]], None]
"""Told of a draft when it is done with: who made it, its tokens, and those that the stream wrote in its place."""


async def takes_drafts(asker: Asker, vocabulary: int) -> bool:
    """Whether what one slot reads is drafted in another, and nothing where nothing was put in. Raises WireError.

    Some tokens at random are continued; then a draft behind that continuation's first token is put in, and they are
    continued again. A draft model would have drafted the first time, n-grams of a slot's own not the second.
    """
    dice = Random()                        # the pool may still have what another trial put in
    for _ in range(TRIES):
        prompt = [dice.randrange(vocabulary // 8, max(vocabulary // 8 + 1, vocabulary)) for _ in range(TAIL)]
        draft = [dice.randrange(vocabulary // 8, max(vocabulary // 8 + 1, vocabulary)) for _ in range(TRIED)]
        try:
            written, drafted = await _continued(asker, prompt, FIRST_TRIED)
            if drafted:
                return False
            if not written:
                continue
            await _continued(asker, [*prompt, written[0], *draft], 1)
            _, drafted = await _continued(asker, prompt, MOST_TRIED)
        except Refused:
            continue                       # these tokens made no text
        if drafted:
            return True
    return False


async def _continued(asker: Asker, prompt: Sequence[int], tokens: int) -> tuple[list[int], int]:
    """What comes next, and how many tokens were drafted for it."""
    said = mapping(await asker.post("/completion", {
        "prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": True,
        "return_tokens": True, "stream": False}, TRY_TIMEOUT))
    return ids_of(said.get("tokens")), count(mapping(said.get("timings")).get("draft_n")) or 0


@dataclass
class Injector:
    """Keeps drafts ahead of one stream, as a task beside it.

    Args:
        context: of the stream, which grows it; tell `grew` after that.
        length: tokens of one injection.
        drafter: who is asked, "" = all race.
        timeout: seconds of a side request.
        judged: told what became of each draft.
    """

    asker: Asker
    race: Race
    context: Context
    length: int
    drafter: str
    timeout: float
    judged: Judged
    problem: str = ""                      # why nothing is put in any more
    _grown: asyncio.Event = field(default_factory=asyncio.Event)
    _base: int = 0                         # tokens before the draft
    _draft: list[int] = field(default_factory=list)
    _parts: list[tuple[int, str]] = field(default_factory=list)      # where each injection begins, and whose it is
    _start: int = 0                        # of the side prompt
    _idle: bool = False
    _told: int = 0                         # tokens of the draft that were judged

    @property
    def idle(self) -> bool:
        """All that was drafted is in the pool, and no more is wanted now."""
        return self._idle

    def grew(self) -> None:
        """The stream has written something."""
        self._grown.set()

    async def run(self) -> None:
        """Until it is cancelled, or the head refuses."""
        self._begin()
        while not self.problem:
            self._follow()
            ahead = self._base + len(self._draft) - len(self.context.ids)
            if ahead >= self.length or not await self._extend():
                await self._wait(1 if ahead >= self.length else RETRY)

    async def _wait(self, tokens: int) -> None:
        until = len(self.context.ids) + tokens
        while len(self.context.ids) < until:
            self._grown.clear()
            self._idle = True
            await self._grown.wait()
            self._idle = False

    async def _extend(self) -> bool:
        """Draft some more and put it in; False where there is no draft."""
        written = len(self.context.ids)
        known = self._draft[written - self._base:]
        made = await self.race.draft(self.context.ahead(known), self.length, only=self.drafter)
        if made is None or not made.ids:
            return False
        if not self._agrees(self.context.ids[written:], [*known, *made.ids]):
            return True                    # the stream went another way meanwhile
        self._parts.append((len(self._draft), made.drafter))
        self._draft += made.ids
        if self._base + len(self._draft) - self._start > LONGEST_SIDE:
            self._start = max(0, len(self.context.ids) - TAIL)
        prompt = [*self.context.ids[self._start:self._base], *self._draft[max(0, self._start - self._base):]]
        try:
            await self.asker.post("/completion", {
                "prompt": prompt, "n_predict": 1, "temperature": 0, "cache_prompt": True, "stream": False,
                "response_fields": ["stop_type"]}, self.timeout)
        except (WireError, Refused) as error:
            self.problem = f"It takes no draft: {error}"
        return True

    @staticmethod
    def _agrees(written: Sequence[int], draft: Sequence[int]) -> bool:
        """Both have the same beginning, and some of the draft is left."""
        return len(written) < len(draft) and list(draft[:len(written)]) == list(written)

    def _follow(self) -> None:
        """Judge what the stream has passed, and begin anew where it went another way."""
        written = self.context.ids[self._base:]
        if self._agrees(written, self._draft):
            self._judge(len(written))
            return
        self._judge(len(self._draft))
        self._begin()

    def _begin(self) -> None:
        self._base = len(self.context.ids)
        self._draft, self._parts, self._told = [], [], 0
        if self._base - self._start > LONGEST_SIDE or self._start == 0:
            self._start = max(0, self._base - TAIL)

    def _judge(self, passed: int) -> None:
        """Tell of the injections that lie within so many tokens of the draft, and were not told of yet."""
        written = self.context.ids[self._base:]
        for number, (begin, drafter) in enumerate(self._parts):
            end = self._parts[number + 1][0] if number + 1 < len(self._parts) else len(self._draft)
            if begin >= self._told and end <= passed:
                self._told = end
                if len(written) > begin and written[:begin] == self._draft[:begin]:
                    self.judged(drafter, self._draft[begin:end], written[begin:end])
