"""What the state folder of a node says of its services: pure reading of what `state.sh` prints.

`STATE_SH` is put before a script that needs the folder; its `qd_list_services` prints a section
that `read_listing` (or `parse_services`, where the records alone are wanted) understands. Both are
total: torn, foreign or hostile files give no exception, but nothing, and a `Problem` that says so.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from importlib.resources import files

from fleet.model import Problem, ServiceKind, ServiceRecord, Severity

STATE_SH: str = files("fleet.nodes").joinpath("state.sh").read_text(encoding="utf-8")

ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_START_TIME = re.compile(r"[A-Za-z0-9:._-]{1,128}")
_MOST_SERVICES = 64
_MOST_ARGUMENTS = 4096
_BIND = re.compile(r"[A-Za-z0-9.:%_*\[\]-]{0,256}")   # an address or a name: it becomes part of a URL that people copy
_HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")
_LATEST = 2**42                 # seconds since the epoch: what no clock has said yet
_DEEPEST = 32                   # of facts; json.loads itself goes deeper than the rest of us


@dataclass(frozen=True, slots=True)
class Listing:
    """A state folder as it was read."""

    folder: str = ""                        # absolute, on the node; "" = nowhere to write
    records: tuple[ServiceRecord, ...] = ()
    problems: tuple[Problem, ...] = ()
    leftovers: tuple[str, ...] = ()         # ids whose folder holds no pid file that can be read
    recycled: tuple[str, ...] = ()          # ids whose pid belongs to another process by now


def parse_services(text: str) -> tuple[ServiceRecord, ...]:
    """The services of a node, from the section that `qd_list_services` printed. Never raises."""
    return read_listing(text).records


def read_listing(text: str) -> Listing:
    """The whole section: folder, services, and what is wrong with either. Never raises.

    Text before and after the section is left alone; a section that breaks off is read as far as it goes.
    """
    folder = ""
    refused: list[str] = []
    blocks: list[tuple[str, list[str]]] = []
    odd = 0
    more = inside = False
    for line in text.split("\n"):
        if not inside:
            if line.startswith("qd-services 1 "):
                inside, folder = True, line.removeprefix("qd-services 1 ").strip("\r")
            continue
        if line == "qd-services-end":
            break
        if line.startswith("service "):
            blocks.append((line.removeprefix("service "), []))
        elif line.startswith("refused|"):
            refused.append(line.removeprefix("refused|")[:500])
        elif line == "odd":
            odd += 1
        elif line == "more":
            more = True
        elif blocks:
            blocks[-1][1].append(line)
    records: list[ServiceRecord] = []
    problems = list(_folder_problems(folder, refused, odd, more))
    leftovers: list[str] = []
    recycled: list[str] = []
    for name, lines in blocks[:_MOST_SERVICES]:
        if not ID.fullmatch(name):
            continue
        block = _Block.of(lines)
        record = _record(name, folder, block)
        if record is None:
            leftovers.append(name)
            if block.state != "empty":
                problems.append(Problem(
                    "pid-file-unreadable", f"The pid file {folder}/services/{name}/pid.json cannot be read.",
                    "What it spoke of can no longer be told; forget it, and look among the foreign processes.",
                    Severity.WARNING))
            continue
        records.append(record)
        if block.state == "recycled":
            recycled.append(name)
    return Listing(folder, tuple(records), tuple(problems), tuple(leftovers), tuple(recycled))


def _folder_problems(folder: str, refused: list[str], odd: int, more: bool) -> list[Problem]:
    problems = []
    if not folder:
        problems.append(Problem(
            "no-state-folder", "There is no folder on this node where services could be written down: "
            + ("; ".join(refused) or "none was found") + ".",
            "Set nodes.<name>.state_dir to a folder of yours that only you can write."))
    elif refused:
        problems.append(Problem(
            "state-folder-fallback", f"Services are written down in {folder}, because {'; '.join(refused)}.",
            "" if not folder.startswith("/tmp/") else "What lies in /tmp is gone after a restart of the node.",
            Severity.WARNING))
    if odd:
        problems.append(Problem(
            "state-folder-odd", f"{folder}/services holds things that no Quarterdeck put there ({odd}).",
            "They are left alone.", Severity.WARNING))
    if more:
        problems.append(Problem("state-folder-full", f"{folder}/services holds more than {_MOST_SERVICES} services.",
                                "Only the first are shown; forget those that have ended.", Severity.WARNING))
    return problems


@dataclass(frozen=True, slots=True)
class _Block:
    """The lines of one service, told apart but not yet believed."""

    state: str = ""
    pid_json: str = ""
    facts_json: str = ""
    exit_status: int | None = None
    stopping: bool = False
    log_size: int = 0

    @classmethod
    def of(cls, lines: list[str]) -> _Block:
        state = pid_json = facts_json = ""
        exit_status: int | None = None
        stopping, log_size = False, 0
        for line in lines:
            if line.startswith("pid|"):
                pid_json = line.removeprefix("pid|")
            elif line.startswith("facts|"):
                facts_json = line.removeprefix("facts|")
            elif line == "stopping":
                stopping = True
            else:
                word, _, rest = line.partition(" ")
                if word == "state":
                    state = rest
                elif word == "exit" and (number := _whole(rest.strip(), 255)) is not None:
                    exit_status = number
                elif word == "log" and (number := _whole(rest, 2**62)) is not None:
                    log_size = number
        return cls(state, pid_json, facts_json, exit_status, stopping, log_size)


def _record(name: str, folder: str, block: _Block) -> ServiceRecord | None:
    written = json_object(block.pid_json)
    pid, start_time, argv = written.get("pid"), written.get("start_time"), written.get("argv")
    port, started = written.get("port"), written.get("started_epoch")
    bind, build, fleet = written.get("bind", ""), written.get("build", ""), written.get("fleet", "")
    try:
        kind = ServiceKind(str(written.get("kind")))
    except ValueError:
        return None
    if not (isinstance(pid, int) and not isinstance(pid, bool) and 1 < pid < 2**31
            and isinstance(start_time, str) and _START_TIME.fullmatch(start_time)
            and isinstance(argv, list) and len(argv) <= _MOST_ARGUMENTS and all(isinstance(a, str) for a in argv)
            and isinstance(port, int) and not isinstance(port, bool) and 0 <= port <= 65535
            and isinstance(started, int | float) and abs(started) < _LATEST
            and isinstance(bind, str) and _BIND.fullmatch(bind) and isinstance(build, str) and isinstance(fleet, str)):
        return None
    alive = block.state == "alive"
    return ServiceRecord(
        id=name, kind=kind, pid=pid, start_time=start_time, argv=tuple(argv), port=port, bind=bind, alive=alive,
        started_epoch=float(started), folder=f"{folder}/services/{name}",
        exit_status=None if alive else block.exit_status, stopping=block.stopping, log_size=block.log_size,
        build=build[:200], fleet=fleet[:200], facts=json_object(block.facts_json))


def json_object(text: str) -> dict[str, object]:
    """A JSON object from text that somebody else wrote; {} for whatever else it is.

    What it holds can be counted with, written out and sent on: numbers are finite and fit 64 bits, text is whole
    Unicode without NUL.
    """
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and _is_sane(value) else {}


def _is_sane(value: object, left: int = _DEEPEST) -> bool:
    if isinstance(value, dict):
        return left > 0 and all(_is_sane(key) and _is_sane(item, left - 1) for key, item in value.items())
    if isinstance(value, list):
        return left > 0 and all(_is_sane(item, left - 1) for item in value)
    if isinstance(value, str):
        return "\0" not in value and not _HALF_A_CHARACTER.search(value)
    if isinstance(value, int):
        return abs(value) < 2**63
    return not isinstance(value, float) or math.isfinite(value)


def _whole(text: str, most: int) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) and int(text) <= most else None
