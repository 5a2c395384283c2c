"""Speculation in front of one target: which requests it answers, and everything that its answers share.

The proxy asks `open` for each request that it has admitted to the target. None means that the request goes through as
it came, and `why` says why; that is never an error, for the target alone answers everything.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from fleet.proxy.exchange import Call
from fleet.proxy.upstream import Upstream
from fleet.proxy.wire import Head, WireError
from fleet.runtimes.head_metrics import parse_metrics
from fleet.speculation.asking import Asker, Refused
from fleet.speculation.bench import Bench
from fleet.speculation.choice import Choice, Mode, Round, Steering
from fleet.speculation.controller import INJECTED, SHAPES, Controller
from fleet.speculation.drafters import Context, drafters_of
from fleet.speculation.forms import Form, Tally, Written
from fleet.speculation.honesty import HonestyMeter
from fleet.speculation.injection import NEEDED, takes_drafts
from fleet.speculation.pieces import Pieces
from fleet.speculation.race import Race, Runner
from fleet.speculation.request import Asked, read_request
from fleet.speculation.settings import DrafterKind, SpeculationMode, SpeculationSettings
from fleet.speculation.shares import Keeping, Shares
from fleet.speculation.spoken import Spawn, Spoken
from fleet.speculation.strand import Strand
from fleet.speculation.target import LOOK_TIMEOUT, Abilities, Target
from fleet.text import visible

LOOK_AGAIN = 600.0         # seconds for which what a target said of itself is believed, unless probes see another one
LOOK_INSIDE = 2.0          # seconds between two questions for a head's own counts
LOOK_AFTER_TROUBLE = 5.0   # seconds until a target that could not be asked is asked again
MOST_WAITS, WAIT = 240, 0.5   # looks for a moment in which nobody asks, and seconds between them
WATCHED = 5.0              # seconds after somebody has looked at the state
RACE = "all"               # what the controller knows several drafting servers as: they race each time
STREAM = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
WHOLE = [(b"content-type", b"application/json; charset=utf-8")]
Steer = Callable[[Abilities, Sequence[str]], Steering]


class Always:
    """A controller that never changes its mind."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    def choose(self, context: int) -> Choice:
        """The same as ever."""
        return self._choice

    def record(self, round: Round) -> None:
        """It learns nothing."""

    def state(self) -> dict[str, object]:
        """What it always says."""
        choice = self._choice
        return {"mode": str(choice.mode), "reason": choice.reason, "draft_length": choice.draft_length,
                "stride": choice.stride, "drafter": choice.drafter}


