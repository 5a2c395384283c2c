"""Following one process of a swarm by its log: what it told, whether it lives, what it has on disk."""

from __future__ import annotations

from fleet.errors import FleetError, NodeError, ServiceError
from fleet.node.bitfield import BIGGEST, SUFFIX, parse_bitfield
from fleet.operations.hands import Hands
from fleet.swarm.deal import Deal, Party
from fleet.swarm.told import Banned, Told

MOST_READS = 8        # parts of a log in one look
PART = 64 * 1024      # bytes


class Follower:
    """One party of a deal. A process that is started anew begins another life: `renew`."""

    def __init__(self, hands: Hands, deal: Deal, party: Party) -> None:
        self.party = party
        self.told = Told(deal.known.count)
        self.bans: dict[str, Banned] = {}
        self._hands, self._deal = hands, deal
        self._offset = 0
        self._sent_before = 0
        self._noted = -1          # pieces that were told when the note was last read

    @property
    def sent(self) -> int:
        """Bytes of pieces that it gave away, all lives together."""
        return self._sent_before + self.told.sent

    def renew(self) -> None:
        """Its process is another one: a new log."""
        self._sent_before, self._offset, self._noted = self.sent, 0, -1
        self.told = Told(self._deal.known.count)

    async def poll(self) -> None:
        """Read what was added to its log.

        Raises:
            NodeError: the node does not answer.
        """
        supervisor = self._hands.supervisor(self.party.node)
        for _ in range(MOST_READS):
            try:
                chunk = await supervisor.read_log(self._deal.service, self._offset, PART)
            except ServiceError:
                return            # not started yet, or taken away: `is_alive` says which
            self._offset = chunk.offset
            self.told.feed(chunk.text)
            if chunk.offset >= chunk.size:
                break
        self.bans.update(self.told.bans)
        if self.told.finished:
            self.told.learn(range(self._deal.known.count))
        elif self.told.have_count > len(self.told.have) and self.told.have_count != self._noted:
            self._noted = self.told.have_count
            await self._read_note()

    async def _read_note(self) -> None:
        """Pieces that were there before its log began: from its own note on disk."""
        path = f"{self.party.ground.folder}/{self._deal.name}{SUFFIX}"
        try:
            data = await self._hands.transport(self.party.node).read_file(path, 0, BIGGEST + 1)
        except NodeError:
            raise
        except FleetError:
            return                # not written yet
        note = parse_bitfield(data, self._deal.known.id, self._deal.known.count)
        if note is not None:
            self.told.learn(note.have)

    async def is_alive(self) -> bool | None:
        """Whether its process runs; None when it was taken away by somebody."""
        records = await self._hands.supervisor(self.party.node).records()
        record = next((record for record in records if record.id == self._deal.service), None)
        return None if record is None else record.alive
