"""The manifest of a model: which pieces it has and what each must hash to.

A manifest is written by whoever has the file and read by machines that trust nothing: every rule is
checked on reading, and one that is broken refuses the whole. A model in several files (shards) has
one manifest; a piece never crosses from one file into the next.

The JSON has the fields of Tightwad's format (model, filename, total_size, piece_size, pieces,
metadata, created_at), so its pullers read ours and ours read its manifests, and more: format,
version, sha256 of the whole, shards, and for each piece `upto`: the SHA-256 of its file from the
start to the end of that piece. Who has the pieces in order verifies each by `upto` while hashing the
whole, so that every byte is hashed once and not twice.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Union

from .files import read_bounded, replace_file
from .trouble import ManifestRefused, StoreError

SUFFIX = ".quarterdeck.manifest"
TIGHTWAD_SUFFIX = ".tightwad.manifest"
FORMAT = "quarterdeck-manifest"
VERSION = 1
PIECE_SIZE = 67_108_864              # bytes: 64 MiB
SMALLEST_PIECE, BIGGEST_PIECE = 4_096, 1 << 30
MOST_PIECES = 65_536                 # 4 TiB in pieces of 64 MiB
MOST_BYTES = 1 << 46                 # of a model: 64 TiB
MOST_FILES = 1_000
MOST_FACTS = 64
LONGEST_FACT = 256
LONGEST_NAME = 200                   # bytes: a suffix of ours has to fit within 255
BIGGEST_MANIFEST = 16 * 1024 * 1024  # bytes of JSON
_HASH = re.compile(r"[0-9a-f]{64}")
_FACT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_OURS = re.compile(r"\.(part|quarterdeck\.[a-z]+|tightwad\.[a-z]+)$")

Fact = Union[str, int, float, bool]


@dataclass(frozen=True)
class FileEntry:
    """One file of the model; `offset` is where it begins when all are laid one after another."""

    name: str
    offset: int
    size: int
    sha256: str    # "" when the manifest does not say (Tightwad's)


@dataclass(frozen=True)
class Piece:
    """A run of bytes with its hash; `offset` counts over all files, `at` within file number `file`."""

    index: int
    offset: int
    size: int
    sha256: str
    file: int
    at: int


@dataclass(frozen=True)
class Manifest:
    """A checked manifest. `digests` and `upto` hold 32 bytes a piece, one after another; `upto` may be empty."""

    model: str
    files: tuple
    piece_size: int
    digests: bytes
    facts: Mapping[str, Fact] = field(default_factory=dict)
    created_at: str = ""
    upto: bytes = b""

    @property
    def name(self) -> str:
        """The name of the (first) file."""
        return self.files[0].name

    @property
    def total_size(self) -> int:
        """Bytes of all files."""
        return self.files[-1].offset + self.files[-1].size

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(self.digests) // 32

    @cached_property
    def id(self) -> str:
        """The SHA-256 that names these bytes cut into these pieces, whatever the file is called."""
        sizes = ",".join(str(entry.size) for entry in self.files)
        return hashlib.sha256(f"quarterdeck {self.piece_size} {sizes}\n".encode() + self.digests).hexdigest()

    @cached_property
    def _firsts(self) -> list:
        firsts, first = [], 0
        for entry in self.files:
            firsts.append(first)
            first += -(-entry.size // self.piece_size)
        return firsts

    def piece(self, index: int) -> Piece:
        """Piece number `index`; IndexError when there is none."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        number = bisect_right(self._firsts, index) - 1
        entry = self.files[number]
        at = (index - self._firsts[number]) * self.piece_size
        digest = self.digests[32 * index:32 * index + 32].hex()
        return Piece(index, entry.offset + at, min(self.piece_size, entry.size - at), digest, number, at)

    def prefix(self, index: int) -> bytes:
        """SHA-256 of the piece's file up to the piece's end, b"" when the manifest does not say."""
        return self.upto[32 * index:32 * index + 32]

    def as_dict(self) -> dict:
        """The JSON's content; what Tightwad knows has its names."""
        pieces = []
        for index in range(self.count):
            piece = self.piece(index)
            pieces.append({"index": index, "offset": piece.offset, "size": piece.size, "sha256": piece.sha256})
            if self.upto:
                pieces[-1]["upto"] = self.prefix(index).hex()
        content: dict = {
            "format": FORMAT, "version": VERSION, "model": self.model, "filename": self.name,
            "total_size": self.total_size, "piece_size": self.piece_size,
            "pieces": pieces, "metadata": dict(self.facts), "created_at": self.created_at,
        }
        if len(self.files) == 1:
            content["sha256"] = self.files[0].sha256
        else:
            content["shards"] = [{"filename": entry.name, "size": entry.size, "sha256": entry.sha256}
                                 for entry in self.files]
        return content

    def as_bytes(self) -> bytes:
        """The manifest as it is stored and sent."""
        return json.dumps(self.as_dict(), ensure_ascii=False, separators=(",", ":")).encode()

    def save(self, folder: Path) -> Path:
        """Write it beside the model, crash-safe; the path of the manifest."""
        path = folder / (self.name + SUFFIX)
        replace_file(path, self.as_bytes())
        return path


