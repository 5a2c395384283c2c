"""Processes of inference engines on a node, ours or not, from what the probe printed of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fleet.model import Process
from fleet.nodes.hardware.figures import number, whole

_NAMES = re.compile(r"(llama-server|ggml-rpc-server|ggml-rpc-serve|rpc-server|ollama|vllm|tinytitan)", re.IGNORECASE)
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "env", "stdbuf", "nohup", "setsid"})
_PYTHON = re.compile(r"python[0-9.]*$")
_QUESTIONS = frozenset({"--version", "--list-devices", "--help", "-h"})   # asked by a probe, gone in a moment
_START = re.compile(r"[A-Za-z0-9:._-]{1,128}")
_STAT = re.compile(r"^([0-9]{1,10}) \((.*)\) (\S.*)$", re.DOTALL)
_OWNER = re.compile(r"^d\S+\s+[0-9]+\s+(\S{1,64})\s.*\s/proc/([0-9]{1,10})$")
_TICKS = 100            # of a second; USER_HZ is the same on all that llama.cpp runs on
_MOST_ARGUMENTS = 512
_MOST = 64


def read_processes(blocks: Mapping[str, str], footer: str = "", before: Sequence[Process] = (), *,
                   linux: bool = True) -> tuple[Process, ...]:
    """Processes from their blocks: pid -> start time, stat (or a ps line), argv separated by NUL.

    `footer` has the page size and an `ls -ld` line for each pid that was not in `before`. Left out:
    what only has an engine's name somewhere in its arguments, probes' own questions, and a wrapper
    script whose engine is listed.
    """
    first, _, listing = footer.partition("\n")
    page = whole(first) or 4096
    owners = {match[2]: match[1] for line in listing.split("\n")[:1024] if (match := _OWNER.match(line.rstrip()))}
    owned = {(process.pid, process.start_time): process.user for process in before}
    found = []
    for pid, block in list(blocks.items())[:_MOST]:
        number_of = whole(pid)
        if not number_of or number_of > 2**31:
            continue
        start, _, rest = block.partition("\n")
        if not _START.fullmatch(start):
            continue
        owner = owners.get(pid) or owned.get((number_of, start), "")
        process = _linux(number_of, start, rest, page, owner) if linux else _ps(number_of, start, rest)
        if process is not None and is_engine(process.argv) and not _QUESTIONS & set(process.argv[1:]):
            found.append(process)
    parents = {process.parent for process in found}
    return tuple(p for p in found if not (p.pid in parents and _program(p.argv[:1]) in _SHELLS))


def _linux(pid: int, start: str, text: str, page: int, owner: str) -> Process | None:
    stat, _, cmdline = text.partition("\n")
    match = _STAT.match(stat.rstrip(" "))
    if match is None or whole(match[1]) != pid:
        return None
    fields = match[3].split()
    argv = tuple(cmdline.split("\0")[:_MOST_ARGUMENTS])
    while argv and argv[-1] in ("", "\n"):
        argv = argv[:-1]
    ticks = [whole(fields[place]) if len(fields) > place else None for place in (11, 12)]
    pages = whole(fields[21]) if len(fields) > 21 else None
    return Process(
        pid, start, fields[0][:1], argv or (match[2][:64],), rss=min((pages or 0) * page, 1 << 60), user=owner,
        cpu_seconds=None if None in ticks else sum(tick or 0 for tick in ticks) / _TICKS,
        parent=(whole(fields[1]) or 0) if len(fields) > 1 else 0)


def _ps(pid: int, start: str, text: str) -> Process | None:
    """A line of `ps -o pid=,ppid=,state=,rss=,time=,user=,command=`; it cannot tell where an argument ends."""
    words = text.strip().split(None, 6)
    if len(words) < 7 or whole(words[0]) != pid:
        return None
    return Process(pid, start, words[2][:1], tuple(words[6].split()[:_MOST_ARGUMENTS]),
                   rss=min((whole(words[3]) or 0) * 1024, 1 << 60), user=words[5][:64], cpu_seconds=_clock(words[4]),
                   parent=whole(words[1]) or 0)


def _clock(text: str) -> float | None:
    """Seconds of "1-02:03:04" or macOS's "123:45.67"."""
    days, _, rest = text.rpartition("-")
    seconds = 0.0
    for part in rest.split(":")[:3]:
        value = number(part)
        if value is None or value < 0:
            return None
        seconds = seconds * 60 + value
    return seconds + (whole(days) or 0) * 86400


def is_engine(argv: Sequence[str]) -> bool:
    """Whether a command line is an inference engine's, run directly, by a shell or by Python."""
    program = _program(argv)
    if _NAMES.match(program):
        return True
    if program in _SHELLS:
        return any(_NAMES.match(_program((word,))) for word in argv[1:4] if not word.startswith("-"))
    if _PYTHON.match(program):
        words = [word for word in argv[1:] if word == "-m" or not word.startswith("-")][:3]
        if "-m" in words:
            after = words[words.index("-m") + 1:]
            return bool(after and re.match(r"vllm\b|tinytitan\b", after[0], re.IGNORECASE))
        return bool(words and _NAMES.match(_program(words)))
    return False


def _program(argv: Sequence[str]) -> str:
    """The file name in argv[0]; servers that set their own title write "VLLM::EngineCore" or "ollama: runner"."""
    first = argv[0] if argv else ""
    return first.rpartition("/")[2] if first.startswith(("/", "./", "../", "~")) or " " not in first else first
