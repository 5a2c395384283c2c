"""The control interface over HTTP: what a cockpit beside the proxy asks and tells it, below /quarterdeck/.

It answers to this machine alone, and to who has the token: 32 random bytes in a file that only its owner can read.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path

from fleet.errors import NO_SUCH, ConfigError, FleetError
from fleet.proxy.access import is_loopback
from fleet.proxy.errors import forbidden, not_found, openai_error
from fleet.proxy.exchange import BackendKind, Headers, Problem, UpstreamSettings
from fleet.proxy.proxy import Proxy
from fleet.speculation.settings import read_speculation
from fleet.text import visible

BASE = "/quarterdeck/"
BODY_LIMIT = 1024 * 1024
LONGEST_DRAIN = 3600.0
MOST_MODELS = 10_000
EVENT_KIND = re.compile(r"[a-z][a-z_-]{0,40}")
_NUMBERS = ("weight", "connect_timeout", "first_byte_timeout", "stall_timeout")
_FIELDS = {field.name for field in fields(UpstreamSettings)}


class Control:
    """Answers requests below BASE."""

    def __init__(self, proxy: Proxy, token: str) -> None:
        self._proxy = proxy
        self._token = token.encode()
        self.on_stop: Callable[[], None] = _nothing        # begins a graceful stop

    def check(self, client: str, headers: Headers, server: str = "") -> Problem | None:
        """Who may come here: from the machine's loopback, or from the address `server` that the request came to.

        A connection from an address to itself never left the machine; it is the way in where the proxy is bound to
        one address of a network.
        """
        if not self._token or not (is_loopback(client) or (client and client == server)):
            return not_found("There is nothing here.")
        if any(name == b"origin" for name, _ in headers):
            return forbidden("The control interface is not for web pages.", "origin_not_allowed")
        sent = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, token = sent.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            return Problem(401, "invalid_control_token", "The control interface wants its token.",
                           "authentication_error")
        return None

    async def answer(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and JSON."""
        try:
            status, said = await self._act(method, path.removeprefix(BASE), query, body)
        except FleetError as error:
            status = 404 if error.code == NO_SUCH else 400
            said = {"error": {"what": error.what, "remedy": error.remedy, "code": error.code}}
        return status, json.dumps(said, separators=(",", ":")).encode()

    async def _act(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> tuple[int, object]:
        proxy = self._proxy
        match method, path.split("/"):
            case "GET", ["state"]:
                return 200, proxy.state()
            case "GET", ["requests"]:
                last = query.get("last", "100")
                return 200, proxy.requests(min(int(last), 100_000) if last.isdigit() and len(last) < 9 else 100)
            case "GET", ["requests", id, "body"]:
                kept = proxy.body(id)
                if kept is None:
                    return 404, {"error": {"what": "No body is kept of that request."}}
                return 200, {"id": id, "body": kept.decode("utf-8", "replace")}
            case "POST", ["requests", id, "cancel"]:
                return 200, {"cancelled": proxy.cancel(id)}
            case "POST", ["hold"]:
                name, asked = _named(body)
                proxy.hold(name, _progress(asked), _seconds(asked))
                return 200, {"held": name}
            case "POST", ["release"]:
                name, _ = _named(body)
                proxy.release(name)
                return 200, {"released": name}
            case "POST", ["drain"]:
                name, asked = _named(body)
                limit = asked.get("limit", 30.0)
                if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit <= LONGEST_DRAIN:
                    raise ConfigError(f"The limit of a drain is a number of seconds up to {LONGEST_DRAIN:g}.")
                return 200, {"drained": name, "left": await proxy.drain(
                    name, float(limit), _progress(asked), _seconds(asked))}
            case "POST", ["fail"]:
                name, asked = _named(body)
                still, reason = asked.get("still", 0.0), asked.get("reason", "")
                if isinstance(still, bool) or not isinstance(still, int | float) or not isinstance(reason, str):
                    raise ConfigError("To fail an upstream takes `still`, seconds, and `reason`, a sentence.")
                return 200, {"failed": name, "ended": proxy.fail(name, visible(reason, limit=400), float(still))}
            case "PUT", ["catalogue"]:
                proxy.set_catalogue(read_catalogue(_json(body)))
                return 200, proxy.state()
            case "PUT", ["fleet"]:
                said = _object(_json(body))
                lost = {str(name): visible(str(why), limit=400) for name, why in _object(said.get("lost")).items()}
                proxy.set_fleet(read_upstreams(said.get("upstreams", [])), lost,
                                read_catalogue(said.get("catalogue", {})), read_aliases(said.get("aliases", {})),
                                waits=said.get("waits") is True)
                return 200, proxy.state()
            case "POST", ["events"]:
                said = _object(_json(body))
                kind = said.get("kind")
                if not isinstance(kind, str) or not EVENT_KIND.fullmatch(kind):
                    raise ConfigError("An event is {kind: a word, facts: {...}}.")
                proxy.records.events.tell(kind, _object(said.get("facts")))
                return 200, {"told": kind}
            case "PUT", ["upstreams"]:
                proxy.set_upstreams(read_upstreams(_json(body)))
                return 200, proxy.state()
            case "POST", ["stop"]:
                self.on_stop()
                return 200, {"stopping": True}
            case _:
                return 404, openai_error(not_found("The control interface has nothing of that name."))


def read_catalogue(said: object) -> dict[str, bool]:
    """Models from JSON: {name: whether a request brings it up}.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(said, dict) or len(said) > MOST_MODELS or not all(
            isinstance(name, str) and name and isinstance(on_request, bool) for name, on_request in said.items()):
        raise ConfigError(f"The catalogue is an object of up to {MOST_MODELS} models, each true or false.")
    return said


def read_aliases(said: object) -> dict[str, str]:
    """Further names of models from JSON: {name: model}.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(said, dict) or len(said) > MOST_MODELS or not all(
            isinstance(text, str) and text for pair in said.items() for text in pair):
        raise ConfigError(f"Aliases are an object of up to {MOST_MODELS} names, each with its model.")
    return said


def read_upstreams(said: object) -> tuple[UpstreamSettings, ...]:
    """Upstreams from JSON: a list of objects with the fields of UpstreamSettings.

    Raises:
        ConfigError: which one is wrong, and how.
    """
    if not isinstance(said, list):
        raise ConfigError("Upstreams are a list of objects.")
    return tuple(_upstream(entry) for entry in said)


def _upstream(entry: object) -> UpstreamSettings:
    if not isinstance(entry, dict):
        raise ConfigError("An upstream is an object with at least name and url.")
    name = str(entry.get("name", ""))[:100]
    unknown = set(entry) - _FIELDS
    if unknown:
        raise ConfigError(f"The upstream {name!r} has {sorted(map(str, unknown))[0][:100]!r}, which means nothing.",
                          f"There are: {', '.join(sorted(_FIELDS))}.")
    given = dict(entry)
    for key in ("name", "url", "key", "group"):
        value = given.get(key, "")
        if not isinstance(value, str) or not value.isprintable() or not value.isascii() or len(value) > 2000:
            raise ConfigError(f"{key!r} of the upstream {name!r} is not plain text.")
    if not given.get("name") or not given.get("url"):
        raise ConfigError(f"The upstream {name!r} needs a name and a url.")
    try:
        given["backend"] = BackendKind(given.get("backend", BackendKind.LLAMA_SERVER))
    except ValueError as error:
        raise ConfigError(f"The upstream {name!r} has a backend that is not known.",
                          f"There are: {', '.join(BackendKind)}.") from error
    models = given.get("models", ())
    if not isinstance(models, list | tuple) or not all(isinstance(model, str) and model for model in models):
        raise ConfigError(f"'models' of the upstream {name!r} is not a list of names.")
    given["models"] = tuple(models)
    slots = given.get("slots")
    if slots is not None and (isinstance(slots, bool) or not isinstance(slots, int) or slots < 1):
        raise ConfigError(f"'slots' of the upstream {name!r} is not a number of 1 or more.")
    for key in _NUMBERS:
        value = given.get(key, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise ConfigError(f"{key!r} of the upstream {name!r} is not a number above 0.")
    if not isinstance(given.get("let_finish", False), bool):
        raise ConfigError(f"'let_finish' of the upstream {name!r} is neither true nor false.")
    given["speculation"] = read_speculation(given.get("speculation"), f"the upstream {name!r}")
    return UpstreamSettings(**given)


def write_token(path: Path, url: str) -> str:
    """A new token, written with the proxy's URL and pid to a file of mode 0600. Raises FleetError."""
    token = secrets.token_urlsafe(32)
    content = json.dumps({"url": url, "token": token, "pid": os.getpid()}).encode()
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.unlink(missing_ok=True)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        new.replace(path)
    except OSError as error:
        raise FleetError(f"The control token could not be written to {path}: {error.strerror}.",
                         "Make room there, or name another file.", code="control-file") from error
    return token


def _nothing() -> None:
    """Where nobody can stop the proxy but its own process."""


def _named(body: bytes) -> tuple[str, dict[str, object]]:
    asked = _json(body)
    name = asked.get("name") if isinstance(asked, dict) else None
    if not isinstance(asked, dict) or not isinstance(name, str) or not name:
        raise ConfigError("Name an upstream or a model: {\"name\": ...}.")
    return name, asked


def _progress(asked: dict[str, object]) -> dict[str, object]:
    progress = asked.get("progress")
    return progress if isinstance(progress, dict) else {}


def _object(said: object) -> dict[str, object]:
    """An object, {} where there is none. Raises ConfigError."""
    if said is None:
        return {}
    if not isinstance(said, dict):
        raise ConfigError("An object was expected.")
    return said


def _seconds(asked: dict[str, object]) -> float | None:
    """How long a hold lasts unless it is said again; None = until it is released."""
    seconds = asked.get("seconds")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)
                                or not 0 < seconds <= LONGEST_DRAIN):
        raise ConfigError(f"A hold lasts a number of seconds up to {LONGEST_DRAIN:g}.")
    return seconds


def _json(body: bytes) -> object:
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise ConfigError("The request is no JSON.") from error
