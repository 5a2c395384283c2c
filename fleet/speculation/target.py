"""A target as a session sees it: what it can do, and its own next tokens after given ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.proxy.wire import WireError
from fleet.runtimes.head_answers import count, mapping, read_props, text
from fleet.speculation.asking import Asker, Refused

LOOK_TIMEOUT = 5.0             # seconds for a question that costs no pass
MOST_TOKENS = 1 << 20
FIELDS = ("tokens", "content", "stop_type", "completion_probabilities", "timings/prompt_n", "timings/cache_n",
          "timings/prompt_ms", "index")
# A server that parses what it writes answers 500 where a text begins within a character (b10068). An empty stop string
# matches after the first token and before its text is kept: the token is told, and there is nothing to parse.
ONE_TOKEN_ONLY = ("",)
FIRST_SIGHT = ("The quick brown Fox, jumps! over 1234 lazy dogs.\n\t"
               "na\u00efve \u0416\u0434\u0430\u043d \u6f22\u5b57 \U0001f600 f(x) = {y};")
SIGHTED = 192                  # tokens by which two vocabularies are held against each other


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a llama-server says of itself, as far as it matters here."""

    slots: int = 1
    context: int = 0                       # tokens of one slot
    vocabulary: int = 0                    # tokens; 0 = not told
    build: str = ""
    template: str = ""                     # of chats
    speculates: bool = False               # by itself, inside
    model: str = ""
    quantised: bool | None = None          # its weights; None = not told
    most: int | None = None                # tokens of an answer where a request does not say; None = until it ends
    fingerprint: tuple[object, ...] = ()   # of its vocabulary: equal ones are the same for what is drafted
    injects: bool = False                  # it drafts what other slots have read: `fleet.speculation.injection`


@dataclass(frozen=True, slots=True)
class Continuation:
    """The target's own next tokens after one prompt."""

    tokens: tuple[int, ...]                # with the one that ended it
    content: str = ""                      # their text, "" where only a token was asked for
    ended: bool = False                    # by a token that means the end, which is the last of `tokens`
    read: int = 0                          # prompt tokens that had to be evaluated
    cached: int = 0
    read_seconds: float = 0.0
    probabilities: tuple[Mapping[str, object], ...] = field(default=(), repr=False)


class Target:
    """A llama-server whose tokens these are."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker

    async def look(self, *, with_slots: bool = True) -> Abilities:
        """Ask it what it is. Raises WireError and Refused."""
        props = await self.asker.get("/props", LOOK_TIMEOUT)
        told = read_props(props)
        models = mapping(await self.asker.get("/v1/models", LOOK_TIMEOUT)).get("data")
        entry = mapping(models[0]) if isinstance(models, list) and models else {}
        settings = mapping(mapping(mapping(props).get("default_generation_settings")).get("params"))
        kinds = text(settings.get("speculative.types"))
        # b10068 tells "none" there also where it drafts; its slots say so.
        speculates = kinds not in ("", "none") or (with_slots and await self._slots_speculate())
        vocabulary = count(mapping(entry.get("meta")).get("n_vocab")) or 0
        weights = text(mapping(props).get("model_ftype"))
        return Abilities(told.slots or 1, told.context or 0, vocabulary, told.build_info, told.chat_template,
                         speculates, text(entry.get("id")), "F32" not in weights if weights else None,
                         count(settings.get("n_predict")) or None, await self._fingerprint(vocabulary))

    async def _slots_speculate(self) -> bool:
        try:
            slots = await self.asker.get("/slots", LOOK_TIMEOUT)
        except Refused:
            return False
        return isinstance(slots, list) and any(mapping(slot).get("speculative") is True for slot in slots)

    async def _fingerprint(self, vocabulary: int) -> tuple[object, ...]:
        """How many tokens it has, what it makes of a text, and what some of its tokens say."""
        ids = tuple(await self.tokenize(FIRST_SIGHT))
        some = sorted({vocabulary * step // SIGHTED for step in range(SIGHTED)}) if vocabulary else []
        return vocabulary, ids, await self.text_of(some) if some else ""

    async def tokenize(self, content: str, *, special: bool = False) -> list[int]:
        """Token ids; `special`: with what a prompt begins with. Raises WireError and Refused."""
        said = await self.asker.post("/tokenize", {"content": content, "add_special": special}, LOOK_TIMEOUT)
        return ids_of(mapping(said).get("tokens"))

    async def text_of(self, ids: Sequence[int]) -> str:
        """Text of tokens; what is no whole character is U+FFFD. Raises WireError and Refused."""
        said = await self.asker.post("/detokenize", {"tokens": list(ids)}, LOOK_TIMEOUT)
        return text(mapping(said).get("content"))

    async def apply_template(self, chat: Mapping[str, object]) -> str:
        """The prompt that a chat becomes. Raises WireError and Refused."""
        said = await self.asker.post("/apply-template", chat, LOOK_TIMEOUT)
        prompt = mapping(said).get("prompt")
        if not isinstance(prompt, str):
            raise Refused(200, "It made no prompt of the chat.")
        return prompt

    async def after(self, context: Sequence[int], more: Sequence[Sequence[int]], tokens: int,
                    sampling: Mapping[str, object], *, timeout: float, only_one: bool = False) -> list[Continuation]:
        """The next `tokens` tokens after `context` and each of `more`, in that order: `tokens` passes for all of them.

        Args:
            sampling: fields of the request that decide what is sampled.
            only_one: ask for one token in a way that works within a character too; its text is not told.

        Raises:
            WireError: it did not answer, or with something else.
            Refused: it answered with an error.
        """
        fields = json.dumps({
            **sampling, "n_predict": 1 if only_one else tokens, "stop": list(ONE_TOKEN_ONLY) if only_one else [],
            "cache_prompt": True, "return_tokens": True, "stream": False, "response_fields": list(FIELDS)},
            separators=(",", ":"))
        # The context stands in the question once for each prompt, and is written as text once.
        start = ",".join(map(str, context))
        prompts = ",".join(f"[{start}{',' * bool(start and one)}{','.join(map(str, one))}]" for one in more)
        said = await self.asker.post("/completion", f'{fields[:-1]},"prompt":[{prompts}]}}'.encode(), timeout)
        answers = said if isinstance(said, list) else [said]
        if len(answers) == len(more):
            if all(isinstance(mapping(answer).get("index"), int) for answer in answers):
                answers = sorted(answers, key=lambda answer: mapping(answer).get("index") or 0)
            found = [_continuation(answer) for answer in answers]
            if all(one.tokens for one in found):
                return found
        raise WireError("garbage", "The server told no tokens for some of the prompts.", started=True)




def ids_of(said: object) -> list[int]:
    """Token ids, [] where they are none."""
    if not isinstance(said, list) or len(said) > MOST_TOKENS:
        return []
    return said if all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 31 for one in said) \
        else []


def _continuation(answer: object) -> Continuation:
    said = mapping(answer)
    probabilities = said.get("completion_probabilities")
    milliseconds = said.get("timings/prompt_ms")
    return Continuation(
        tuple(ids_of(said.get("tokens"))), text(said.get("content")), said.get("stop_type") == "eos",
        count(said.get("timings/prompt_n")) or 0, count(said.get("timings/cache_n")) or 0,
        milliseconds / 1000 if isinstance(milliseconds, int | float) and 0 <= milliseconds < 1e9 else 0.0,
        tuple(mapping(one) for one in probabilities) if isinstance(probabilities, list) else ())
