"""A limit of memory around one process, by whatever its node has for it; and what that node says of the files.

The limit counts the page cache that the process fills, which is the cache of experts. A scope of systemd is asked for
with systemd-run, which becomes the program itself, so its pid stays the one that was started; a cgroup is made and
joined by a line of sh that does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files

from fleet.errors import OperationFailed, PlanRefused, ShellUnusable
from fleet.nodes.folder import Answer, number
from fleet.nodes.transport import Transport
from fleet.text import visible

GROUP = "quarterdeck-{service}"
NO_WAY = "no-limit"                # code of a refusal: this node can bound nothing
READAHEAD = 64                     # KB: more of it and page faults read mostly what is not needed
_LOOK_TIMEOUT = 15.0               # seconds
_DROP_TIMEOUT = 120.0              # a file of 400 GB is looked through twice
_LARGEST = 1 << 20                 # KB of readahead that are believed
_LOWER = 'case $1 in /sys/*/read_ahead_kb) printf "%s\\n" "$2" >"$1" && echo lowered ;; esac'


class Way(StrEnum):
    """How a node bounds the memory of one process."""

    USER_SCOPE = "user-scope"          # systemd-run --user --scope
    SYSTEM_SCOPE = "system-scope"      # systemd-run --scope
    SECOND = "cgroup-v2"               # a group of its own, made by us
    FIRST = "cgroup-v1"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One of a model's files, as its node tells."""

    owner: int | None                  # user id; None = not known
    writable: bool
    readahead: int | None              # KB that the kernel reads ahead on its disk; None = not known
    setting: str = ""                  # where that is set
    settable: bool = False             # by us


