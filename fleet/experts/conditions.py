"""What would break a limit of memory around a mixture of experts: refused, or cured. Pure.

All were measured to do so. What is kept in anonymous memory cannot be evicted, so the kernel ends the process instead
(out of memory): weights that were repacked, read without a map or locked, and 8 GiB of old prompts. What another group
has in the page cache is free: a hit that the next start will not have. What is read around a page fault takes the place
of experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.errors import PlanRefused
from fleet.experts.bound import READAHEAD, Ground
from fleet.runtimes.binaries import Flags

BREAKS = "breaks-limit"            # code of a refusal
_OFF = ("0", "false", "off", "no", "disabled")
_ARGUMENTS = {
    "--no-mmap": "reads the whole model into memory that cannot be evicted",
    "--mlock": "locks the whole model in memory",
    "--direct-io": "reads the whole model past the page cache into memory that cannot be evicted",
    "-dio": "reads the whole model past the page cache into memory that cannot be evicted",
    "--repack": "makes a second copy of the weights in memory that cannot be evicted",
    "--warmup": "reads every expert of every layer before the first request",
}
_VARIABLES = {"LLAMA_ARG_MLOCK": "--mlock", "LLAMA_ARG_NO_MMAP": "--no-mmap", "LLAMA_ARG_DIO": "--direct-io"}
_CACHE = ("-cram", "--cache-ram")


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the head is told beside its model."""

    argv: tuple[str, ...]
    prompts: int                   # bytes that it may keep of old prompts


def check_arguments(flags: Flags, program: str, extra: Sequence[str], env: Mapping[str, str]) -> Arguments:
    """The cures as arguments; with several ways to break the limit all are said at once.

    Args:
        extra: the user's own, which win over ours.

    Raises:
        PlanRefused: an argument or a variable that breaks it, or a llama-server that cannot do without repacking.
    """
    wrong, prompts = [], 0
    for place, argument in enumerate(extra):
        name, _, value = argument.partition("=")
        if why := _ARGUMENTS.get(name):
            wrong.append(f"{name} in extra_args {why}.")
        elif name in _CACHE:
            text = value or (extra[place + 1] if place + 1 < len(extra) else "")
            if text.isdigit():
                prompts = int(text) << 20
            else:
                wrong.append(f"{name} {text[:20]}".rstrip() + " keeps old prompts without a limit.")
    for variable, name in _VARIABLES.items():
        if variable in env and env[variable].strip().lower() not in _OFF:
            wrong.append(f"{variable} in env of the head is {name}, which {_ARGUMENTS[name]}.")
    if env.get("LLAMA_ARG_MMAP", "1").strip().lower() in _OFF:
        wrong.append(f"LLAMA_ARG_MMAP in env of the head is --no-mmap, which {_ARGUMENTS['--no-mmap']}.")
    if wrong:
        raise PlanRefused(f"The budget of `experts:` would not be kept. {' '.join(wrong)}",
                          "Take that away, or `experts:`.", code=BREAKS)
    repack = flags.first("-nr", "--no-repack")
    if repack is None:
        raise PlanRefused(f"{program} has no --no-repack: it may make a second copy of the weights in memory that "
                          "cannot be evicted, and the budget would not be kept.",
                          "Use a newer llama.cpp on that machine.", code=BREAKS)
    argv = ["--no-repack"]
    if (name := flags.first("--no-warmup")) is not None:
        argv.append(name)
    for names in (_CACHE, ("-ctxcp", "--ctx-checkpoints")):
        if (name := flags.first(*names)) is not None:
            argv += [name, "0"]
    return Arguments(tuple(argv), prompts)


def check_owner(ground: Ground, paths: Sequence[str], node: str) -> None:
    """Refuse files of somebody else.

    Raises:
        PlanRefused: to who neither owns a file nor may write it, the kernel does not tell what of it is in memory
            (mincore says all of it): whether the limit is kept and what is hit could not be known.
    """
    for path, facts in zip(paths, ground.files, strict=True):
        if facts.owner is None:
            raise PlanRefused(f"{node} does not say whose {path} is.", "See that it can be read there.", code=BREAKS)
        if ground.uid not in (0, facts.owner) and not facts.writable:
            raise PlanRefused(
                f"{path} on {node} belongs to another user (id {facts.owner}) and cannot be written: the kernel does "
                "not tell what of it is in memory, so neither the budget nor a hit could be seen.",
                "Sign in as its owner, give us a copy, or let us write it (chgrp and chmod g+w).", code=BREAKS)


@dataclass(frozen=True, slots=True)
class Readahead:
    """What is to be done about the readahead of a model's disks."""

    lower: tuple[tuple[str, int], ...] = ()      # settings to be set to READAHEAD, with what they are now (KB)
    remarks: tuple[str, ...] = ()


def check_readahead(ground: Ground, paths: Sequence[str], node: str, *, shim: bool) -> Readahead:
    """Lower the readahead of a model's disks where we may; else the shim makes it bearable.

    Measured at half a model: 14 MB a token at 128 KB, 72 at 1 MB, 731 (and 0.6 tokens a second) at 8 MB; with the shim,
    which asks for whole experts, page faults are rare.

    Raises:
        PlanRefused: it is too large, we may not lower it, and there is to be no shim.
    """
    lower: dict[str, int] = {}
    remarks: dict[str, None] = {}
    for path, facts in zip(paths, ground.files, strict=True):
        if facts.readahead is None:
            remarks[f"How far the kernel reads ahead on the disk of {path} is not known; more than {READAHEAD} KB make "
                    "streaming slow."] = None
        elif facts.readahead > READAHEAD and facts.settable:
            lower[facts.setting] = facts.readahead
        elif facts.readahead > READAHEAD:
            what = (f"The disk of {path} on {node} reads {facts.readahead} KB ahead, which takes the place of experts; "
                    f"it should be {READAHEAD} KB or less, and we may not set it")
            remedy = f"As root there: echo {READAHEAD} > {facts.setting}"
            if not shim:
                raise PlanRefused(f"{what}.", remedy, code=BREAKS)
            remarks[f"{what}; the shim asks for whole experts, so that little is lost. {remedy}"] = None
    return Readahead(tuple(lower.items()), tuple(remarks))