def plain_name(name: Any) -> str:
    """`name` when it is a plain file name, else ManifestRefused with the reason."""
    if not isinstance(name, str) or not name:
        raise ManifestRefused("The file name is missing.")
    shown = ascii(name[:80])[1:-1]   # an error is read on a terminal
    if any(unicodedata.category(letter)[0] == "C" or letter in "\u2028\u2029" for letter in name):
        raise ManifestRefused(f"The file name '{shown}' has control characters.")
    if "/" in name or "\\" in name or ":" in name:
        raise ManifestRefused(f"The file name '{shown}' is a path.")
    if len(name.encode()) > LONGEST_NAME:
        raise ManifestRefused(f"The file name '{shown}...' is longer than {LONGEST_NAME} bytes.")
    if name[0] in ".-~" or name[-1] in ". " or name != name.strip():
        raise ManifestRefused(f"The file name '{shown}' begins or ends with a character that it may not.")
    if _OURS.search(name):
        raise ManifestRefused(f"The file name '{shown}' has an ending that belongs to the swarm's own files.")
    return name


def parse_manifest(data: bytes) -> Manifest:
    """Check and read a manifest in our format or Tightwad's; ManifestRefused names the first broken rule."""
    if len(data) > BIGGEST_MANIFEST:
        raise ManifestRefused(f"The manifest is bigger than {BIGGEST_MANIFEST} bytes.")
    try:
        content = json.loads(data.decode("utf-8"), parse_int=_small_int, parse_constant=_no_constant,
                             object_pairs_hook=_no_duplicates)
    except RecursionError:
        raise ManifestRefused("The manifest is nested too deeply.") from None
    except ManifestRefused:
        raise
    except ValueError as error:
        raise ManifestRefused(f"The manifest is no JSON: {str(error)[:120]}.") from None
    if not isinstance(content, dict):
        raise ManifestRefused("The manifest is no JSON object.")
    return _checked(content)


def load_manifest(path: str | Path) -> Manifest:
    """Read a manifest file (`*.quarterdeck.manifest` or `*.tightwad.manifest`)."""
    path = Path(path)
    try:
        return parse_manifest(read_bounded(path, BIGGEST_MANIFEST))
    except ManifestRefused as error:
        raise ManifestRefused(f"{path}: {error.what}", "Make the manifest again from the model.") from None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}.") from error


def find_manifest(model: str | Path) -> Path | None:
    """The manifest beside a model file: ours, else Tightwad's, else None."""
    model = Path(model)
    for suffix in (SUFFIX, TIGHTWAD_SUFFIX):
        path = model.with_name(model.name + suffix)
        if path.is_file():
            return path
    return None


def clean_facts(facts: Any) -> dict:
    """GGUF facts (architecture, quantisation, parameters ...) when they are small and plain."""
    if not isinstance(facts, Mapping):
        raise ManifestRefused("metadata is no object.")
    if len(facts) > MOST_FACTS:
        raise ManifestRefused(f"metadata has more than {MOST_FACTS} entries.")
    for key, value in facts.items():
        if not isinstance(key, str) or not _FACT.fullmatch(key):
            raise ManifestRefused("metadata has a key that is no plain word.")
        if not isinstance(value, (str, int, float, bool)):
            raise ManifestRefused(f"metadata '{key}' is neither text nor a number.")
        if isinstance(value, str) and (len(value) > LONGEST_FACT or _has_surrogate(value)):
            raise ManifestRefused(f"metadata '{key}' is too long or no text.")
    return dict(facts)