@dataclass(frozen=True, slots=True)
class Ground:
    """What a node has to bound memory with."""

    uid: int
    linux: bool
    systemd: bool = False
    user_manager: bool = False
    delegated: bool = False            # it may limit memory
    linger: bool = False               # it stays when the user signs out
    second: str = ""                   # folder below which groups can be made
    first: str = ""
    python: bool = False
    files: tuple[FileFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that is to be, or is, around a head; kept beside its pid file, so that a stop puts things back."""

    way: Way
    limit: int                                         # bytes
    group: str = ""                                    # the cgroup's folder, where it is ours to remove
    readahead: tuple[tuple[str, int, int], ...] = ()   # setting, KB now, KB before
    files: tuple[str, ...] = ()                        # of the model, which no other group is to hold in memory

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {"way": self.way.value, "limit": self.limit, "group": self.group,
                "readahead": [list(one) for one in self.readahead], "files": list(self.files)}


def bound_of(facts: Mapping[str, object]) -> Bound | None:
    """The limit of a head from the facts beside its pid file, which are not believed; None = it has none."""
    found = facts.get("bound")
    if not isinstance(found, Mapping) or found.get("way") not in tuple(Way):
        return None
    limit, group, readahead = found.get("limit"), found.get("group"), found.get("readahead")
    kept = tuple((one[0], one[1], one[2]) for one in (readahead if isinstance(readahead, list) else [])[:64]
                 if isinstance(one, list) and len(one) == 3 and isinstance(one[0], str)
                 and all(type(kb) is int and 0 <= kb <= _LARGEST for kb in one[1:]))
    paths = found.get("files")
    return Bound(Way(found["way"]), limit if type(limit) is int and limit > 0 else 0,
                 group[:4096] if isinstance(group, str) else "", kept,
                 tuple(path for path in (paths if isinstance(paths, list) else [])[:1024]
                       if isinstance(path, str) and path.startswith("/")))


async def look(transport: Transport, paths: Sequence[str]) -> Ground:
    """Ask a node what it has, and what it says of these files.

    Raises:
        NodeError: it does not answer, or not with what was asked.
    """
    done = await transport.run(_script("look"), paths, timeout=_LOOK_TIMEOUT)
    words = Answer(done.text).words
    uid = number(words.get("uid", ""))
    if uid is None:
        raise ShellUnusable(f"{transport.name} does not say who we are there (status {done.status}).",
                            "Run `quarterdeck doctor` and look at this node.")
    found = {}
    for line in done.text.splitlines():
        parts = line.split("|")
        if len(parts) == 6 and parts[0] == "file" and (place := number(parts[1])) is not None:
            ahead, setting = number(parts[4]), parts[5]
            found[place] = FileFacts(number(parts[2]), parts[3] == "w", ahead if ahead is not None and ahead <= _LARGEST
                                     else None, setting.removeprefix("-"), setting.startswith("/"))
    return Ground(uid, words.get("system") == "Linux", "systemd" in words, "manager" in words, "delegated" in words,
                  "linger" in words, words.get("second", ""), words.get("first", ""), "python" in words,
                  tuple(found.get(place, FileFacts(None, False, None)) for place in range(len(paths))))


def choose_way(ground: Ground, node: str) -> Way:
    """How memory is bounded on a node.

    Raises:
        PlanRefused: it cannot be.
    """
    if not ground.linux:
        raise PlanRefused(f"{node} is no Linux machine: the memory of a llama-server cannot be bounded there.",
                          "Take `experts:` from this model, or name another head.", code=NO_WAY)
    if ground.uid == 0:
        if ground.first:
            return Way.FIRST
        if ground.systemd:
            return Way.SYSTEM_SCOPE
        if ground.second:
            return Way.SECOND
    elif ground.systemd and ground.user_manager and ground.delegated:
        if ground.linger:
            return Way.USER_SCOPE
        raise PlanRefused(f"What your systemd on {node} bounds ends when you sign out there, and the head with it.",
                          f"Run `loginctl enable-linger` on {node} once.", code="no-linger")
    elif ground.second:
        return Way.SECOND
    elif ground.first:
        return Way.FIRST
    raise PlanRefused(f"Nothing on {node} lets us bound the memory of a process: no systemd that may limit it, and no "
                      "cgroup that we may make.", "Sign in there as root, or as a user whose systemd may limit memory "
                      "(version 2 of cgroups).", code=NO_WAY)


def bound_for(ground: Ground, way: Way, limit: int, service: str) -> Bound:
    """The limit for one service."""
    group = ""
    if way in (Way.FIRST, Way.SECOND):
        group = f"{ground.first if way is Way.FIRST else ground.second}/{GROUP.format(service=service)}"
    return Bound(way, limit, group)


def bounded_command(bound: Bound, argv: Sequence[str], service: str) -> tuple[str, ...]:
    """The command line that starts a program inside its limit, and becomes it."""
    if bound.way in (Way.FIRST, Way.SECOND):
        kind = "first" if bound.way is Way.FIRST else "second"
        return ("/bin/sh", "-c", _script("join"), "quarterdeck-bound", kind, bound.group, str(bound.limit), *argv)
    whose = ("--user",) if bound.way is Way.USER_SCOPE else ()
    return ("systemd-run", *whose, "--scope", "--quiet", "--collect", f"--unit={GROUP.format(service=service)}",
            f"--property=MemoryMax={bound.limit}", "--property=MemorySwapMax=0", "--", *argv)


def bounded_environment(bound: Bound, ground: Ground) -> dict[str, str]:
    """What that command needs in its environment: where the user's own systemd is, which sshd does not always say."""
    return {"XDG_RUNTIME_DIR": f"/run/user/{ground.uid}"} if bound.way is Way.USER_SCOPE else {}


async def make_ready(transport: Transport, bound: Bound) -> None:
    """Before a bounded head starts: its model out of the page cache, the readahead as it wants it while it runs.

    Raises:
        OperationFailed: a setting was not taken.
    """
    for setting, now, _ in bound.readahead:
        done = await transport.run(_LOWER, (setting, str(now)), timeout=_LOOK_TIMEOUT)
        if "lowered" not in Answer(done.text).words:
            raise OperationFailed(f"The readahead of a disk of {transport.name} could not be set: "
                                  f"{visible(done.error_text)[:200].strip() or setting}.",
                                  f"As root there: echo {now} > {setting}", code="readahead")
    if bound.files:
        await drop(transport, bound.files)


async def release(transport: Transport, bound: Bound) -> tuple[str, ...]:
    """Remove the group of a head that has ended, and put the readahead back; what was done, in words.

    Fine where it is done already. A group that somebody has put another process into stays.
    """
    if not bound.group and not bound.readahead:
        return ()
    values = (text for setting, now, was in bound.readahead for text in (setting, str(now), str(was)))
    done = await transport.run(_script("release"), (bound.group, *values), timeout=_LOOK_TIMEOUT)
    words = Answer(done.text).words
    told = []
    if "removed" in words:
        told.append("memory limit removed")
    if "kept" in words:
        told.append(f"{bound.group} stays: another process is in it")
    if "readahead" in words:
        told.append(f"readahead {visible(words['readahead'])[:20]} KB again")
    return tuple(told)


@dataclass(frozen=True, slots=True)
class Stayed:
    """What of a file stayed in the page cache."""

    bytes: int
    size: int
    pids: tuple[int, ...] = ()         # of the processes that have it mapped, where that is why

    @property
    def much(self) -> bool:
        """More than what a look at the file itself brings in."""
        return self.bytes > max(self.size // 50, 16 << 20)


async def drop(transport: Transport, paths: Sequence[str]) -> tuple[Stayed, ...] | None:
    """Take files out of the page cache of a node; None where nothing there can do or see it."""
    done = await transport.run(_script("drop"), paths, timeout=_DROP_TIMEOUT)
    found = []
    for line in done.text.splitlines():
        parts = line.split("|")
        if len(parts) == 5 and parts[0] == "file" and (left := number(parts[2])) is not None:
            found.append(Stayed(left, number(parts[3]) or 0,
                                tuple(pid for text in parts[4].split() if (pid := number(text)))))
    return tuple(found) if len(found) == len(paths) else None


@cache
def _script(name: str) -> str:
    return files("fleet.experts").joinpath(f"{name}.sh").read_text(encoding="utf-8")
