"""Keys as they are written down: a file with one a line, or a variable of the environment.

    # name   key                  what it may do (all of it may be left out)
    laptop   3f9c…                models=small,qwen*  requests_a_minute=60  concurrent=2
    hass     81d2…

A line with one word is a key without a name, as in llama-server's `--api-key-file`. No message repeats a key.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fleet.errors import ConfigError
from fleet.proxy.access import SECRET_LIMIT, Key
from fleet.text import visible

FILE_LIMIT = 1024 * 1024     # bytes
SHORTEST = 8                 # characters of a key; a shorter one is a typing error, or guessed within a day

_LIMITS = ("requests_a_minute", "concurrent")


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file.

    Raises:
        ConfigError: it cannot be read, somebody else can read or write it, or a line of it is no key.
    """
    try:
        # Not blocking: opening a pipe that nobody writes to would wait for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(FILE_LIMIT + 1) if stat.S_ISREG(found.st_mode) else None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no usable path"
        raise ConfigError(f"The key file {path} cannot be read: {reason}.",
                          "Name a file that is there and that only you can read.", code="keys") from None
    if data is None or len(data) > FILE_LIMIT:
        raise ConfigError(f"{path} is no file of keys: it is no plain file, or larger than {FILE_LIMIT} bytes.",
                          "Name a file with one key a line.", code="keys")
    if why := _why_open(found):
        raise ConfigError(f"The key file {path} is not read, because {why}.",
                          f"Make it yours alone: chmod 600 {path}", code="keys")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"The key file {path} is not UTF-8 text.", "Write it as plain text.", code="keys") from None
    return parse_keys(text, str(path))


def read_secret(path: Path) -> str:
    """The one key of a file, for an upstream.

    Raises:
        ConfigError: as `read_keys`, or it does not hold exactly one key.
    """
    keys = read_keys(path)
    if len(keys) != 1:
        raise ConfigError(f"The key file {path} holds {len(keys)} keys, and one is wanted.",
                          "Put the one key of this server into it.", code="keys")
    return keys[0].secret


def parse_keys(text: str, where: str) -> tuple[Key, ...]:
    """The keys of a text. `where` is for the messages: they name the line, never what is on it.

    Raises:
        ConfigError: with every line that is wrong.
    """
    keys: list[Key] = []
    wrong: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key = _key(line.split(), number)
        if isinstance(key, str):
            wrong.append(f"line {number}: {key}")
        elif any(key.name == other.name for other in keys):
            wrong.append(f"line {number}: there is a key of the name {key.name!r} already")
        elif any(key.secret == other.secret for other in keys):
            wrong.append(f"line {number}: this key is there already, under another name")
        else:
            keys.append(key)
    if not wrong and not keys:
        wrong.append("there is no key in it")
    if wrong:
        raise ConfigError(f"The keys of {where} cannot be used: {'; '.join(wrong)}.",
                          "Write one key a line: NAME KEY, then what is allowed, for example models=small "
                          "requests_a_minute=60 concurrent=2.", code="keys")
    return tuple(keys)


def _key(words: list[str], number: int) -> Key | str:
    """The key of one line, or what is wrong with it."""
    if len(words) == 1:
        words = [f"key{number}", words[0]]
    name, secret, *rest = words
    if not name.isprintable() or len(name) > 64 or "=" in name:
        return "the name is longer than 64 characters, or holds = or a control character"
    if not secret.isascii() or not secret.isprintable():
        return "the key holds a character that no HTTP header can carry"
    if not SHORTEST <= len(secret) <= SECRET_LIMIT:
        return f"the key is not {SHORTEST} to {SECRET_LIMIT} characters long"
    models: tuple[str, ...] = ()
    limits: dict[str, int | None] = dict.fromkeys(_LIMITS)
    for word in rest:
        what, equals, value = word.partition("=")
        if equals and what == "models":
            models = tuple(model for model in value.split(",") if model)
            if not models:
                return "models= names no model"
        elif equals and what in _LIMITS:
            if not (value.isascii() and value.isdigit() and 0 < int(value[:10]) < 1_000_000):
                return f"{what}= wants a whole number from 1 to 999999"
            limits[what] = int(value)
        else:
            known = what if equals and len(what) <= 20 else "a word"
            return f"{visible(known)!r} is not one of models=, requests_a_minute=, concurrent="
    return Key(name, secret, models, limits["requests_a_minute"], limits["concurrent"])


def _why_open(found: os.stat_result) -> str:
    """Why a file is no place for a secret; "" when only its owner and root can read and write it."""
    if found.st_uid not in (0, os.geteuid()):
        return "it belongs to another user"
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"other users may read or write it (its mode is {stat.S_IMODE(found.st_mode):04o})"
    return ""
