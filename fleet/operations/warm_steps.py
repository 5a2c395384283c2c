"""Read the next model's file into the head's page cache while the old one serves: its load then waits for no disk.

Bounded in bytes and in time, at the lowest priority of processor and disk. That nothing is gained (the file is cached
already, the disk is slow) costs nothing but that; it never fails a swap.
"""

from __future__ import annotations

from fleet.errors import FleetError
from fleet.models.shards import shard_paths
from fleet.operations.arrangement import Arrangement
from fleet.operations.hands import Hands, node_of
from fleet.operations.plan import Report, Step
from fleet.planning.planned import size

MIB = 1 << 20
PIECE = 256                # MiB that are read before it is looked at how long that took
PIECE_WITHIN = 60.0        # seconds
SLOW = 30.0                # seconds for a piece: such a disk serves the old model badly meanwhile
WARM_FOR = 120.0           # seconds in all that a swap is kept waiting
OF_MEMORY = 0.5            # of what is available: the pages of the model that serves are part of that
# path, MiB to skip, MiB to read. What read past the end gives is nothing.
READ = """set -- "$1" "$2" "$3" $(command -v ionice >/dev/null 2>&1 && echo ionice -c 3)
path=$1 skip=$2 count=$3
shift 3
exec "$@" nice -n 19 dd if="$path" of=/dev/null bs=1048576 skip="$skip" count="$count" 2>/dev/null
"""


class WarmFile(Step):
    """Read the file of a model that will be brought up, as far as memory and time allow."""

    def __init__(self, hands: Hands, arrangement: Arrangement) -> None:
        self.title = f"Read {arrangement.choice.model.name} into memory of {arrangement.head_node}"
        self.node = arrangement.head_node
        self._hands, self._arrangement = hands, arrangement

    async def check(self) -> str | None:
        return "it is read from disk on purpose" if self._arrangement.streaming is not None else None

    async def do(self, report: Report) -> None:
        bound, whole = self._bound(), self._arrangement.file_size
        done, clock = 0, self._hands.clock
        begun = clock()
        for path, length in self._files():
            place = 0
            while place < length:
                if done >= bound:
                    report(f"{size(done)} of {size(whole)}, as much as memory has room for")
                    return
                before = clock()
                try:
                    read = await self._hands.transport(self.node).run(
                        READ, (path, str(place // MIB), str(PIECE)), timeout=PIECE_WITHIN, limit=1024)
                except FleetError as error:
                    report(f"left at {size(done)}: {error.what}")
                    return
                if read.status != 0:
                    report(f"left at {size(done)}: {path} cannot be read")
                    return
                step = min(PIECE * MIB, length - place)
                place, done = place + step, done + step
                report(f"{size(done)} of {size(whole)}", done / max(1, whole))
                if clock() - before > SLOW or clock() - begun > WARM_FOR:
                    report(f"{size(done)} of {size(whole)}, as much as there is time for")
                    return

    def _bound(self) -> int:
        reading = node_of(self._hands, self.node).reading
        available = reading.memory.available if reading else None
        return int((available or 0) * OF_MEMORY)

    def _files(self) -> list[tuple[str, int]]:
        """Path and bytes of each file. A shard is taken as long as the average: past its end is nothing to read."""
        path, count = self._arrangement.choice.model.file, max(1, self._arrangement.header.split_count)
        if count == 1:
            return [(path, self._arrangement.file_size)]
        # the first shard may hold the metadata alone, so the average is rounded up by one piece
        return [(each, self._arrangement.file_size // count + PIECE * MIB) for each in shard_paths(path, count)]
