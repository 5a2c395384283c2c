"""What is written beside the services of a node: facts, secrets, leases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.errors import LeaseHeld, ServiceError
from fleet.nodes.folder import Answer, StateFolder, number
from fleet.nodes.records import json_object
from fleet.nodes.services import Lease, check_id, one_line

MOST_KEPT = 64                 # files of slots
_SLOT_FILE = re.compile(r"[0-9a-f]{16}-[0-9]{1,3}")
_SAVED_TRIES = 5               # of annotate against somebody who writes at the same time


@dataclass(frozen=True, slots=True)
class SlotsFolder:
    """Where the heads of a node keep what is in their slots."""

    path: str
    free: int                      # bytes of its disk
    changed: str                   # when the model's file was changed, by that node; "" = it does not say
    kept: tuple[str, ...] = ()     # names of files, KEY-SLOT, the newest first


class Notes(StateFolder):
    """The small files of one node's state folder."""

    async def annotate(self, id: str, facts: Mapping[str, object]) -> None:
        """Merge `facts` into what is written beside a service; a None takes a key away.

        Raises:
            ServiceError: there is no such service, or it cannot be written.
        """
        for _ in range(_SAVED_TRIES):
            _, before = await self._read_facts(id)
            merged = {**json_object(before), **facts}
            kept = {key: value for key, value in merged.items() if value is not None}
            done = await self._run("annotate", (id, before, one_line(kept, f"{id}'s facts")))
            answer = Answer(done.text)
            self._raise_if_not_written(answer, id)
            if "written" in answer.words:
                return
            if "changed" not in answer.words:
                break
        raise ServiceError(f"The facts of {id} on {self._transport.name} could not be written: somebody else "
                           "writes them.",
                           "Is a second cockpit at work on this fleet?", code="busy")

    async def _read_facts(self, id: str) -> tuple[str, str]:
        check_id(id)
        answer = Answer((await self._run("facts", (id,))).text)
        if "pid" not in answer.bars:
            raise ServiceError(f"There is no service {id} on {self._transport.name}.", code="no-service")
        return answer.bars["pid"], answer.bars.get("facts", "")

    async def write_secret(self, name: str, data: bytes) -> str:
        """Keep `data` in a file on the node that nobody else can read; returns its path.

        It travels on the script's standard input: no argument list and no log ever holds it.
        """
        check_id(name)
        if not data:
            raise ServiceError(f"The secret {name} is empty.", code="bad-secret")
        answer = Answer((await self._run("secret", (name,), stdin=data)).text)
        self._raise_if_not_written(answer, name)
        if not answer.words.get("secret", "").startswith("/"):
            raise ServiceError(f"The secret {name} could not be kept on {self._transport.name}.", code="not-written")
        return answer.words["secret"]

    async def remove_secret(self, name: str) -> None:
        """Take such a file away; fine when it is not there."""
        check_id(name)
        await self._run("secret", (name, "remove"))

    async def slots_folder(self, model: str) -> SlotsFolder:
        """The folder where heads of this node keep the contents of slots, made if need be; nobody else can read it.

        Raises:
            ServiceError: it cannot be made.
        """
        answer = Answer((await self._run("slots", ("there", model))).text)
        self._raise_if_not_written(answer, "slots")
        folder = answer.words.get("slots", "")
        if not folder.startswith("/"):
            raise ServiceError(f"There is no folder for slots on {self._transport.name}.", code="not-written")
        kept = tuple(name for name in answer.words.get("kept", "").split()[:MOST_KEPT] if _SLOT_FILE.fullmatch(name))
        space = number(answer.words.get("space", ""))
        return SlotsFolder(folder, (space or 0) * 1024, answer.words.get("changed", "")[:20], kept)

    async def keep_slots(self, *keys: str) -> None:
        """Take away what is kept of slots, but for the files of these keys."""
        for key in keys:
            check_id(key)
        await self._run("slots", ("keep", *keys))

    async def lease(self, name: str, owner: str, ttl: int = 60) -> Lease:
        """Be the only one who does `name` on this node, for `ttl` seconds by its clock; again to renew.

        `owner` says who that is (host, pid), as it is shown to whoever comes second. One that has
        run out is taken over, and `taken_over` says whose it was.

        Raises:
            LeaseHeld: somebody else has it.
        """
        check_id(name)
        owner = _owner(owner)
        answer = Answer((await self._run("lease", (name, owner, str(max(1, int(ttl)))))).text)
        self._raise_if_not_written(answer, name)
        if "held" in answer.words:
            seconds, _, holder = answer.words["held"].partition(" ")
            raise LeaseHeld(
                f"{holder or 'Somebody else'} is at work on {self._transport.name} ({name}).",
                f"Wait until that is done; if it has died, its claim runs out in {seconds} s.", holder=holder)
        if not answer.words.keys() & {"taken", "over"}:
            raise LeaseHeld(f"The lease {name} on {self._transport.name} could not be taken.")
        return Lease(name, owner, int(ttl), answer.words.get("over", ""))

    async def release(self, name: str, owner: str) -> None:
        """Give a lease back; fine when it is not ours any more."""
        check_id(name)
        await self._run("lease", (name, _owner(owner), "release"))


def _owner(owner: str) -> str:
    plain = "".join(c if c.isprintable() else "?" for c in " ".join(owner.split()))[:200]
    if not plain:
        raise ServiceError("A lease needs an owner.", code="bad-id")
    return plain
