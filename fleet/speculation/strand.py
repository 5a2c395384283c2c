"""One answer as it grows, round by round: choose, draft, verify, give out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from fleet.proxy.exchange import ApiKind
from fleet.proxy.wire import WireError
from fleet.runtimes.head_answers import count, error_message, mapping, text
from fleet.speculation.ahead import Ahead
from fleet.speculation.asking import Refused
from fleet.speculation.bench import Bench
from fleet.speculation.beside import Beside
from fleet.speculation.choice import Choice, Mode, Round
from fleet.speculation.drafters import Context
from fleet.speculation.forms import Tally
from fleet.speculation.injection import LONGEST_SIDE
from fleet.speculation.pieces import BROKEN, Pieces, Text
from fleet.speculation.race import Draft
from fleet.speculation.request import Asked
from fleet.speculation.stops import Stops
from fleet.speculation.strided import Part, Verified, verify
from fleet.speculation.target import ids_of

MOST_TOKENS = 1 << 20          # of one answer, where nothing else ends it
BURST = 0.15                   # seconds of plain tokens that go out in one piece to a client that reads a stream
STREAMED = 24                  # tokens of a plain stretch from which on the target writes them as a stream
SMOOTH = 0.2                   # weight of a new measurement in a smoothed one

Emit = Callable[[str, Sequence[Mapping[str, object]]], Awaitable[None]]


class Strand:
    """One continuation of one prompt. Errors of the target are its own: WireError."""

    def __init__(self, bench: Bench, asked: Asked, context: Context, emit: Emit, *, moved: Callable[[], None]) -> None:
        self.tally = Tally(prompt=len(context.ids))
        self.reason = ""                       # "stop" or "length", when it has ended
        self.written = 0
        self._bench = bench
        self._asked = asked
        self._context = context
        self._emit = emit
        self._moved = moved
        self._text = Text(bench.pieces)
        self._stops = Stops(asked.stops)
        self._ahead = Ahead(bench.ahead)
        self._probabilities = {"n_probs": asked.probabilities} if asked.probabilities else {}
        self._sampling = {**asked.sampling, **self._probabilities}
        room = bench.abilities.context - len(context.ids) if bench.abilities.context else MOST_TOKENS
        self._most = min(room, asked.most or bench.abilities.most or MOST_TOKENS)
        self._since = 0.0                      # the clock at the first token
        self._prompts = 0                      # of the widest round so far: slots that know this context
        self._chosen: Choice | None = None     # for the next round, where it was asked for already
        self._read = (0, 0.0)                  # prompt tokens that were read, and seconds; until a round has told them

    @property
    def ids(self) -> list[int]:
        """The tokens that were written, as far as they are known."""
        return self._context.ids[self.tally.prompt:]

    @property
    def left(self) -> int:
        """Tokens that may still come."""
        return self._most - self.written

    async def first(self) -> None:
        """Read the prompt and say the first token. Raises WireError and Refused."""
        bench = self._bench
        found = await verify(bench.target, self._context.ids, (), 1, self._sampling, pieces=bench.pieces,
                             within=False, ascii=True, timeout=bench.first_timeout)
        self._since = bench.clock()
        self.tally.cached = max(0, self.tally.prompt - found.read)
        self.tally.prompt_seconds = found.read_seconds
        self._read = (found.read, found.read_seconds)
        await self._take(found)

    async def run(self) -> None:
        """All the rest, to its end. Raises WireError."""
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    while not self.reason:
                        await self._round(group)
                finally:
                    self._ahead.drop()
        except* Refused as refused:
            first = refused.exceptions[0]
            raise WireError("dropped", f"It said: {first}", started=True) from first
        self.tally.seconds = self._bench.clock() - self._since
        self.tally.written = self.written
        rest = await self._text.rest() if self._tells_halves else ""
        if not self._stops.found and (rest := self._stops.feed(rest) + self._stops.rest()):
            await self._emit(rest, ())

    @property
    def _tells_halves(self) -> bool:
        """Half a character at the end is told by a completion in one piece alone: a llama-server's chats and streams
        leave it out."""
        return not self._asked.streaming and self._asked.kind is ApiKind.COMPLETION

    # --- one round -----------------------------------------------------------------------------------

    async def _round(self, group: asyncio.TaskGroup) -> None:
        choice, self._chosen = self._chosen, None
        choice = choice or self._bench.steering.choose(len(self._context.ids))
        if self._asked.probabilities and self._bench.abilities.injects:
            # Of what it drafts by itself a head tells no chances: so one token at a time, or places of a draft.
            choice = replace(choice, stride=1) if choice.mode is Mode.STRIDED else Choice(Mode.STRIDED, 0, 1)
        if self._text.within_character:
            await self._verify(Choice(Mode.STRIDED, 0, 1), None, 0.0, told=False)
        elif choice.mode is Mode.STRIDED and not self._bench.keeping.problem:
            await self._speculate(choice, group)
        elif choice.mode is Mode.STRIDED:
            await self._stream(Choice(Mode.PLAIN, reason=self._bench.keeping.problem), group)
        elif choice.mode is Mode.INJECTION or choice.stretch <= 0 or choice.stretch >= STREAMED:
            await self._stream(choice, group)
        else:
            await self._stretch(choice)

    async def _speculate(self, choice: Choice, group: asyncio.TaskGroup) -> None:
        bench, context = self._bench, self._context
        stride = max(1, min(choice.stride, self.left))
        longest = max(choice.draft_length, choice.ready_length)
        lanes = bench.shares.lanes(len(context.ids) + longest + stride)
        room = bench.abilities.context - len(context.ids) - stride if bench.abilities.context else longest
        ready = min(longest, (lanes - 1) * stride, self.left - 1, room)
        ready -= ready % stride
        most = min(choice.draft_length - choice.draft_length % stride, ready)
        begun = bench.clock()
        draft = None
        if most > 0:
            draft = await self._ahead.take(ready)
            if draft is None or len(draft.ids) < stride:
                draft = await bench.race.draft(context, most, only=choice.drafter, round_seconds=bench.round_seconds)
        self._ahead.drop()
        waited = bench.clock() - begun
        if draft is not None and self._looks_ahead(draft, most):
            ids = draft.ids[:len(draft.ids) - len(draft.ids) % stride]
            ahead = context.ahead(ids)
            in_time = bench.race.named(draft.drafter).in_time(bench.round_seconds)
            wanted = stride + max(most, min(ready, in_time - stride))
            self._ahead.begin(group, lambda: bench.race.draft(ahead, wanted, only=draft.drafter,
                                                              round_seconds=bench.round_seconds))
        await self._verify(choice, draft, waited, told=True, stride=stride)

    def _looks_ahead(self, draft: Draft, most: int) -> bool:
        bench = self._bench
        return (bench.settings.look_ahead and len(draft.ids) >= most and self.left > 2 * most
                and bench.race.named(draft.drafter).seconds > 0.002 and bench.ahead.pays())

    async def _verify(self, choice: Choice, draft: Draft | None, waited: float, *, told: bool, stride: int = 1
                      ) -> None:
        """Ask the target, give out what it says, and tell the controller where `told`."""
        bench, context = self._bench, self._context
        before, begun = len(context.ids), bench.clock()
        found = await verify(bench.target, context.ids, draft.ids if draft else (), stride, self._sampling,
                             pieces=bench.pieces, within=self._text.within_character,
                             ascii=draft.ascii if draft else True, timeout=bench.timeout)
        took = bench.clock() - begun
        self._moved()
        prompts = found.drafted // found.stride + 1
        if prompts <= self._prompts:
            bench.keeping.saw(context=before, prompts=prompts, read=found.read)
        self._prompts = max(self._prompts, prompts)
        drafted = draft.ids[:found.drafted] if draft else ()
        self._ahead.settle(all_right=bool(draft) and found.accepted == len(drafted), bonus=found.bonus)
        written = await self._take(found)
        self.tally.drafted += found.drafted
        self.tally.accepted += min(found.accepted, written)
        if draft is not None and found.drafted:
            bench.race.judged(draft.drafter, found.drafted, found.accepted)
        elif draft is not None and found.refused:
            bench.race.refused(draft.drafter, "The target takes none of its drafts.")
        if told:
            bench.round_seconds += SMOOTH * (took - bench.round_seconds)
            bench.record(Round(
                Mode.STRIDED, choice.draft_length, choice.stride, before, found.drafted, found.accepted, written,
                waited, took, choice.drafter))
            await bench.show(Mode.STRIDED, draft.drafter if draft else "", drafted, found.accepted, found.ids,
                             stride=found.stride, waited=waited, took=took)

    async def _stretch(self, choice: Choice) -> None:
        """Plain tokens, in pieces of a moment each for a client that reads a stream."""
        bench = self._bench
        before, seconds, emitted = len(self._context.ids), 0.0, 0
        wanted = min(choice.stretch, self.left)
        while emitted < wanted and not self.reason:
            burst = wanted - emitted
            if self._asked.streaming:
                burst = min(burst, max(1, int(BURST / bench.token_seconds)) if bench.token_seconds else 2)
            begun = bench.clock()
            found = await verify(bench.target, self._context.ids, (), burst, self._sampling, pieces=bench.pieces,
                                 within=self._text.within_character, ascii=True, timeout=bench.timeout)
            took = bench.clock() - begun
            self._moved()
            written = await self._take(found)
            seconds, emitted = seconds + took, emitted + written
        self._tell(choice, before, emitted, seconds)

    async def _stream(self, choice: Choice, group: asyncio.TaskGroup) -> None:
        """Let the target write by itself, as a stream of its own, for as long as the controller says so.

        It is cut only where rounds are chosen: until then it costs what the target alone does. Injection goes on
        beside it.
        """
        bench, context = self._bench, self._context
        events = bench.target.asker.stream("/completion", {
            **self._sampling, "prompt": context.ids, "n_predict": self.left, "stream": True, "stop": [],
            "cache_prompt": True, "return_tokens": True, "timings_per_token": bench.abilities.injects}, bench.timeout)
        beside = Beside(bench, context, group)
        before, begun = len(context.ids), bench.clock()
        total = mark = 0                       # tokens of the stream, and of it before the stretch
        known = True                           # which tokens they were
        choice = self._able(choice)
        beside.follow(choice)
        try:
            async with aclosing(events):
                async for event in events:
                    said = mapping(event)
                    if message := error_message(said):
                        raise WireError("dropped", f"It said: {message}", started=True)
                    self._moved()
                    content, ids = text(said.get("content")), ids_of(said.get("tokens"))
                    told = count(said.get("tokens_predicted"))
                    new = (total + len(ids) if told is None else told) - total
                    known = known and await self._follow(ids, new, content)
                    total, self.written = total + new, self.written + new
                    await beside.grew(mapping(said.get("timings")), known=known)
                    probabilities = said.get("completion_probabilities")
                    shown = [mapping(one) for one in probabilities] if isinstance(probabilities, list) else []
                    if new and not content and self._tells_halves and said.get("stop") is True:
                        content = BROKEN
                    out = self._stops.feed(content)
                    if out or shown:
                        await self._emit(out, shown)
                    if self._stops.found:
                        self.reason = "stop"
                    elif said.get("stop") is True:
                        self.reason = "stop" if said.get("stop_type") == "eos" else "length"
                    if self.reason:
                        break
                    if known and self.left > 0 and 0 < choice.stretch <= total - mark:
                        self._tell(choice, before, total - mark, bench.clock() - begun, beside.counted())
                        before, begun, mark = len(context.ids), bench.clock(), total
                        choice = bench.steering.choose(before)
                        if choice.mode is Mode.STRIDED:
                            self._chosen = choice
                            return
                        choice = self._able(choice)
                        beside.follow(choice)
                else:
                    raise WireError("dropped", "The target ended its answer before it was finished.", started=True)
        finally:
            beside.end()
            self.tally.drafted += beside.drafted
            self.tally.accepted += beside.accepted
        self._tell(choice, before, total - mark, bench.clock() - begun, beside.counted())

    def _able(self, choice: Choice) -> Choice:
        """Plain in the place of injection, where there is no second slot or the head takes no more."""
        bench = self._bench
        if choice.mode is not Mode.INJECTION or (bench.shares.lanes(LONGEST_SIDE) > 1 and not bench.injection_problem):
            return choice
        return Choice(Mode.PLAIN, reason=choice.reason, stretch=choice.stretch)

    async def _follow(self, ids: Sequence[int], new: int, content: str) -> bool:
        """Take note of what came in a stream; whether all its tokens are known.

        Of a character in several tokens a stream tells the last one alone. The others are what the target itself makes
        of the character, if it comes to the same number of tokens, the same last one and the same text.
        """
        bench, context = self._bench, self._context
        if new > len(ids) and ids and content:
            found = (await bench.target.tokenize(content))[-new:]
            if len(found) == new and found[-1] == ids[-1] and await bench.target.text_of(found) == content:
                ids = found
        context.written += content
        context.ascii = context.ascii and content.isascii()
        context.ids += ids
        return new == len(ids)

    def _tell(self, choice: Choice, before: int, emitted: int, seconds: float, counted: tuple[int, int] = (0, 0)
              ) -> None:
        """A stretch has ended; `counted`: drafted and accepted tokens."""
        bench = self._bench
        if emitted and choice.mode is Mode.PLAIN:
            bench.token_seconds += (SMOOTH if bench.token_seconds else 1.0) * (seconds / emitted - bench.token_seconds)
        (read, read_seconds), self._read = self._read, (0, 0.0)
        bench.record(Round(choice.mode, choice.draft_length, choice.stride, before, *counted, emitted, 0.0, seconds,
                           choice.drafter, read, read_seconds))

    # --- giving out ----------------------------------------------------------------------------------

    async def _take(self, found: Verified) -> int:
        """Give out the tokens of a round, as far as they may go. Returns how many went."""
        before = self.written
        for part in found.parts:
            for ids, said, ended in await self._units(part):
                await self._unit(ids, said, ended, part)
                if self.reason:
                    return self.written - before
        return self.written - before

    async def _units(self, part: Part) -> list[tuple[tuple[int, ...], str | None, bool]]:
        """A part in pieces that can be counted: token by token where a stop string or the limit may lie within it."""
        words = part.ids[:-1] if part.ended else part.ids
        end: list[tuple[tuple[int, ...], str | None, bool]] = [(part.ids[-1:], "", True)] if part.ended else []
        if len(words) > self.left or (self._asked.stops and len(words) > 1):
            pieces = self._bench.pieces
            await pieces.know(words)
            said = [pieces.get(token) for token in words]
            whole = part.content is not None and "".join(said) == part.content
            if whole or len(words) > self.left or part.content is None or any(map(pieces.broken, words)):
                return [((token,), None, False) for token in words] + end
        return ([(words, part.content, False)] if words else []) + end

    async def _unit(self, ids: tuple[int, ...], said: str | None, ended: bool, part: Part) -> None:
        self.written += len(ids)
        self._context.ids += ids
        if ended:
            self.reason = "stop"
            return
        text = await self._text.add(ids, said)
        self._context.written += text
        self._context.ascii = self._context.ascii and text.isascii()
        out = self._stops.feed(text)
        told = _of(ids, part.probabilities, self._bench.pieces) if self._asked.probabilities else ()
        if out or told:
            await self._emit(out, told)
        if self._stops.found:
            self.reason = "stop"
        elif self.left <= 0:
            self.reason = "length"


def _of(ids: Sequence[int], probabilities: Sequence[Mapping[str, object]], pieces: Pieces
        ) -> list[Mapping[str, object]]:
    """What was told of these tokens. Where a token alone was asked for its text was left out: it is put back."""
    told = []
    for token in ids:
        found = next((one for one in probabilities if one.get("id") == token), None)
        if found is not None:
            if not found.get("token") and (piece := pieces.get(token)):
                found = {**found, "token": piece, "bytes": list(piece.encode())}
            told.append(found)
    return told
