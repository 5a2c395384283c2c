"""What a node needs before it takes part: looked for, and pushed where it is not there.

The zipapp goes over once; its name holds its hash, and the node's own python3 says whether the file is that one
before it is ever run. Manifests travel the same way, over SSH, so that pieces can come from anybody.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from fleet.errors import NodeError, ServiceError
from fleet.nodes.folder import Answer, StateFolder, number
from fleet.nodes.records import STATE_SH
from fleet.nodes.transport import Transport
from fleet.swarm import zipapp
from fleet.text import visible

OLDEST = (3, 9)              # Python that fleet/node runs on
LOOK_TIMEOUT = 30.0          # seconds; a disk that sleeps takes its time
PUSH_TIMEOUT = 120.0
MOST_FILES = 4_096           # lines of one look
_VERSION = re.compile(r"(\d{1,2})\.(\d{1,3})")


@dataclass(frozen=True, slots=True)
class FileThere:
    """A file that lies on a node."""

    size: int                # bytes
    allocated: int           # bytes that it takes on the disk already


@dataclass(frozen=True, slots=True)
class Ground:
    """What a node has for a model."""

    state_folder: str = ""   # "" = there is nowhere to write
    python: str = ""         # path of a python3 that runs fleet/node, "" = none
    folder: str = ""         # where the model would go, "" = no folder can be written
    free: int | None = None  # bytes
    tool: str = ""           # program that says the SHA-256 of its input: sha256sum, shasum, sha256, openssl
    files: dict[str, FileThere] = field(default_factory=dict)   # by path


@cache
def _script(name: str) -> str:
    """The text of one of this package's scripts, with what it shares with the supervisor's before it."""
    claim = files("fleet.nodes.supervise").joinpath("claim.sh").read_text(encoding="utf-8")
    return "\n".join((STATE_SH, claim, files("fleet.swarm").joinpath(f"{name}.sh").read_text(encoding="utf-8")))


async def look(transport: Transport, state_dir: str, folders: Sequence[str], names: Sequence[str]) -> Ground:
    """What is there for files of these names in the first of `folders` that can be written.

    Without folders the names are paths.

    Raises:
        NodeError: the node does not answer, or its shell gives nothing that can be read.
    """
    done = await transport.run(_script("look"), (state_dir, str(len(folders)), *folders, *names), timeout=LOOK_TIMEOUT)
    if not done.text.endswith("looked\n"):
        said = visible(" ".join((done.error_text or done.text).split()), limit=200)
        raise NodeError(f"{transport.name} did not say what room it has for a model{f': {said}' if said else ''}.",
                        "Run `quarterdeck doctor` and look at this node.", code="unreadable")
    return read_look(done.text)


def read_look(text: str) -> Ground:
    """What look.sh printed. Never raises."""
    said: dict[str, str] = {}
    there: dict[str, FileThere] = {}
    free = None
    for line in text.split("\n")[:MOST_FILES]:
        word, bar, rest = line.partition("|")
        if line.startswith("space "):
            kilobytes = number(line.removeprefix("space "))
            free = None if kilobytes is None else kilobytes * 1024
        elif bar and word == "file":
            size, _, rest = rest.partition(" ")
            blocks, _, path = rest.partition(" ")
            if number(size) is not None and path.startswith("/"):
                there[path] = FileThere(number(size) or 0, (number(blocks) or 0) * 1024)
        elif bar and word.isalpha():
            said.setdefault(word, rest)
    version = _VERSION.fullmatch(said.get("version", ""))
    able = version is not None and (int(version[1]), int(version[2])) >= OLDEST
    python = said.get("python", "")
    return Ground(_path(said.get("state", "")), python if able and python.startswith("/") else "",
                  _path(said.get("folder", "")), free, said.get("tool", "")[:16], there)


def _path(text: str) -> str:
    return text if text.startswith("/") and len(text) < 4_096 else ""


class Parcels(StateFolder):
    """Small files of ours in the folder `swarm` of a node's state folder."""

    def __init__(self, transport: Transport, state_dir: str, python: str) -> None:
        super().__init__(transport, state_dir)
        self._python = python

    async def push_program(self) -> str:
        """The zipapp's path on the node; it is sent when it is not there yet, or damaged."""
        data = zipapp.build()
        return await self.push(zipapp.name(data), data)

    async def push(self, name: str, data: bytes) -> str:
        """The path of a file with this content.

        Raises:
            NodeError: it cannot be written.
            ServiceError: it did not arrive as it was sent.
        """
        digest = hashlib.sha256(data).hexdigest()
        answer = await self._keep(name, digest, b"")
        if "kept" not in answer.bars:
            answer = await self._keep(name, digest, data)
        path = answer.bars.get("kept", "")
        if not path.startswith("/"):
            raise ServiceError(f"{name} did not arrive on {self._transport.name} as it was sent.",
                               "See that the disk there is sound and has room.", code="not-written")
        return path

    async def _keep(self, name: str, digest: str, data: bytes) -> Answer:
        done = await self._transport.run(
            _script("keep"), (self._state_dir, name, digest, self._python, "put" if data else ""), stdin=data,
            timeout=PUSH_TIMEOUT)
        if done.status != 0:
            raise self._unreadable(done)
        answer = Answer(done.text)
        self._raise_if_not_written(answer, name)
        return answer
