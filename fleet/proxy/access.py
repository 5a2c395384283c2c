"""Who may use the proxy: named keys, what each may ask for, and how much of it at once.

A key comes from a file that nobody else can read, or from the environment; it stands in no command line and no log.
Without any key everybody who reaches the port may use it, which is why `check_bind` keeps an open proxy on loopback.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fleet.discovery.addresses import parse_ip
from fleet.errors import ConfigError
from fleet.proxy.errors import forbidden, too_many, unauthorized
from fleet.proxy.exchange import Caller, Headers, Problem, is_among

SECRET_LIMIT = 1024          # bytes of a key that a client may send
MINUTE = 60.0                # seconds


@dataclass(frozen=True, slots=True)
class Key:
    """One key. Its secret is not shown by `repr`."""

    name: str
    secret: str = field(repr=False)
    models: tuple[str, ...] = ()               # names, or a beginning with * behind it; () = all
    requests_a_minute: int | None = None
    concurrent: int | None = None

    def may_use(self, model: str) -> bool:
        """The key is good for this model, as the client names it."""
        return is_among(model, self.models)


class Lease:
    """One admitted request. Release it when the answer has ended, however it ended; twice does no harm."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """The key has room for one more."""
        release, self._release = self._release, None
        if release is not None:
            release()


class Access:
    """The keys of a proxy and what runs under each.

    Args:
        keys: () = open: everybody is the nameless caller.
        clock: seconds, monotonic.
    """

    def __init__(self, keys: Iterable[Key], clock: Callable[[], float]) -> None:
        self._keys = {key.name: key for key in keys}
        self._secrets = [(key.secret.encode(), key) for key in self._keys.values()]
        self._clock = clock
        self._running: dict[str, int] = {}
        self._begun: dict[str, deque[float]] = {}

    @property
    def open(self) -> bool:
        """There is no key: nobody is asked for one."""
        return not self._keys

    def caller(self, headers: Headers) -> Caller | Problem:
        """Who sends these headers: `Authorization: Bearer KEY`, or Anthropic's `x-api-key: KEY`.

        Every key is compared in constant time, and all of them are, so that the time tells neither how much of a key
        was right nor which one it was.
        """
        if self.open:
            return Caller()
        sent = _sent(headers)
        if isinstance(sent, Problem):
            return sent
        found: Key | None = None
        for secret, key in self._secrets:
            if hmac.compare_digest(sent, secret):
                found = key
        if found is None:
            return unauthorized("This key is not known to the proxy. Ask whoever runs it for one.")
        return Caller(found.name, found.models)

    def check_model(self, caller: Caller, model: str) -> Problem | None:
        """403 when the caller's key is not good for `model`."""
        key = self._keys.get(caller.name)
        if key is None or key.may_use(model):
            return None
        return forbidden(f"The key {caller.name!r} may not use the model {model[:200]!r}. "
                         "GET /v1/models lists the ones that it may.", "model_not_allowed", "model")

    def enter(self, caller: Caller) -> Lease | Problem:
        """Count a request in, or 429 with the seconds after which it is worth another try."""
        key = self._keys.get(caller.name)
        if key is None:
            return Lease(lambda: None)
        now = self._clock()
        running = self._running.get(key.name, 0)
        if key.concurrent is not None and running >= key.concurrent:
            return too_many(f"{running} requests of the key {key.name!r} are running, which is as many as it may have "
                            "at once. Wait for one to end.", 1.0)
        if key.requests_a_minute is not None:
            begun = self._begun.setdefault(key.name, deque())
            while begun and begun[0] <= now - MINUTE:
                begun.popleft()
            if len(begun) >= key.requests_a_minute:
                return too_many(f"The key {key.name!r} has made the {key.requests_a_minute} requests that it may make "
                                "in a minute.", begun[0] + MINUTE - now)
            begun.append(now)
        self._running[key.name] = running + 1
        return Lease(lambda: self._leave(key.name))

    def running(self, name: str) -> int:
        """Requests that run under a key now."""
        return self._running.get(name, 0)

    def _leave(self, name: str) -> None:
        left = self._running.get(name, 0) - 1
        if left > 0:
            self._running[name] = left
        else:
            self._running.pop(name, None)


def _sent(headers: Headers) -> bytes | Problem:
    """The key that a client sends. Two that differ are refused: somebody in between has added one."""
    sent: set[bytes] = set()
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() != b"bearer":
                return unauthorized("The Authorization header is not of the form `Bearer KEY`.")
            sent.add(rest.strip())
        elif name == b"x-api-key":
            sent.add(value.strip())
    if not sent:
        return unauthorized("This proxy wants a key: send it as `Authorization: Bearer KEY`.", "missing_api_key")
    if len(sent) > 1:
        return unauthorized("The request carries two different keys. Send one.")
    key = sent.pop()
    if len(key) > SECRET_LIMIT:
        return unauthorized("This key is not known to the proxy. Ask whoever runs it for one.")
    return key


def is_loopback(host: str) -> bool:
    """Only this machine can reach a port that is bound to `host`."""
    ip = parse_ip(host.strip("[]"))
    return host.lower() == "localhost" or (ip is not None and ip.is_loopback)


def from_here(host: str) -> str:
    """The address by which a machine reaches what is bound to `host` on itself."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def check_bind(listen: str, has_keys: bool, explicit: bool = False) -> None:
    """See that an open proxy stays on this machine.

    Args:
        listen: the host that is to be bound.
        has_keys: clients need a key.
        explicit: the user said that everybody may use it.

    Raises:
        ConfigError: others could use the proxy without a key, and nobody said that they may.
    """
    if has_keys or explicit or is_loopback(listen):
        return
    raise ConfigError(
        f"The proxy would listen on {listen or 'every address'} without a key, so that everybody who reaches this "
        "machine could use it.",
        "Give it a key (`proxy.keys` in fleet.yaml, or QUARTERDECK_KEY_FILE), let it listen on 127.0.0.1, or say that "
        "this is meant (`proxy.allow_open: true`, or QUARTERDECK_ALLOW_OPEN=true).", code="open-proxy")
