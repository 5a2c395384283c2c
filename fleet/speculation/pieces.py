"""Tokens into text, once: characters that take several tokens come out whole, and nothing is decoded twice.

A llama-server tells the text of what it wrote, but not the bytes of a token that is a part of a character: its text is
U+FFFD. So text is taken from what the target told with its tokens where that is whole, and asked for by the run of
tokens where it is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.speculation.target import Target

BROKEN = "\ufffd"
LONGEST_CHARACTER = 4          # tokens, a byte each; a longer run of broken ones never becomes a character
LONGEST_SHOWN = 80             # characters of one token on a screen
LONGEST_PIECE = 1024           # characters of one token
KEPT = 1 << 18                 # tokens whose text is remembered


class Pieces:
    """What single tokens of one target say, as far as that is known."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[int, str] = {}          # BROKEN for a part of a character
        self._mark: tuple[list[int], str] | None = None

    def learn(self, token: int, said: str) -> None:
        """The target told what `token` says."""
        if BROKEN not in said and len(said) <= LONGEST_PIECE and len(self._known) < KEPT:
            self._known.setdefault(token, said)

    def get(self, token: int) -> str:
        """What `token` says, "" where nobody asked yet."""
        return self._known.get(token, "")

    def shown(self, ids: Sequence[int]) -> list[str]:
        """What tokens say, for a screen."""
        return [self.get(token)[:LONGEST_SHOWN] for token in ids]

    def broken(self, token: int) -> bool:
        """It is known to be no more than a part of a character."""
        return self._known.get(token) == BROKEN

    async def know(self, ids: Sequence[int]) -> None:
        """Ask for those that are not known, all in one question. Raises WireError and Refused."""
        unknown = [token for token in dict.fromkeys(ids) if token not in self._known]
        if not unknown or len(self._known) + len(unknown) > KEPT:
            return
        if len(unknown) > 1:
            said = await self._apart(unknown)
            if said is not None:
                self._known.update((token, _whole(piece)) for token, piece in zip(unknown, said, strict=True))
                return
        for token in unknown:
            self._known[token] = _whole(await self._target.text_of([token]))

    async def text_of(self, ids: Sequence[int]) -> str:
        """Text of a run of tokens. Raises WireError and Refused."""
        return await self._target.text_of(ids)

    async def _apart(self, ids: Sequence[int]) -> list[str] | None:
        """Their texts with a mark between them; None where a text looks like the mark."""
        if self._mark is None:
            mark = await self._target.tokenize("|#~#|")
            self._mark = mark, await self._target.text_of(mark)
        between, words = self._mark
        if not between or not words.strip():
            return None
        # A part of a character before the mark stays one: the mark begins with a character of its own.
        said = await self._target.text_of([*between, *(one for token in ids for one in (token, *between))])
        parts = said.split(words)
        return parts[1:-1] if len(parts) == len(ids) + 2 and not parts[0] and not parts[-1] else None


class Text:
    """The text of one answer as it grows."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._pending: list[int] = []             # parts of a character that is not whole yet

    @property
    def within_character(self) -> bool:
        """The last token ended within a character."""
        return bool(self._pending)

    async def add(self, ids: Sequence[int], told: str | None) -> str:
        """What `ids` add, without a character that is not whole yet.

        Args:
            told: their text as the target told it, None where it told none.
        """
        if told is not None and BROKEN not in told and not self._pending:
            if len(ids) == 1:
                self._pieces.learn(ids[0], told)
            return told
        await self._pieces.know(ids)
        out = []
        for token in ids:
            if not self._pieces.broken(token):
                out.append(await self._flush())
                out.append(self._pieces.get(token))
                continue
            self._pending.append(token)
            said = await self._pieces.text_of(self._pending)
            if BROKEN not in said or len(self._pending) >= LONGEST_CHARACTER:
                self._pending.clear()
                out.append(said)
        return "".join(out)

    async def _flush(self) -> str:
        """What was taken for the start of a character and is none."""
        if not self._pending:
            return ""
        said = await self._pieces.text_of(self._pending)
        self._pending.clear()
        return said

    async def rest(self) -> str:
        """What is left at the end: half a character, as a server tells it of an answer in one piece."""
        return await self._flush()


def _whole(piece: str) -> str:
    return BROKEN if BROKEN in piece else piece


def ends_within(pieces: Pieces, ids: Sequence[int]) -> list[bool]:
    """For each beginning of `ids` (1, 2 ... tokens): whether it may end within a character, as far as is known.

    The last part of one counts too: which of them ends it cannot be told from the tokens alone.
    """
    return [pieces.broken(token) for token in ids]
