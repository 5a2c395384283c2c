"""One round of strided verification: what the target itself says after each part of a draft, in one question.

For a context C, a draft d and a stride s the prompts are C, C + d[:s], C + d[:2s] ... and each answer is the target's
own s next tokens. Walking on while an answer equals the draft, everything that is taken was said by the target after
exactly what was taken before: it is the target's text whatever the draft was, for greedy and for sampled ones alike.
A round costs s passes and gives at least s tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.speculation.asking import Refused
from fleet.speculation.pieces import Pieces, ends_within
from fleet.speculation.target import Continuation, Target


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens that go out, in order, with what the target told of them."""

    ids: tuple[int, ...]
    content: str | None                    # their text; None where it was not told
    probabilities: tuple[Mapping[str, object], ...] = ()
    ended: bool = False                    # the last token means the end


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of a round."""

    parts: tuple[Part, ...]
    drafted: int                           # tokens that could be verified
    accepted: int                          # leading ones of them that the target said too
    stride: int
    read: int                              # prompt tokens that the target evaluated
    bonus: tuple[int, ...] = ()            # what it said behind a draft that was all right
    read_seconds: float = 0.0              # of the slowest of the prompts
    refused: bool = False                  # the target gave an answer only without the draft

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens of the round."""
        return tuple(token for part in self.parts for token in part.ids)

    @property
    def ended(self) -> bool:
        """The target has said all."""
        return bool(self.parts) and self.parts[-1].ended


Equal = Callable[[Sequence[int], Sequence[int]], bool]


async def verify(target: Target, context: Sequence[int], draft: Sequence[int], stride: int,
                 sampling: Mapping[str, object], *, pieces: Pieces, within: bool, ascii: bool, timeout: float
                 ) -> Verified:
    """Ask the target. An empty draft is plain decoding: `stride` tokens in as many passes.

    Args:
        within: the context ends within a character.
        ascii: no token of the draft does.

    Raises:
        WireError: the target gave no answer, or none of use.
        Refused: it answered with an error.
    """
    if within:
        stride = 1
    draft = list(draft[:len(draft) - len(draft) % stride])
    broken = [False] * len(draft)
    refused = False
    if draft and not ascii:
        try:
            await pieces.know(draft)
        except Refused:                    # there are no such tokens
            refused, draft = True, []
        broken = ends_within(pieces, draft)
    if stride > 1 and True in broken:
        # A question that begins within a character is answered one token at a time alone (ONE_TOKEN_ONLY).
        first = next((at for at in range(stride, len(draft) + 1, stride) if broken[at - 1]), len(draft) + stride)
        draft = draft[:max(0, first - stride)]
    offsets = range(0, len(draft) + 1, stride)
    more = [draft[:at] for at in offsets]
    only_one = stride == 1 and (within or any(broken[at - 1] for at in offsets if at))
    try:
        answers = await target.after(context, more, stride, sampling, timeout=timeout, only_one=only_one)
    except Refused as error:
        if only_one and not draft:
            raise
        # What was written is no text to a server that parses it, or the draft holds tokens that there are not. Without
        # a draft, a token at a time, it has nothing to parse.
        refused = refused or (bool(draft) and error.status == 400)
        draft, stride, only_one = [], 1, True
        answers = await target.after(context, [()], 1, sampling, timeout=timeout, only_one=True)
    return replace(walk(answers, draft, stride, told=not only_one), refused=refused)


def walk(answers: Sequence[Continuation], draft: Sequence[int], stride: int, *, told: bool = True,
         equal: Equal = lambda said, guessed: list(said) == list(guessed)) -> Verified:
    """Take answers as long as each equals the draft.

    Args:
        answers: after the context and each `stride` tokens of the draft.
        told: they tell the text of their tokens.
        equal: when an answer counts as the draft; another rule than equality gives another text than the target's.
    """
    parts: list[Part] = []
    accepted, bonus = 0, ()
    for number, answer in enumerate(answers):
        guessed = draft[number * stride:(number + 1) * stride]
        parts.append(Part(answer.tokens, answer.content if told else None, answer.probabilities, answer.ended))
        accepted += _agreeing(answer.tokens, guessed)
        if not guessed:
            bonus = answer.tokens
        if answer.ended or not guessed or not equal(answer.tokens, guessed):
            break
    return Verified(tuple(parts), len(draft), accepted, stride, sum(answer.read for answer in answers), bonus,
                    max((answer.read_seconds for answer in answers), default=0.0))


def _agreeing(said: Sequence[int], guessed: Sequence[int]) -> int:
    """Tokens at the beginning of both."""
    count = 0
    for one, other in zip(said, guessed, strict=False):
        if one != other:
            break
        count += 1
    return count