def _checked(content: dict) -> Manifest:
    if "format" in content and content["format"] != FORMAT:
        raise ManifestRefused("The manifest has a format that is not known here.")
    ours = "format" in content
    if ours and content.get("version") != VERSION:
        raise ManifestRefused(f"The manifest has a version other than {VERSION}.")
    piece_size = _whole(content, "piece_size", SMALLEST_PIECE, BIGGEST_PIECE)
    total = _whole(content, "total_size", 1, MOST_BYTES)
    files = _files(content, total, ours)
    if files[0].name != content.get("filename"):
        raise ManifestRefused("filename is not the first shard's.")
    count = sum(-(-entry.size // piece_size) for entry in files)
    if count > MOST_PIECES:
        raise ManifestRefused(f"There would be {count} pieces, and {MOST_PIECES} are allowed.")
    pieces = content.get("pieces")
    if not isinstance(pieces, list) or len(pieces) != count:
        raise ManifestRefused(f"pieces is no list of the {count} pieces that the sizes ask for.")
    model = content.get("model", "")
    if not isinstance(model, str) or len(model) > LONGEST_FACT or _has_surrogate(model):
        raise ManifestRefused("model is no short text.")
    created = content.get("created_at", "")
    if not isinstance(created, str) or len(created) > 64 or _has_surrogate(created):
        raise ManifestRefused("created_at is no short text.")
    facts = clean_facts(content.get("metadata", {}))
    manifest = Manifest(model, files, piece_size, b"\0" * 32 * count, facts, created)
    digests, upto = bytearray(), bytearray()
    for index, given in enumerate(pieces):
        piece = manifest.piece(index)
        if not isinstance(given, dict):
            raise ManifestRefused(f"Piece {index} is no object.")
        for key, right in (("index", index), ("offset", piece.offset), ("size", piece.size)):
            if type(given.get(key)) is not int or given[key] != right:
                raise ManifestRefused(f"Piece {index}: {key} is not {right}, so the pieces do not cover the file.")
        digests += bytes.fromhex(_hash(given.get("sha256"), f"Piece {index}"))
        if ("upto" in given) != ("upto" in pieces[0]):
            raise ManifestRefused(f"Piece {index}: upto is there for some pieces and not for others.")
        if "upto" in given:
            upto += bytes.fromhex(_hash(given["upto"], f"Piece {index}, upto"))
            entry = files[piece.file]
            if (piece.at == 0 and upto[-32:] != digests[-32:]) or \
                    (piece.at + piece.size == entry.size and entry.sha256 and upto[-32:].hex() != entry.sha256):
                raise ManifestRefused(f"Piece {index}: upto contradicts another hash of the same bytes.")
    return Manifest(model, files, piece_size, bytes(digests), facts, created, bytes(upto))


def _files(content: dict, total: int, ours: bool) -> tuple:
    if "shards" not in content:
        sha256 = _hash(content.get("sha256"), "The whole") if ours or "sha256" in content else ""
        return (FileEntry(plain_name(content.get("filename")), 0, total, sha256),)
    shards = content["shards"]
    if not isinstance(shards, list) or not 2 <= len(shards) <= MOST_FILES:
        raise ManifestRefused(f"shards is no list of 2 to {MOST_FILES} files.")
    if "sha256" in content:
        raise ManifestRefused("A set of shards has a hash for each, and none for the whole.")
    files, offset, names = [], 0, set()
    for number, shard in enumerate(shards):
        if not isinstance(shard, dict):
            raise ManifestRefused(f"Shard {number} is no object.")
        name = plain_name(shard.get("filename"))
        folded = unicodedata.normalize("NFC", name).casefold()
        if folded in names:
            raise ManifestRefused(f"Shard {number} has the name of another one.")
        names.add(folded)
        size = _whole(shard, "size", 1, MOST_BYTES)
        files.append(FileEntry(name, offset, size, _hash(shard.get("sha256"), f"Shard {number}")))
        offset += size
    if offset != total:
        raise ManifestRefused(f"The shards have {offset} bytes together, and total_size says {total}.")
    return tuple(files)


def _whole(content: dict, key: str, least: int, most: int) -> int:
    value = content.get(key)
    if type(value) is not int or not least <= value <= most:
        raise ManifestRefused(f"{key} is no whole number from {least} to {most}.")
    return value


def _hash(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ManifestRefused(f"{where}: sha256 is not 64 hexadecimal digits.")
    return value


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _small_int(digits: str) -> int:
    if len(digits) > 20:   # int() of a million digits takes minutes before Python 3.11
        raise ManifestRefused("The manifest has a number of more than 20 digits.")
    return int(digits)


def _no_constant(word: str) -> float:
    raise ManifestRefused(f"The manifest has {word}, which is no number.")


def _no_duplicates(pairs: list) -> dict:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ManifestRefused("The manifest has a key twice in one object.")
    return content
