"""Reading the logs of a node's services, by offset or as they grow."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from contextlib import aclosing

from fleet.errors import ServiceError
from fleet.nodes.folder import StateFolder
from fleet.nodes.services import LogChunk, check_id
from fleet.nodes.supervise import script

READ_LIMIT = 64 * 1024
_ALIVE = "\x01"      # ends a line that the script printed to see whether we are still there


class Logs(StateFolder):
    """The logs in the state folder of one node."""

    async def read_log(self, id: str, offset: int | None = None, limit: int = READ_LIMIT) -> LogChunk:
        """At most `limit` bytes of a log, from byte `offset`; None = its last lines.

        A log that was cut is shorter than the offset: it is read from its new beginning, and
        `rotated` says so.

        Raises:
            ServiceError: there is no such service, or it has no log (one that was adopted).
        """
        check_id(id)
        limit = max(4, limit)
        done = await self._run("read_log", (id, "" if offset is None else str(max(0, offset)), str(limit)),
                               limit=limit + 4096)
        head, _, body = done.stdout.partition(b"\n")
        words = head.decode("ascii", "replace").split()
        if words == ["missing", "service"]:
            raise ServiceError(f"There is no service {id} on {self._transport.name}.", code="no-service")
        if words == ["missing", "log"]:
            raise ServiceError(f"{id} on {self._transport.name} has no log: it was started by somebody else, "
                               "and its output goes to no file.", "Restart it from here to have its log.",
                               code="no-log")
        if len(words) != 3 or words[0] != "log" or not (words[1] + words[2]).isdigit():
            raise self._unreadable(done)
        size, start = int(words[1]), int(words[2])
        if offset is None and start > 0:        # begin with a whole line, where there is one
            cut = body.find(b"\n") + 1
            start, body = start + cut, body[cut:]
        text, used = _whole_characters(body)
        return LogChunk(text, start + used, size, start, offset is not None and start < offset)

    async def follow_log(self, id: str, *, tail: int = 200) -> AsyncIterator[str]:
        """The last `tail` lines of a log, then those that are added, until the service is forgotten.

        Closing the iterator ends it on the node too. Raises as `read_log` does.
        """
        await self.read_log(id, limit=4)
        arguments = (self._state_dir, id, str(max(0, tail)))
        async with aclosing(self._transport.lines(script("follow_log"), arguments)) as lines:
            async for line in lines:
                if not line.endswith(_ALIVE):
                    yield line
                elif line != _ALIVE:
                    yield line.removesuffix(_ALIVE)


def _whole_characters(data: bytes) -> tuple[str, int]:
    """The text of `data` without a character that is cut in two at its end, and how many bytes that is."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    held = len(decoder.getstate()[0])
    if held == len(data):
        return data.decode("utf-8", "replace"), len(data)
    return text, len(data) - held
