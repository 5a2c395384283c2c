"""Writing a model to a node that has no python3: by SFTP, piece after piece, each read back and hashed there.

The bytes go to NAME.part, in order. A piece counts when its hash was right on its way and is right again on the
node's disk; the name changes when the whole has its hash. What was sent before is hashed first, so that a broken
sending goes on where it was.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from fleet.errors import OperationFailed
from fleet.node import FileEntry, Piece
from fleet.nodes.shell_file import open_for_writing
from fleet.operations.hands import Hands
from fleet.swarm.deal import Deal, Party
from fleet.text import visible

BLOCK = 4 << 20            # bytes that are in hand at once
TRIES = 3                  # of one piece
HASH_TIMEOUT = 3_600.0     # seconds: a whole model on a slow disk
BLOCK_TIMEOUT = 120.0
_HEX = re.compile(r"\b[0-9a-f]{64}\b")
_DIGEST = """
case $1 in
sha256sum) qd_hash() { sha256sum; } ;;
shasum) qd_hash() { shasum -a 256; } ;;
sha256) qd_hash() { sha256 -q; } ;;
openssl) qd_hash() { openssl dgst -sha256 -r; } ;;
*) exit 3 ;;
esac
tail -c "+$(($3 + 1))" -- "$2" | head -c "$4" | LC_ALL=C qd_hash
"""
_SIZE = """[ -f "$1" ] && [ ! -h "$1" ] || { printf 'none\\n'; exit 0; }
LC_ALL=C ls -ln -- "$1" | { IFS=' ' read -r _ _ _ _ qd_size _; printf '%s\\n' "$qd_size"; }"""
# A name is never taken from another file: a link fails where one is there.
_RENAME = """sync 2>/dev/null
if ln -- "$1" "$2" 2>/dev/null; then rm -f -- "$1"; printf 'renamed\\n'
elif [ ! -e "$2" ] && mv -- "$1" "$2"; then printf 'renamed\\n'
else printf 'exists\\n'; fi"""


class Sending:
    """One target that is written to. `giver` is the member of the swarm that the bytes are read from."""

    def __init__(self, hands: Hands, deal: Deal, party: Party, giver: Party) -> None:
        self.party, self.giver = party, giver
        self.done = 0              # bytes that are there and right, or on their way
        self.pieces = 0            # pieces that are there and right
        self.rate = 0.0            # bytes a second
        self.read_at_source = 0
        self._hands, self._deal = hands, deal

    async def run(self) -> None:
        """Send what is missing.

        Raises:
            OperationFailed: the disk does not hold what was written, the giver's bytes are wrong, a file is in the way.
            FleetError: a node does not answer.
        """
        manifest, first = self._deal.known, 0
        for entry in manifest.files:
            count = -(-entry.size // manifest.piece_size)
            await self._file(entry, [manifest.piece(index) for index in range(first, first + count)])
            first += count

    async def _file(self, entry: FileEntry, pieces: list[Piece]) -> None:
        final = f"{self.party.ground.folder}/{entry.name}"
        part, before = f"{final}.part", self.pieces
        if await self._size(final) is not None:
            if await self._size(final) != entry.size or await self._digest(final, 0, entry.size) != entry.sha256:
                raise OperationFailed(f"{visible(final)} on {self.party.node} is there already and is another file.",
                                      "Move it away.", code="exists")
            self.pieces += len(pieces)
            self.done += entry.size
            return
        good = await self._right_so_far(part, pieces, await self._size(part) or 0)
        writer = await open_for_writing(self._hands.transport(self.party.node), part,
                                        pieces[good].at if good < len(pieces) else entry.size)
        try:
            for piece in pieces[good:]:
                await self._piece(writer, part, piece)
        finally:
            await writer.close()
        if entry.sha256 and await self._digest(part, 0, entry.size) != entry.sha256:
            raise OperationFailed(f"{visible(part)} on {self.party.node} does not have the hash of the whole, though "
                                  "every piece was right: its disk changes what it holds.",
                                  "Check the disk there; distribute the model again.", code="whole")
        done = await self._hands.transport(self.party.node).run(_RENAME, (part, final), timeout=HASH_TIMEOUT)
        if "renamed" not in done.text:
            raise OperationFailed(f"{visible(final)} on {self.party.node} is there already and is another file.",
                                  "Move it away.", code="exists")
        self.pieces = before + len(pieces)

    async def _right_so_far(self, part: str, pieces: list[Piece], size: int) -> int:
        """How many pieces from the start on lie there already, each by its hash."""
        good = 0
        for piece in pieces:
            if piece.at + piece.size > size or await self._digest(part, piece.at, piece.size) != piece.sha256:
                break
            good += 1
            self.pieces += 1
            self.done += piece.size
        return good

    async def _piece(self, writer, part: str, piece: Piece) -> None:
        before = self.done
        for tries_left in reversed(range(TRIES)):
            self.done, hasher = before, hashlib.sha256()
            await writer.seek(piece.at)
            async with aclosing(self._read(piece)) as blocks:
                async for block in blocks:
                    begun = time.monotonic()
                    await writer.write(block)
                    self.done += len(block)
                    hasher.update(block)
                    self.rate = len(block) / max(1e-6, time.monotonic() - begun)
            await writer.flush()
            if hasher.hexdigest() != piece.sha256:
                raise OperationFailed(f"{self.giver.node} gave wrong bytes for piece {piece.index} of "
                                      f"{visible(self._deal.name)}.", "Its disk or memory is bad: check them.",
                                      code="wrong-bytes")
            if await self._digest(part, piece.at, piece.size) == piece.sha256:
                self.pieces += 1
                return
            if not tries_left:
                raise OperationFailed(f"The disk of {self.party.node} does not hold what was written to "
                                      f"{visible(part)}: piece {piece.index} reads back otherwise.",
                                      "Check that disk.", code="bad-disk")

    async def _read(self, piece: Piece) -> AsyncIterator[bytes]:
        transport = self._hands.transport(self.giver.node)
        source = self._deal.source is self.giver
        path = self._deal.paths[piece.file] if source else f"{self.giver.ground.folder}/" \
            f"{self._deal.known.files[piece.file].name}"
        at, end = piece.at, piece.at + piece.size
        while at < end:
            block = await transport.read_file(path, at, min(BLOCK, end - at), timeout=BLOCK_TIMEOUT)
            if not block:
                raise OperationFailed(f"{visible(path)} on {self.giver.node} became shorter while it was read.",
                                      "Distribute the model again.", code="changed")
            if source:
                self.read_at_source += len(block)
            at += len(block)
            yield block

    async def _size(self, path: str) -> int | None:
        done = await self._hands.transport(self.party.node).run(_SIZE, (path,))
        text = done.text.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    async def _digest(self, path: str, at: int, length: int) -> str:
        """SHA-256 of bytes that lie on the node, by its own tool; read back to here where it has none."""
        transport = self._hands.transport(self.party.node)
        if self.party.ground.tool:
            done = await transport.run(_DIGEST, (self.party.ground.tool, path, str(at), str(length)),
                                       timeout=HASH_TIMEOUT)
            if done.status == 0 and (found := _HEX.search(done.text)):
                return found[0]
        hasher, end = hashlib.sha256(), at + length
        while at < end:
            block = await transport.read_file(path, at, min(BLOCK, end - at), timeout=BLOCK_TIMEOUT)
            if not block:
                return ""
            hasher.update(block)
            at += len(block)
        return hasher.hexdigest()



