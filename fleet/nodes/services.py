"""What a service is to be, and what became of it: the plain records of the supervisor."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.errors import ServiceError
from fleet.model import ServiceKind
from fleet.nodes.records import ID

LOG_LIMIT = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LONGEST = 60_000        # bytes of a pid file or of the facts beside it; state.sh reads 65536


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A process to start. `argv[0]` is an absolute path on the node, or a bare name that its PATH finds."""

    id: str                                   # [a-z0-9-], at most 64: the folder's name
    kind: ServiceKind
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)   # beside what the node's shell has
    port: int = 0                             # 0 = listens nowhere
    bind: str = ""                            # address that it listens on
    build: str = ""                           # "b10068 (571d0d5)"
    fleet: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    log_limit: int = LOG_LIMIT                # bytes, then the older half goes
    cwd: str = ""                             # "" = the service's own folder

    def written(self) -> dict[str, object]:
        """All of it but the facts, as it stands in pid.json beside pid and start time."""
        return {"argv": list(self.argv), "port": self.port, "bind": self.bind, "build": self.build,
                "kind": self.kind.value, "fleet": self.fleet, "env": dict(self.env),
                "log_limit": self.log_limit, "cwd": self.cwd}

    def check(self) -> None:
        """Raises ServiceError when this can be no service: a hostile id, a NUL, a port out of range ..."""
        check_id(self.id)
        wrong = ""
        if not self.argv or not self.argv[0] or self.argv[0].startswith("-"):
            wrong = "there is no program to start"
        elif "/" in self.argv[0] and not self.argv[0].startswith("/"):
            wrong = f"the program {self.argv[0]!r} is no absolute path"
        elif self.cwd and not self.cwd.startswith("/"):
            wrong = f"the folder {self.cwd!r} is no absolute path"
        elif any("\0" in text for text in (*self.argv, *self.env.values(), self.cwd)):
            wrong = "a NUL byte cannot be passed to a program"
        elif any(not _can_be_sent(text) for text in (*self.argv, *self.env.values(), self.cwd)):
            wrong = "half a character cannot be passed to a program"
        elif not 0 <= self.port <= 65535:
            wrong = f"{self.port} is no port"
        elif self.log_limit < 1024:
            wrong = f"a log of {self.log_limit} bytes holds nothing"
        for name in self.env:
            if not _NAME.fullmatch(name) or name.startswith("qd_"):
                wrong = f"{name!r} is no name for an environment variable"
        if wrong:
            raise ServiceError(f"{self.id} cannot be started: {wrong}.", "Correct it in fleet.yaml.", code="bad-spec")

    @classmethod
    def read(cls, id: str, written: Mapping[str, object], facts: Mapping[str, object]) -> ServiceSpec:
        """The spec that a pid file was written from. Raises ServiceError when it does not say."""
        argv, env, port = written.get("argv"), written.get("env", {}), written.get("port", 0)
        limit, cwd = written.get("log_limit", LOG_LIMIT), written.get("cwd", "")
        texts = {key: written.get(key, "") for key in ("bind", "build", "fleet")}
        try:
            kind = ServiceKind(str(written.get("kind")))
        except ValueError:
            argv = None
        if not (isinstance(argv, list) and all(isinstance(a, str) for a in argv)
                and isinstance(env, dict) and all(isinstance(v, str) for v in env.values())
                and isinstance(port, int) and isinstance(limit, int) and isinstance(cwd, str)
                and all(isinstance(text, str) for text in texts.values())):
            raise ServiceError(f"The pid file of {id} does not say how it was started.",
                               "Bring the model up again instead.", code="unreadable")
        spec = cls(id=id, kind=kind, argv=tuple(argv), env=dict(env), port=port,
                   bind=str(texts["bind"]), build=str(texts["build"]), fleet=str(texts["fleet"]), facts=dict(facts),
                   log_limit=limit, cwd=cwd)
        spec.check()
        return spec


def _can_be_sent(text: str) -> bool:
    """As `shell.request` encodes it: a byte that is no UTF-8 may come from our own command line."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a process ended. `phases` are the words that `on_phase` got."""

    phases: tuple[str, ...] = ()
    status: int | None = None          # shell form; None = not known (nobody waited for it)
    seconds: float = 0.0
    port_free: bool | None = None      # None: it had no port
    rss: int | None = None             # bytes of main memory that it had when it was asked to end
    was_running: bool = False
    port_owner: str = ""               # who listens there now, where `port_free` is False


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a log. Ask again from `offset` for what comes after it."""

    text: str
    offset: int                        # in bytes: where this piece ends
    size: int                          # of the whole log, when it was read
    start: int = 0                     # where this piece begins
    rotated: bool = False              # the log was cut since: this is its new beginning


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was granted. `taken_over` names who let it run out, "" for nobody."""

    name: str
    owner: str
    ttl: int
    taken_over: str = ""


def check_id(id: str) -> None:
    """Raises ServiceError unless `id` may name a folder on a node."""
    if not ID.fullmatch(id):
        raise ServiceError(f"{id[:80]!r} is no id of a service.",
                           "An id is up to 64 of a-z, 0-9 and '-', and does not begin with '-'.", code="bad-id")


def one_line(value: Mapping[str, object], what: str) -> str:
    """JSON on one line. Raises ServiceError when it is longer than a node reads back, or no JSON."""
    try:
        text = json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ServiceError(f"{what} cannot be written down: {error}.", code="bad-facts") from error
    if len(text) > _LONGEST:
        raise ServiceError(f"{what} would take {len(text)} bytes; at most {_LONGEST} can be kept.", code="bad-facts")
    return text
