"""A node's state folder, as the supervisor's scripts speak of it: running one, and reading its answer."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.errors import NodeError, ServiceError, ShellUnusable, StartFailed
from fleet.nodes.supervise import script
from fleet.nodes.transport import Completed, Transport

_DISK_FULL_KB = 16             # with less than this free, a write that failed is put down to the disk


class StateFolder:
    """The state folder of one node. `state_dir` is the one that fleet.yaml wants, "" = the usual one."""

    def __init__(self, transport: Transport, state_dir: str = "") -> None:
        self._transport = transport
        self._state_dir = state_dir

    async def _run(self, name: str, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 10.0,
                   limit: int = 4 * 1024 * 1024) -> Completed:
        done = await self._transport.run(script(name), (self._state_dir, *arguments), stdin=stdin, timeout=timeout,
                                         limit=limit)
        if done.status != 0:
            raise self._unreadable(done)
        return done

    def _unreadable(self, done: Completed) -> ShellUnusable:
        said = " ".join((done.error_text or done.text).split())[:200]
        return ShellUnusable(
            f"/bin/sh on {self._transport.name} gave an answer that cannot be read (status {done.status})"
            f"{f': {said}' if said else ''}.", "Run `quarterdeck doctor` and look at this node.")

    def _raise_if_not_written(self, answer: Answer, id: str, *, starting: bool = False) -> None:
        name = self._transport.name
        if "nowhere" in answer.words:
            raise NodeError(f"There is no folder on {name} where services could be written down: "
                            f"{answer.words['nowhere'].strip('; ')}.",
                            "Set nodes.<name>.state_dir to a folder of yours that only you can write.",
                            code="no-state-folder")
        if "cannot" not in answer.words:
            return
        what, _, why = answer.words["cannot"].partition(" ")
        space = number(answer.words.get("space", ""))
        kind = StartFailed if starting else ServiceError
        if what == "session":
            raise kind(f"{name} has none of setsid, perl and python3, so nothing can be started detached.",
                       "Install util-linux or perl there.", code="no-session")
        other = any(text in why for text in ("denied", "Read-only", "No such file", "not permitted", "symbolic link"))
        if "No space left" in why or "quota" in why or (space is not None and space < _DISK_FULL_KB and not other):
            raise kind(f"{id} cannot be written down: the disk of {name} is full.",
                       "Make room in the state folder's file system, or set nodes.<name>.state_dir elsewhere.",
                       code="disk-full")
        raise kind(f"{id} cannot be written down on {name}: {why.strip() or what}.",
                   "See that the state folder can be written.", code="not-written")


class Answer:
    """What a script said: lines "word rest", and "name|text" for what it read from a file."""

    def __init__(self, text: str) -> None:
        self.words: dict[str, str] = {}
        self.bars: dict[str, str] = {}
        for line in text.partition("\nlog\n")[0].split("\n"):
            word, _, rest = line.partition(" ")
            name, bar, held = line.partition("|")
            if bar and name.isalpha():
                self.bars.setdefault(name, held)
            elif word.isalpha():
                self.words.setdefault(word, rest.strip())


def number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None
