"""Questions about a node that only a person can answer, and their answers.

Answers live in memory as long as the transport that asked, so that a lost connection comes back by
itself. They are never written anywhere, and `repr` does not show them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext

from fleet.model import QuestionKind
from fleet.text import visible

Ask = Callable[[QuestionKind, str, str, str], Awaitable[str | None]]
"""Asks (kind, node, text, detail); None = nobody is there to answer, or does not want to."""

TRIES = 3   # times that a password or passphrase is asked for before it is given up


async def nobody(kind: QuestionKind, node: str, text: str, detail: str) -> str | None:
    """An `Ask` for when there is no person: it has no answer."""
    return None


class Interview:
    """What one node's transport asks, with what it was told so far.

    A question outlives the wait for its answer: a server that hangs up while somebody looks for a
    password is dialled again once the answer is there (`settled`, `answers`).
    """

    def __init__(self, node: str, ask: Ask) -> None:
        self.node = node
        self._declined: set[QuestionKind] = set()
        self.answers = 0               # that were given so far
        self.patience: Callable[[], AbstractAsyncContextManager[None]] = nullcontext   # around each wait for a person
        self._ask = ask
        self._passwords: dict[str, str] = {}
        self._passphrases: dict[str, str] = {}
        self._tried: set[str] = set()
        self._asked: dict[str, int] = {}
        self._open: asyncio.Task[str | None] | None = None

    @property
    def declined(self) -> bool:
        """A question of this sign-in got no answer."""
        return bool(self._declined)

    def begin(self) -> None:
        """A new sign-in: what is remembered may be used once more, and asked for again."""
        self._tried.clear()
        self._asked.clear()
        self._declined.clear()

    def dial_again(self) -> None:
        """The same sign-in on a new connection: what was answered may be used."""
        self._tried.clear()

    async def password(self, account: str, prompt: str = "") -> str | None:
        """The password of `account` ("user@host"): the one that is remembered, once, then a new one."""
        if account in self._passwords and account not in self._tried:
            self._tried.add(account)
            return self._passwords[account]
        answer = await self._outlive(self._new_password(account, prompt))
        self._tried.add(account)
        return answer

    async def code(self, account: str, prompt: str) -> str | None:
        """Something that is good for one sign-in only: asked for each time, never remembered."""
        prompt = visible(prompt.strip(), limit=200)
        return await self._outlive(self._put(QuestionKind.PASSWORD, prompt, f"{account} asks: {prompt}", ""))

    async def passphrase(self, file: str, opens: Callable[[str], bool]) -> str | None:
        """The passphrase that `opens` the key in `file`; None when nobody knows it."""
        if file in self._passphrases:
            return self._passphrases[file]
        return await self._outlive(self._new_passphrase(file, opens))

    async def host_key(self, host: str, where: str, algorithm: str, fingerprint: str) -> bool:
        """Whether a person vouches for a key of `host` (the node or a hop) that was never seen before."""
        answer = await self._put(
            QuestionKind.HOST_KEY, fingerprint,
            f"{host} at {where} shows a host key that was never seen before. Is this its fingerprint?",
            f"{algorithm} {fingerprint}")
        return answer is not None and answer.strip().lower() not in ("", "n", "no")

    def forget_password(self, account: str) -> None:
        """It was refused: do not try it again by itself."""
        self._passwords.pop(account, None)

    async def settled(self) -> None:
        """Wait for the question that is open, if one is."""
        if self._open is not None:
            await self._open

    def drop(self) -> None:
        """Nobody waits any more: take an open question back."""
        if self._open is not None:
            self._open.cancel()

    async def _new_password(self, account: str, prompt: str) -> str | None:
        again = "That password was not accepted. " if self._asked.get(account) or account in self._passwords else ""
        answer = await self._put(QuestionKind.PASSWORD, account, f"{again}Password of {account}?",
                                 visible(prompt.strip(), limit=200))
        if answer is not None:
            self._passwords[account] = answer
        return answer

    async def _new_passphrase(self, file: str, opens: Callable[[str], bool]) -> str | None:
        while True:
            again = "That passphrase does not open the key. " if self._asked.get(file) else ""
            answer = await self._put(QuestionKind.PASSPHRASE, file, f"{again}Passphrase of the key {file}?", file)
            if answer is None or await asyncio.to_thread(opens, answer):   # bcrypt takes 0.1 s and more
                break
        if answer is not None:
            self._passphrases[file] = answer
        return answer

    async def _outlive(self, question: Coroutine[None, None, str | None]) -> str | None:
        task = asyncio.ensure_future(question)
        self._open = task
        task.add_done_callback(self._closed)
        async with self.patience():
            return await asyncio.shield(task)

    def _closed(self, task: asyncio.Task[str | None]) -> None:
        if self._open is task:
            self._open = None

    async def _put(self, kind: QuestionKind, key: str, text: str, detail: str) -> str | None:
        asked = self._asked.get(key, 0)
        if kind in self._declined or asked >= TRIES:
            return None
        self._asked[key] = asked + 1
        answer = await self._ask(kind, self.node, text, detail)
        if answer is None:
            self._declined.add(kind)
        else:
            self.answers += 1
        return answer
