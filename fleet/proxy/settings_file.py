"""Settings of a proxy as one file: what a proxy that was started detached, here or on a node, reads at its start.

It holds the keys of clients and servers, so it is a file that only its owner can read; no command line names a secret.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TypeVar

from fleet.errors import ConfigError
from fleet.ownership import why_not_ours
from fleet.proxy.access import Key
from fleet.proxy.control import read_upstreams
from fleet.proxy.exchange import HoldSettings, Limits, ProxySettings, RepairSettings

SIZE_LIMIT = 4 * 1024 * 1024     # bytes
Record = TypeVar("Record")
_PARTS: dict[str, type] = {"limits": Limits, "hold": HoldSettings, "repair": RepairSettings}
_REMEDY = "Start the proxy again: its file is written anew."


def to_json(settings: ProxySettings) -> bytes:
    """The file's content, secrets included."""
    return json.dumps(asdict(settings), separators=(",", ":")).encode()


def from_json(text: bytes) -> ProxySettings:
    """What `to_json` wrote.

    Raises:
        ConfigError: it is something else; secrets are not repeated.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("The proxy's settings are no JSON.", _REMEDY) from error
    if not isinstance(said, dict):
        raise ConfigError("The proxy's settings are no object.", _REMEDY)
    given = dict(said)
    upstreams = given.pop("upstreams", [])
    keys, aliases = given.pop("keys", []), given.pop("aliases", {})
    parts = {name: _record(kind, given.pop(name, {}), name) for name, kind in _PARTS.items()}
    if not isinstance(keys, list):
        raise ConfigError("'keys' of the proxy's settings is no list.", _REMEDY)
    if not isinstance(aliases, dict) or not all(isinstance(text, str) for pair in aliases.items() for text in pair):
        raise ConfigError("'aliases' of the proxy's settings has something else than names.", _REMEDY)
    plain = _record(ProxySettings, given, "settings")
    return replace(plain, upstreams=read_upstreams(upstreams), aliases=aliases, **parts,
                   keys=tuple(_record(Key, key, "keys", name="", secret="") for key in keys))


def read_settings(path: Path) -> ProxySettings:
    """The settings in a file.

    Raises:
        ConfigError: it cannot be read, others may read or write it, or it holds something else.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            why = why_not_ours(found)
            if not stat.S_ISREG(found.st_mode):
                why = "it is no file"
            elif found.st_mode & 0o077:
                why = why or "others may read it"
            if why:
                raise ConfigError(f"The proxy's settings in {path} are not read: {why}.", f"chmod 600 {path}, or start "
                                  "the proxy again.")
            text = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"The proxy's settings in {path} cannot be read: {error.strerror}.", _REMEDY) from error
    if len(text) > SIZE_LIMIT:
        raise ConfigError(f"The proxy's settings in {path} are larger than {SIZE_LIMIT} bytes.", _REMEDY)
    return from_json(text)


def _record(kind: type[Record], said: object, where: str, **must: object) -> Record:
    """A record of plain values, each of the kind that its default is."""
    if not isinstance(said, dict):
        raise ConfigError(f"{where!r} of the proxy's settings is no object.", _REMEDY)
    known = {field.name: field for field in fields(kind)}       # type: ignore[arg-type]
    unknown = sorted(set(map(str, said)) - set(known))
    missing = [name for name in must if name not in said]
    if unknown or missing:
        raise ConfigError(f"{where!r} of the proxy's settings {'has' if unknown else 'lacks'} "
                          f"{(unknown or missing)[0][:60]!r}.", _REMEDY)
    values = {}
    for name, value in said.items():
        example = must.get(name, known[name].default)
        read = _KINDS.get(type(example))
        if read is None or (result := read(value)) is None:
            if not (example is None and (value is None or _number(value) is not None)):
                raise ConfigError(f"{name!r} of the proxy's settings cannot be used.", _REMEDY)
            result = value
        values[name] = result
    return kind(**values)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _switch(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15 else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and _number(value) is not None else None


def _texts(value: object) -> tuple[str, ...] | None:
    ok = isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)
    return tuple(value) if ok else None      # type: ignore[arg-type]


_KINDS: Mapping[type, Callable[[object], object]] = {
    str: _text, bool: _switch, int: _whole, float: _number, tuple: _texts}
