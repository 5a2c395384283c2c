"""Who guesses the next tokens. A guess is never trusted: it costs time where it is wrong, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from fleet.proxy.wire import WireError
from fleet.runtimes.head_answers import count, error_message, mapping, text
from fleet.speculation.asking import Asker, Refused
from fleet.speculation.ngram import NgramIndex
from fleet.speculation.pieces import BROKEN
from fleet.speculation.settings import DrafterKind, DrafterSettings
from fleet.speculation.target import Abilities, Target, ids_of

TAIL = 48                      # characters before a text that it is cut into tokens with
NO_TEXT = "does not match the expected"      # of a llama-server's 500 to its own words
# Fields of a request that a draft model should follow too, or it guesses what the target is kept from saying.
_FOLLOWED = ("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty", "logit_bias", "ignore_eos",
             "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers")


class DraftFailed(Exception):
    """There is no guess; the message says why."""


@dataclass(slots=True)
class Context:
    """All that is written so far."""

    ids: list[int]
    prompt: str | None = None                  # its text; None where the client sent tokens
    written: str = ""                          # text after it
    sampling: Mapping[str, object] = field(default_factory=dict)
    index: NgramIndex | None = field(default_factory=NgramIndex)
    ascii: bool = False                        # every token of it ends between two characters

    def ahead(self, more: Sequence[int]) -> Context:
        """This context, if the target writes `more`; without n-grams, which cost nothing when it has."""
        return Context([*self.ids, *more], sampling=self.sampling, index=None)


@dataclass(frozen=True, slots=True)
class Guess:
    """What a drafter says comes next."""

    ids: tuple[int, ...]
    ascii: bool = False                        # every beginning of it ends between two characters


class Drafter(Protocol):
    """One of them."""

    name: str
    kind: DrafterKind

    async def draft(self, context: Context, most: int) -> Guess:
        """Up to `most` tokens; none where it has nothing to say, or says that the text ends. Raises DraftFailed."""
        ...

    def close(self) -> None:
        """End its connections."""
        ...


class NgramDrafter:
    """The request's own words: no model, no server, always there."""

    name, kind = "ngram", DrafterKind.NGRAM

    async def draft(self, context: Context, most: int) -> Guess:
        """What followed the last time."""
        return Guess(tuple(context.index.draft(context.ids, most)) if context.index else (), context.ascii)

    def close(self) -> None:
        """There is nothing to end."""


class LlamaDrafter:
    """A llama-server. With the target's vocabulary it is asked in tokens, with another one in text."""

    kind = DrafterKind.LLAMA_SERVER

    def __init__(self, settings: DrafterSettings, target: Target, abilities: Abilities, deadline: float) -> None:
        self.name = settings.name
        self.same_vocabulary: bool | None = None           # None = not known yet
        self._asker = Asker.at(settings.url, settings.key)
        self._server = Target(self._asker)
        self._target = target
        self._abilities = abilities
        self._deadline = deadline

    async def draft(self, context: Context, most: int) -> Guess:
        """Its own greedy continuation."""
        try:
            if self.same_vocabulary is None:
                own = await self._server.look(with_slots=False)
                self.same_vocabulary = own.fingerprint == self._abilities.fingerprint
            prompt: object = context.ids if self.same_vocabulary else await text_so_far(context, self._target)
            ids, content = await self._ask(prompt, context, most)
            if not self.same_vocabulary:
                return await _retokenised(content, context, self._target, most)
        except (WireError, Refused) as error:
            if isinstance(error, Refused) and NO_TEXT in error.message:
                return Guess(())                           # what it wrote is no text: it has nothing to say
            if isinstance(error, WireError) and not error.started:
                self.same_vocabulary = None                # whoever comes back may be another one
            raise DraftFailed(str(error)) from error
        if any(token >= self._abilities.vocabulary for token in ids if self._abilities.vocabulary):
            raise DraftFailed("It drafts tokens that the target does not have.")
        return Guess(tuple(ids), content.isascii())

    async def _ask(self, prompt: object, context: Context, most: int) -> tuple[list[int], str]:
        """Tokens and text. As a stream, for b10068 goes on with an answer in one piece when nobody waits any more."""
        followed = {key: context.sampling[key] for key in _FOLLOWED if key in context.sampling}
        ids: list[int] = []
        content = ""
        events = self._asker.stream("/completion", {
            **(followed if self.same_vocabulary else {}), "prompt": prompt, "n_predict": most, "temperature": 0,
            "cache_prompt": True, "return_tokens": True, "stream": True}, self._deadline)
        async with aclosing(events):
            async for event in events:
                said = mapping(event)
                if message := error_message(said):
                    if ids:
                        break
                    raise Refused(500, message)
                if said.get("stop") is True:
                    continue                               # to the end, so that the connection can be used again
                told = count(said.get("tokens_predicted"))
                if self.same_vocabulary and told is not None and told != len(ids) + 1:
                    break                                  # parts of a character are not told one by one
                ids += ids_of(said.get("tokens"))
                content += text(said.get("content"))
        return ids[:most], content

    def close(self) -> None:
        """End its connections."""
        self._asker.close()


class OllamaDrafter:
    """Ollama: text in, text out, cut into tokens by the target."""

    kind = DrafterKind.OLLAMA

    def __init__(self, settings: DrafterSettings, target: Target, deadline: float) -> None:
        self.name = settings.name
        self._model = settings.model
        self._asker = Asker.at(settings.url, settings.key)
        self._target = target
        self._deadline = deadline

    async def draft(self, context: Context, most: int) -> Guess:
        """Its own greedy continuation of the raw text, without any template of its own."""
        try:
            said = mapping(await self._asker.post("/api/generate", {
                "model": self._model, "prompt": await text_so_far(context, self._target), "raw": True, "stream": False,
                "options": {"num_predict": most, "temperature": 0}}, self._deadline))
            return await _retokenised(text(said.get("response")), context, self._target, most)
        except (WireError, Refused) as error:
            raise DraftFailed(str(error)) from error

    def close(self) -> None:
        """End its connections."""
        self._asker.close()


def drafters_of(settings: Sequence[DrafterSettings], target: Target, abilities: Abilities, *, ngram: bool,
                deadline: float) -> list[Drafter]:
    """The drafters that the settings name. Raises ConfigError for a URL that is none."""
    found: list[Drafter] = [NgramDrafter()] if ngram else []
    for one in settings:
        if one.kind is DrafterKind.OLLAMA:
            found.append(OllamaDrafter(one, target, deadline))
        elif one.kind is DrafterKind.LLAMA_SERVER:
            found.append(LlamaDrafter(one, target, abilities, deadline))
    return found


async def text_so_far(context: Context, target: Target) -> str:
    """The context as text. Raises WireError and Refused."""
    if context.prompt is None:
        context.prompt = await target.text_of(context.ids)
        context.written = ""
    return context.prompt + context.written


async def _retokenised(guess: str, context: Context, target: Target, most: int) -> Guess:
    """Text as tokens of the target, as they would stand behind the context: cut with what is before it.

    A tokenizer may put a space before a text or join its first letters to what is there. So the end of the context goes
    with it, and what both cuts begin with is taken off.
    """
    guess = guess.split(BROKEN)[0]
    if not guess:
        return Guess(())
    tail = (await text_so_far(context, target))[-TAIL:]
    before, both = await target.tokenize(tail), await target.tokenize(tail + guess)
    if both[:len(before)] != before:
        return Guess(())                                   # the guess changes what is written: another word entirely
    return Guess(tuple(both[len(before):][:most]), guess.isascii())
