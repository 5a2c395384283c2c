"""What conversations hold in the head's slots, kept over a swap: written down before a head ends, read back when the
same model comes again. A prompt of thousands of tokens is then not read again.
"""

from __future__ import annotations

import asyncio

from fleet.errors import FleetError
from fleet.facts import head_facts
from fleet.model import Deployment
from fleet.nodes.notes import SlotsFolder
from fleet.operations.arrangement import Arrangement
from fleet.operations.deaths import seen_record
from fleet.operations.hands import Hands
from fleet.operations.head_steps import client_of, head_client
from fleet.operations.plan import Report, Step
from fleet.operations.slot_keys import key_of
from fleet.planning.planned import size

SHORTEST = 64                # tokens: less is read again sooner than it is written down
WITHIN = 10.0                # seconds in all that a swap waits for this
OF_DISK = 0.5                # of what is free
OTHERS = 3                   # models more that are kept beside the one that ends, the newest ones


def _keys(folder: SlotsFolder, but: str) -> list[str]:
    """Of other heads, the newest first."""
    return [key for key in dict.fromkeys(name.partition("-")[0] for name in folder.kept) if key != but]


class KeepPrompts(Step):
    """Have the head that ends write down what its slots hold. That it cannot is no reason not to swap."""

    def __init__(self, hands: Hands, was: Deployment) -> None:
        self.title = f"Keep what {was.model} has read"
        self.node = was.head
        self._hands, self._was = hands, was

    async def check(self) -> str | None:
        return None if self._key() else "it does not keep its slots"

    def _key(self) -> str:
        record = seen_record(self._hands, self._was.head, self._was.head_service)
        return key_of(record.facts) if record is not None else ""

    async def do(self, report: Report) -> None:
        key, tokens, files = self._key(), 0, 0
        client = client_of(self._hands, self._was)
        if client is None:
            report("it does not answer")
            return
        try:
            async with asyncio.timeout(WITHIN), client:
                supervisor = self._hands.supervisor(self.node)
                folder = await supervisor.slots_folder("")
                await supervisor.keep_slots(key, *_keys(folder, key)[:OTHERS])
                if (needed := self._kv_bytes()) > folder.free * OF_DISK:
                    report(f"not kept: it may take {size(needed)}, and {size(folder.free)} are free")
                    return
                for slot in await client.slots():
                    if not slot.is_processing and (slot.prompt_tokens or 0) >= SHORTEST:
                        tokens += await client.save_slot(slot.id, f"{key}-{slot.id}", timeout=WITHIN)
                        files += 1
        except TimeoutError:
            report(f"{tokens} tokens; there was no time for more")
        except FleetError as error:
            report(f"{tokens} tokens; then {error.what}")
        else:
            report(f"{tokens} tokens of {files} slot{'' if files == 1 else 's'}")

    def _kv_bytes(self) -> int:
        record = seen_record(self._hands, self._was.head, self._was.head_service)
        facts = head_facts(record.facts) if record is not None else None
        return sum(share.kv_bytes or 0 for share in (facts.real or facts.planned)) if facts is not None else 0


class ReadPromptsBack(Step):
    """Have the new head read back what the same one wrote down before, and take the files away."""

    def __init__(self, hands: Hands, arrangement: Arrangement) -> None:
        self.title = f"Read back what {arrangement.choice.model.name} had read"
        self.node = arrangement.head_node
        self._hands, self._arrangement = hands, arrangement

    def _key(self) -> str:
        record = seen_record(self._hands, self.node, self._arrangement.head_service)
        return key_of(record.facts) if record is not None else ""

    def _mine(self, key: str) -> list[tuple[int, str]]:
        """Slot and file."""
        kept = self._arrangement.slots.kept if self._arrangement.slots is not None else ()
        return [(int(name.partition("-")[2]), name) for name in kept if key and name.startswith(f"{key}-")]

    async def check(self) -> str | None:
        return None if self._mine(self._key()) else "nothing of it was kept"

    async def do(self, report: Report) -> None:
        tokens, wrong = 0, ""
        try:
            async with asyncio.timeout(WITHIN), head_client(self._hands, self._arrangement) as client:
                for slot, name in self._mine(self._key()):
                    tokens += await client.restore_slot(slot, name, timeout=WITHIN)
        except TimeoutError:
            wrong = "; there was no time for more"
        except FleetError as error:
            wrong = f"; then {error.what}"
        report(f"{tokens} tokens{wrong}")
        try:
            folder = self._arrangement.slots
            await self._hands.supervisor(self.node).keep_slots(*(_keys(folder, self._key()) if folder else ()))
        except FleetError as error:
            report(f"{tokens} tokens{wrong}; the files stay: {error.what}")
