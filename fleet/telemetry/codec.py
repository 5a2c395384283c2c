"""Events and Snapshots as lines of JSON, and back: what the flight recorder writes and a replay reads.

    {"t": 1767225600.25, "kind": "NodeRead", "data": {...}}

`t` is seconds since the epoch, `kind` the name of a record of `fleet.events`, or "Snapshot". Values of options,
variables and facts that are named like secrets are written as `***`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import msgspec

from fleet.errors import FleetError
from fleet.events import Event
from fleet.model import Snapshot
from fleet.text import HIDDEN, SECRET_NAME, hidden_values, without_secrets

KINDS: dict[str, type] = {kind.__name__: kind for kind in (*get_args(Event), Snapshot)}
LONGEST_LINE = 16 * 1024 * 1024     # bytes: a Snapshot of 100 nodes with 500 services is about 2 MB
_NO_SECRETS = ("_file", "_files", "_path", "_dir", "host_key")     # paths of key files, and public fingerprints


class RecordingBroken(FleetError):
    """A recording cannot be read."""

    code = "recording"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One line of a recording."""

    at_epoch: float
    item: Event | Snapshot


class _Line(msgspec.Struct):
    t: float
    kind: str
    data: msgspec.Raw


_lines = msgspec.json.Decoder(_Line)


def encode(at_epoch: float, item: Event | Snapshot) -> bytes:
    """One line, with its newline."""
    data = _clean(msgspec.to_builtins(item))
    return msgspec.json.encode({"t": at_epoch, "kind": type(item).__name__, "data": data}) + b"\n"


def decode(line: bytes) -> Recorded:
    """The record of one line.

    Raises:
        RecordingBroken: it is none, or of a kind that this Quarterdeck does not know.
    """
    try:
        read = _lines.decode(line)
        kind = KINDS.get(read.kind)
        if kind is None:
            raise RecordingBroken(f"A line of the recording tells of {read.kind[:60]!r}, which is not known here.",
                                  "It was made by a newer Quarterdeck: use that one.")
        return Recorded(read.t, msgspec.json.decode(read.data, type=kind))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise RecordingBroken(f"A line of the recording is damaged: {str(error)[:200]}.",
                              "The rest can be read without it.") from error


def _clean(value: object) -> object:
    """The same without secrets."""
    if isinstance(value, dict):
        return {key: _named(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def _named(name: str, value: object) -> object:
    if name == "argv" and isinstance(value, list | tuple):
        return list(without_secrets([str(item) for item in value]))
    if name == "env" and isinstance(value, Mapping):
        return hidden_values({str(key): str(item) for key, item in value.items()})
    if isinstance(value, str) and value and SECRET_NAME.search(name) and not name.endswith(_NO_SECRETS):
        return HIDDEN
    return _clean(value)
