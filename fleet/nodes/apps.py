"""Files of our own code on a node: pushed once, kept under a name that holds their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fleet.errors import ServiceError
from fleet.nodes.folder import Answer, StateFolder

_SLOWEST = 32 * 1024       # bytes a second of a link that a push is still given time for
_LOOK = 20.0               # seconds for a look: a small machine starts Python slowly


class Apps(StateFolder):
    """The folder `apps` in the state folder of one node; readable by its owner alone."""

    async def push(self, name: str, data: bytes, python: str) -> tuple[str, bool]:
        """Have `data` there as `name`: its path, and whether it had to be sent.

        A file that is there is used only when its SHA-256, made by `python` on the node, is the one of `data`. It is
        written aside and renamed.

        Raises:
            ServiceError: it cannot be written there: a full disk, no folder.
            NodeError: the node does not answer.
        """
        told = (name, hashlib.sha256(data).hexdigest(), python)
        answer = Answer((await self._run("app", (*told, "look"), timeout=_LOOK)).text)
        self._raise_if_not_written(answer, name)
        sent = "app" not in answer.words
        if sent:
            done = await self._run("app", (*told, "keep"), stdin=data, timeout=_LOOK + len(data) / _SLOWEST)
            answer = Answer(done.text)
            self._raise_if_not_written(answer, name)
        path = answer.words.get("app", "")
        if not path.startswith("/"):
            raise ServiceError(f"{name} could not be kept on {self._transport.name}.",
                               "See that the state folder can be written.", code="not-written")
        return path, sent

    async def remove_others(self, beginning: str, kept: Iterable[str] = ()) -> None:
        """Take away all whose name begins so, but `kept`, and the folder with the last one; fine when there is none."""
        await self._run("app", (beginning, "remove", *kept))
