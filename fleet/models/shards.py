"""What the name of a file says: one part of a model, a projector, something unfinished.

llama.cpp's own rule for parts is `NAME-00001-of-00003.gguf`: five digits, counted from 1 (metadata counts from 0),
and it must be started with the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import ModelFileError

MOST_SHARDS = 1_000
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_ODD_SHARD = re.compile(r".+-\d{1,6}-of-\d{1,6}\.gguf", re.IGNORECASE | re.DOTALL)
_CUT = re.compile(r"\.gguf[.-](?:split-?[a-z0-9]+|part-?[0-9a-z]{1,3}(?:of\d+)?)$", re.IGNORECASE)
_UNFINISHED = re.compile(r"\.(?:part|partial|incomplete|crdownload|download|downloadinprogress|aria2|tmp|opdownload)$",
                         re.IGNORECASE)


class FileKind(StrEnum):
    """What a file is, by its name. Only its header says more."""

    MODEL = "model"
    PROJECTOR = "projector"        # eyes or ears of a model: goes beside it as --mmproj
    VOCABULARY = "vocabulary"      # tokens alone, for llama.cpp's tests
    IMATRIX = "importance matrix"
    UNFINISHED = "unfinished"      # still being fetched, or a fetch that was given up
    CUT = "cut"                    # cut with `split`: has to be put together again before anything can read it
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of a model in several files."""

    stem: str                      # of the whole path, folder and all: parts of one model lie together
    number: int                    # from 1
    count: int


def shard_of(path: str) -> Shard | None:
    """Which part of what a file is; None for one that is a whole model."""
    match = _SHARD.fullmatch(path)
    if match is None:
        return None
    number, count = int(match["number"]), int(match["count"])
    return Shard(match["stem"], number, count) if 1 <= number <= count <= MOST_SHARDS else None


def is_oddly_numbered(path: str) -> bool:
    """Named like one of several parts, but not as llama.cpp looks for them (`-1-of-3.gguf`)."""
    return shard_of(path) is None and _ODD_SHARD.fullmatch(path) is not None


def file_kind(path: str) -> FileKind:
    """What a file is, by its name."""
    name = path.rpartition("/")[2].lower()
    if _CUT.search(name):
        return FileKind.CUT
    if _UNFINISHED.search(name):
        return FileKind.UNFINISHED if ".gguf" in name else FileKind.OTHER
    if not name.endswith(".gguf"):
        return FileKind.OTHER
    if "mmproj" in name:
        return FileKind.PROJECTOR
    if name.startswith("ggml-vocab"):
        return FileKind.VOCABULARY
    return FileKind.IMATRIX if "imatrix" in name else FileKind.MODEL


def model_name(path: str) -> str:
    """What a person calls the model of a file: its name without the number of its part and the ending."""
    shard = shard_of(path)
    stem = shard.stem if shard else path[:-5] if path.lower().endswith(".gguf") else path
    return stem.rpartition("/")[2] or stem


def shard_paths(first: str, count: int) -> tuple[str, ...]:
    """The files of a model in several parts, from the path of its first.

    Raises:
        ModelFileError: that is not named as the first, or there are too many.
    """
    shard = shard_of(first)
    if not 1 <= count <= MOST_SHARDS:
        raise ModelFileError(f"{first} claims to be one of {count} parts.", "Fetch the file again.", code="shards")
    if shard is None or shard.number != 1 or shard.count != count:
        raise ModelFileError(f"{first} is one of {count} parts, but not named as the first of them: "
                             f"-00001-of-{count:05d}.gguf.", "Name the first part as the model's file.", code="shards")
    ending = first[-5:]
    return tuple(f"{shard.stem}-{number:05d}-of-{count:05d}{ending}" for number in range(1, count + 1))
