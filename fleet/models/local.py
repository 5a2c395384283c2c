"""Headers of files of this machine, without an engine or an event loop."""

from __future__ import annotations

import os
import stat
from collections.abc import Coroutine
from typing import Any

from fleet.errors import ModelFileError
from fleet.models.gguf import GgufHeader, combined, read_header
from fleet.models.shards import shard_paths


def header_of_file(path: str) -> GgufHeader:
    """The header of a model by the path of its first file, all of its files together.

    Raises:
        ModelFileError: a file is not there, cannot be read, is no GGUF, or does not belong to the others.
    """
    first = _one(path)
    if first.split_count == 1:
        return first
    return combined((first, *(_one(part) for part in shard_paths(path, first.split_count)[1:])))


def _one(path: str) -> GgufHeader:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)    # a FIFO must not hold us
    except FileNotFoundError:
        raise ModelFileError(f"There is no file {path}.", "Check the path.", code="no-file") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise ModelFileError(f"{path} is not a regular file.", "Name a model file that ends in .gguf.",
                                 code="no-file")

        async def read(offset: int, length: int) -> bytes:
            return os.pread(file, length, offset)

        return _finished(read_header(read, about.st_size, name=path))
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(file)


def _finished(reading: Coroutine[Any, Any, GgufHeader]) -> GgufHeader:
    """Run what never waits: an event loop would take longer to import than all of this."""
    try:
        reading.send(None)
    except StopIteration as done:
        return done.value
    reading.close()
    raise RuntimeError("reading a file of this machine waited for something")


def _unreadable(path: str, error: Exception) -> ModelFileError:
    why = getattr(error, "strerror", None) or str(error)
    return ModelFileError(f"{path} cannot be read: {why}.", "Check the path and that you may read it.",
                          code="unreadable")
