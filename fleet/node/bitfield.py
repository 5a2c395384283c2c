"""The note of what is finished: `MODEL.gguf.quarterdeck.pieces`.

It is bound to its manifest (by the id), carries its own hash, and the size and mtime of the data
files as they were when it was written. A note that is torn or belongs to another manifest is worth
nothing; one whose marks differ is a claim to be checked by hashing.

    {"format": "quarterdeck-pieces", "version": 1, "manifest": ID, "count": 640, "bits": "ff80...",
     "files": [[size, mtime_ns], ...], "complete": false, "check": SHA-256 of all the rest}

Bit 7 of the first byte is piece 0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .files import read_bounded, replace_file
from .manifest import MOST_FILES, MOST_PIECES
from .trouble import StoreError

SUFFIX = ".quarterdeck.pieces"
TIGHTWAD_SUFFIX = ".tightwad.pieces"
FORMAT = "quarterdeck-pieces"
BIGGEST = 512 * 1024                 # bytes of JSON; 65 536 pieces take 17 KiB
BIGGEST_TIGHTWAD = 1024 * 1024
_HEX = re.compile(r"(?:[0-9a-f]{2})+")


@dataclass(frozen=True)
class Bitfield:
    """`marks`: (size, mtime_ns) of each data file. `complete`: the whole was verified and has its final name."""

    manifest: str
    count: int
    have: frozenset
    marks: tuple
    complete: bool = False

    def as_bytes(self) -> bytes:
        """The note's JSON with its check."""
        bits = bytearray((self.count + 7) // 8)
        for index in self.have:
            bits[index >> 3] |= 0x80 >> (index & 7)
        content = {"format": FORMAT, "version": 1, "manifest": self.manifest, "count": self.count,
                   "bits": bits.hex(), "files": [list(mark) for mark in self.marks], "complete": self.complete}
        content["check"] = _check(content)
        return json.dumps(content, separators=(",", ":")).encode()

    def save(self, path: Path) -> None:
        """Crash-safe: the old note or this one is there, never a piece of one."""
        replace_file(path, self.as_bytes())


def parse_bitfield(data: bytes, manifest: str, count: int) -> Bitfield | None:
    """The note, or None when it is torn, hostile or about another manifest."""
    if len(data) > BIGGEST:
        return None
    try:
        content = json.loads(data.decode("ascii"), parse_int=_short)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != 1:
        return None
    given = content.pop("check", None)
    if given != _check(content) or content.get("manifest") != manifest or content.get("count") != count:
        return None
    bits, files = content.get("bits"), content.get("files")
    if not isinstance(bits, str) or not _HEX.fullmatch(bits) or len(bits) != 2 * ((count + 7) // 8):
        return None
    if not isinstance(files, list) or len(files) > MOST_FILES or not all(map(_is_mark, files)):
        return None
    raw = bytes.fromhex(bits)
    have = frozenset(index for index in range(count) if raw[index >> 3] & (0x80 >> (index & 7)))
    return Bitfield(manifest, count, have, tuple(tuple(mark) for mark in files), content.get("complete") is True)


def load_bitfield(path: Path, manifest: str, count: int) -> Bitfield | None:
    """The note at `path`, None when there is none that can be used."""
    try:
        return parse_bitfield(read_bounded(path, BIGGEST), manifest, count)
    except (OSError, StoreError):
        return None


def parse_indices(value: object, count: int) -> list | None:
    """A list of piece numbers below `count` from somebody else (a peer, Tightwad); None when it is no such list."""
    if not isinstance(value, list) or len(value) > min(count, MOST_PIECES):
        return None
    if not all(type(index) is int and 0 <= index < count for index in value):
        return None
    return value


def load_tightwad(path: Path, count: int) -> list | None:
    """What a Tightwad note claims; it has no check and no order of writing, so every piece has to be hashed."""
    try:
        content = json.loads(read_bounded(path, BIGGEST_TIGHTWAD).decode("ascii"), parse_int=_short)
    except (OSError, StoreError, ValueError, RecursionError):
        return None
    return parse_indices(content.get("have"), count) if isinstance(content, dict) else None


def indices(have: Iterable[int]) -> dict:
    """The wire's form: {"have": [0, 1, ...]}."""
    return {"have": sorted(have)}


def _is_mark(mark: object) -> bool:
    return isinstance(mark, list) and len(mark) == 2 and all(type(number) is int for number in mark)


def _short(digits: str) -> int:
    if len(digits) > 24:
        raise ValueError("a number that is too long")
    return int(digits)


def _check(content: dict) -> str:
    rest = {key: value for key, value in content.items() if key != "check"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