class TargetSession:
    """One target and its drafters.

    Args:
        upstream: the target, whose connections are used.
        spawn: runs what makes an answer, in the proxy's own group of tasks.
        steer: makes the controller; None = as the settings say.
    """

    def __init__(self, upstream: Upstream, settings: SpeculationSettings, *, clock: Callable[[], float], spawn: Spawn,
                 steer: Steer | None = None) -> None:
        self.settings = settings
        self.why = "Nobody has asked for anything yet."
        self._upstream = upstream
        self._clock = clock
        self._spawn = spawn
        self._steer = steer or self._as_set
        self._target = Target(Asker(upstream.pool, upstream.settings.key))
        self._bench: Bench | None = None
        self._looked_at = 0.0
        self._looked_like: tuple[object, ...] = ()
        self._look = asyncio.Lock()
        self._inside_at = 0.0                # before it a head is not asked for its own counts again
        self.honesty = HonestyMeter(settings.honesty, clock=clock, random=random.random)
        self._answering = 0                  # requests
        self._answered = self._passed = 0

    @property
    def name(self) -> str:
        """Of the target."""
        return self._upstream.name

    # --- a request -----------------------------------------------------------------------------------

    async def open(self, call: Call) -> Spoken | None:
        """An answer to `call`, not begun yet; None where the target shall answer by itself."""
        if self.settings.mode in (SpeculationMode.OFF, SpeculationMode.NATIVE):
            self.why = "It is off." if self.settings.mode is SpeculationMode.OFF else "It is left to the head."
            return None
        asked = read_request(call)                       # before anything is asked of anybody
        if isinstance(asked, Asked):
            try:
                bench = await self._ready()
                asked = self._unable(bench.abilities) or bench.keeping.problem or read_request(
                    call, template=bench.abilities.template)
                if isinstance(asked, Asked):
                    context = await self._context(asked)
                    if not bench.abilities.context or len(context.ids) < bench.abilities.context:
                        self.why = ""
                        return Spoken(lambda spoken: self._answer(bench, asked, context, spoken), self._spawn)
                    asked = "Its prompt is longer than the context."
            except (WireError, Refused) as error:
                asked = f"The target could not be asked: {error}"
                self._looked_at = min(self._looked_at, self._clock() - LOOK_AGAIN + LOOK_AFTER_TROUBLE)
        self._passed += 1
        self._look_inside()
        self.why = visible(str(asked), limit=500)
        return None

    async def _ready(self) -> Bench:
        """Everything about the target, looked at now and then. Raises WireError and Refused."""
        async with self._look:
            upstream = self._upstream
            like = (upstream.told_models, upstream.context, upstream.slots, upstream.build, upstream.failures)
            if self._bench is not None and like == self._looked_like and self._clock() - self._looked_at < LOOK_AGAIN:
                return self._bench
            abilities = await self._abilities(like)
            if self._bench is not None and like != self._looked_like:
                self._bench.keeping = Keeping()          # it may have been started anew, with other flags
            self._looked_at, self._looked_like = self._clock(), like
            if self._bench is None or self._bench.abilities != abilities:
                if self._bench is not None:
                    self._bench.race.close()
                self._bench = self._bench_for(abilities)
            return self._bench

    def _look_inside(self) -> None:
        """Ask a head that drafts by itself how its drafts went by position, while somebody looks.

        Only beside a request: some builds that sleep would wake for this question.
        """
        bench, now = self._bench, self._clock()
        if bench is not None and bench.abilities.speculates and now < bench.watched_until and now >= self._inside_at:
            self._inside_at = now + LOOK_INSIDE
            self._spawn(self._read_positions(bench))

    async def _read_positions(self, bench: Bench) -> None:
        try:
            said = await bench.target.asker.text("/metrics", LOOK_TIMEOUT)
        except (WireError, Refused):
            return                                       # started without --metrics: it tells none
        bench.positions = parse_metrics(said).chance_by_position

    async def _abilities(self, like: tuple[object, ...]) -> Abilities:
        """What the target says of itself; whether it takes injected drafts is tried out, once while it is the same."""
        abilities, known = await self._target.look(), self._bench
        # Without a drafter there is nothing to inject, and n-grams of its own the head has itself.
        wanted = self.settings.drafters and self.settings.mode in (SpeculationMode.AUTO, SpeculationMode.INJECTION)
        if not (wanted and abilities.speculates and abilities.slots > 1 and abilities.vocabulary):
            return abilities
        if known is not None and like == self._looked_like:
            injects = known.abilities.injects
        else:
            injects = await takes_drafts(self._target.asker, abilities.vocabulary)
        return replace(abilities, injects=injects)

    def _bench_for(self, abilities: Abilities) -> Bench:
        settings, upstream = self.settings, self._upstream
        drafters = drafters_of(settings.drafters, self._target, abilities, ngram=settings.ngram,
                               deadline=settings.deadline)
        race = Race([Runner(drafter) for drafter in drafters], self._clock, settings.deadline, {
            DrafterKind.NGRAM: settings.grace, DrafterKind.LLAMA_SERVER: settings.grace,
            DrafterKind.OLLAMA: settings.grace_text})
        servers = [drafter.name for drafter in drafters if drafter.kind is not DrafterKind.NGRAM]
        own = [drafter.name for drafter in drafters if drafter.kind is DrafterKind.NGRAM and not abilities.injects]
        names = own + (
            servers if len(servers) < 2 else [RACE])
        return Bench(
            self._target, abilities, Pieces(self._target), race, self._steer(abilities, names),
            Shares(abilities.slots, abilities.context, lambda: max(0, upstream.running - self._answering)), settings,
            self._clock, upstream.settings.first_byte_timeout, upstream.settings.stall_timeout)

    def _as_set(self, abilities: Abilities, names: Sequence[str]) -> Steering:
        settings = self.settings
        if settings.mode is SpeculationMode.STRIDED and names:
            return Always(Choice(Mode.STRIDED, settings.draft_length, settings.stride, "", "It is set to be so."))
        if settings.mode is SpeculationMode.INJECTION:
            return Always(Choice(Mode.INJECTION, settings.draft_length, 1, "", "It is set to be so."))
        modes = {Mode.PLAIN, Mode.STRIDED} | ({Mode.INJECTION} if abilities.injects else set())
        shapes = [(length, stride) for length, stride in SHAPES
                  if length <= settings.draft_length and stride <= settings.stride]
        return Controller(modes, list(names), clock=self._clock, slots=abilities.slots, shapes=shapes,
                          injected=[length for length in INJECTED if length <= settings.draft_length])

    def _unable(self, abilities: Abilities) -> str:
        """Why this target cannot be asked in this way, "" where it can."""
        if self.settings.mode is SpeculationMode.INJECTION and not abilities.injects:
            return NEEDED if self.settings.drafters else "Injection needs a drafter that is a server."
        if abilities.speculates and not abilities.injects:
            return ("The head speculates by itself, which takes fewer passes; its own figures are shown.")
        if abilities.slots < 2:
            return (f"The target has {abilities.slots} slot, and a round asks for several continuations at once. "
                    "Start it with -np 9 -kvu --no-cache-idle-slots.")
        if not self.settings.ngram and not self.settings.drafters:
            return "There is no drafter."
        return ""

    async def _context(self, asked: Asked) -> Context:
        """The prompt in tokens of the target. Raises WireError and Refused."""
        target, prompt = self._target, asked.text
        if asked.tokens is not None:
            return Context(list(asked.tokens), sampling=asked.sampling)
        if asked.chat is not None:
            prompt = await target.apply_template(asked.chat)
        assert prompt is not None
        ids = await target.tokenize(prompt, special=True)
        if not ids:
            raise Refused(200, "It made no tokens of the prompt.")
        return Context(ids, prompt, sampling=asked.sampling, ascii=prompt.isascii())

    # --- an answer -----------------------------------------------------------------------------------

    async def _answer(self, bench: Bench, asked: Asked, context: Context, spoken: Spoken) -> None:
        """Make the whole answer. Raises WireError."""
        form = Form(asked, model=bench.abilities.model, build=bench.abilities.build, now=time.time())
        written = [Written(index) for index in range(asked.answers)]
        strands: list[Strand] = []

        def emits(answer: Written) -> Callable[[str, Sequence[Mapping[str, object]]], object]:
            async def emit(text: str, probabilities: Sequence[Mapping[str, object]]) -> None:
                if asked.streaming:
                    if not spoken.begun:
                        spoken.begin(Head(200, list(STREAM), keep_alive=False, chunked=True))
                        for one in written:
                            await spoken.write(form.first(one.index))
                    await spoken.write(form.delta(answer.index, text, probabilities))
                else:
                    answer.text += text
                    answer.probabilities += probabilities
            return emit

        for answer in written:
            own = Context(list(context.ids), context.prompt, sampling=context.sampling, ascii=context.ascii)
            strands.append(Strand(bench, asked, own, emits(answer), moved=spoken.move))
        bench.shares.streams += len(strands)
        self._answering += 1
        try:
            await self._write(strands, written, asked, form, spoken)
        except Refused as refused:
            if spoken.begun or refused.status < 400:
                raise WireError("dropped", f"The target said: {refused}", started=spoken.begun) from refused
            # Nothing has gone to the client: it gets the target's own refusal.
            spoken.begin(Head(refused.status, list(WHOLE), keep_alive=False, chunked=True))
            await spoken.write(json.dumps({"error": {"code": refused.status, "message": refused.message,
                                                     "type": refused.kind}}).encode())
            return
        finally:
            bench.shares.streams -= len(strands)
            self._answering -= 1
        self._answered += 1
        self._check(bench, asked, context, strands)

    def _check(self, bench: Bench, asked: Asked, context: Context, strands: Sequence[Strand]) -> None:
        """Some answers are asked for again, plainly, when nobody else asks for anything."""
        strand = strands[0]
        if len(strands) == 1 and len(strand.ids) == strand.written and self.honesty.sample(
                temperature=0.0 if asked.greedy else 1.0, drafted=strand.tally.drafted, written=strand.written):
            self._spawn(self._ask_again(bench, asked, context.ids, strand.ids))

    async def _ask_again(self, bench: Bench, asked: Asked, prompt: Sequence[int], said: Sequence[int]) -> None:
        for _ in range(MOST_WAITS):
            if not self._upstream.running:
                break
            await asyncio.sleep(WAIT)
        else:
            self.honesty.gave_up()
            return
        try:
            found = await self._target.after(prompt, [()], len(said), asked.sampling, timeout=bench.timeout)
        except (WireError, Refused):
            self.honesty.gave_up()
            return
        self.honesty.compare(said, found[0].tokens)

    async def _write(self, strands: Sequence[Strand], written: Sequence[Written], asked: Asked, form: Form,
                     spoken: Spoken) -> None:
        whole = Tally()

        async def one(strand: Strand, answer: Written, *, last: Callable[[], bool]) -> None:
            await strand.first()
            await strand.run()
            answer.reason = strand.reason
            if not whole.prompt:
                whole.prompt, whole.cached = strand.tally.prompt, strand.tally.cached
                whole.prompt_seconds = strand.tally.prompt_seconds
            whole.add(strand.tally)
            left.discard(answer.index)
            if asked.streaming:
                if not spoken.begun:
                    spoken.begin(Head(200, list(STREAM), keep_alive=False, chunked=True))
                    for other in written:
                        await spoken.write(form.first(other.index))
                await spoken.write(form.finish(answer.index, answer.reason, whole, last=last()))

        left = {answer.index for answer in written}
        if len(strands) == 1:
            await one(strands[0], written[0], last=lambda: True)
        else:
            async with asyncio.TaskGroup() as group:
                for strand, answer in zip(strands, written, strict=True):
                    group.create_task(one(strand, answer, last=lambda: not left))
        if asked.streaming:
            await spoken.write(form.end(whole))
        else:
            spoken.begin(Head(200, list(WHOLE), keep_alive=False, chunked=True))
            await spoken.write(form.whole(written, whole))

    # --- what is shown -------------------------------------------------------------------------------

    def state(self, drafted: int = 0, accepted: int = 0) -> dict[str, object]:
        """As JSON, for the Draft screen and the control interface.

        Args:
            drafted: tokens of all drafts before or inside this target so far, as its answers told.
            accepted: how many of them were right.
        """
        bench = self._bench
        said: dict[str, object] = {
            "upstream": self.name, "setting": str(self.settings.mode), "why": self.why,
            "answered": self._answered, "passed_on": self._passed, "drafted": drafted, "accepted": accepted,
            "mode": "plain", "reason": self.why}
        if bench is None:
            return said
        bench.watched_until = self._clock() + WATCHED
        steering = bench.steering.state()
        said |= steering
        if self.why:
            said |= {"reason": self.why} | ({"mode": str(Mode.PLAIN)} if self._unable(bench.abilities) else {})
        if (bench.abilities.speculates and not bench.abilities.injects) or self.settings.mode is SpeculationMode.NATIVE:
            said |= {"mode": str(Mode.NATIVE), "acceptance": accepted / drafted if drafted else None}
            bench.history.counted(drafted, accepted)
            said["by_position"] = list(bench.positions)
        said |= {"drafters": bench.race.state(), "rounds_total": steering.get("rounds"),
                 "history": bench.history.state(),
                 "rounds": [_aged(entry, self._clock()) for entry in bench.rounds],
                 "honesty": self.honesty.state(quantised=bench.abilities.quantised),
                 "look_ahead": round(bench.ahead.rate, 3), "slots": bench.abilities.slots,
                 "context": bench.abilities.context, "build": bench.abilities.build}
        return said

    def close(self) -> None:
        """End what it keeps of its own."""
        if self._bench is not None:
            self._bench.race.close()
            self._bench = None


def _aged(entry: Mapping[str, object], now: float) -> dict[str, object]:
    """A round with its age in place of a clock that nobody else has."""
    at = entry["at"]
    assert isinstance(at, float)
    return {**{key: value for key, value in entry.items() if key != "at"}, "seconds_ago": round(now - at, 1)}


def drafting_state(sessions: Iterable[TargetSession], counts: Callable[[str], tuple[int, int]]) -> dict[str, object]:
    """What the Draft screen shows: the target that answered most with drafts, and the others by name.

    Args:
        counts: drafted and accepted tokens so far, by the name of an upstream.
    """
    states = sorted((session.state(*counts(session.name)) for session in sessions),
                    key=lambda said: -int(str(said["answered"])))
    return {**states[0], "targets": states} if states else {}
