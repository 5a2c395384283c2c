"""A command line under construction: only options that the binary's own `--help` has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet.errors import PlanRefused
from fleet.model import Binary
from fleet.runtimes.binaries import Flags, build_label

_OPTION = re.compile(r"--?[A-Za-z]")
_DEVICE = re.compile(r"[A-Za-z0-9_.:\[\]-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Command:
    """What to start: the program's path and its arguments, and what is added to its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


class CommandLine:
    """Collects the arguments of one program.

    What the user asked for and the program does not know is refused, before anything starts. What
    only we would like (`wish`) is left out where it does not exist.
    """

    def __init__(self, binary: Binary, flags: Flags) -> None:
        self.binary = binary
        self.flags = flags
        self.arguments: list[str] = [binary.path]
        if not flags:
            raise PlanRefused(f"What {binary.path} can do is not known: its --help was not read.",
                              "Run it with --help on its node and see whether it starts there.", code="no-flags")

    @property
    def program(self) -> str:
        """The program for people: "llama-server b10068 (571d0d5)"."""
        return f"{self.binary.program} {build_label(self.binary)}"

    def need(self, names: tuple[str, ...], *values: str, asked: str) -> None:
        """Add an option under the first of its names that exists.

        Raises:
            PlanRefused: none of them exists; `asked` says what was wanted.
        """
        name = self.flags.first(*names)
        if name is None:
            raise PlanRefused(f"{self.program} at {self.binary.path} has no {names[0]}: it cannot {asked}.",
                              "Use a newer llama.cpp on that machine, or do without.", code="no-such-flag")
        self.arguments += [name, *values]

    def wish(self, names: tuple[str, ...], *values: str) -> bool:
        """Add an option if it exists under one of its names; whether it did."""
        name = self.flags.first(*names)
        if name is not None:
            self.arguments += [name, *values]
        return name is not None

    def extra(self, arguments: Iterable[str], *, ours: Mapping[str, str]) -> None:
        """Add the user's own arguments, last, so that they win over ours.

        Args:
            arguments: as fleet.yaml has them.
            ours: options that have a place of their own in fleet.yaml (all other parts rely on that
                place), with the sentence that names it.

        Raises:
            PlanRefused: an option that the program does not know, or one of `ours`.
        """
        given = [str(argument) for argument in arguments]
        for argument in given:
            if not _OPTION.match(argument):
                continue
            for name, instead in ours.items():
                if argument in (name, *self.flags.aliases(name)) or argument.startswith(f"{name}="):
                    raise PlanRefused(f"extra_args may not have {argument.split('=')[0]}.", instead, code="extra-args")
            if not self.flags.has(argument):
                raise PlanRefused(f"{self.program} at {self.binary.path} does not know {argument[:80]} (extra_args).",
                                  self.flags.suggestion(argument) or "See its --help.", code="no-such-flag")
        self.arguments += given

    def done(self, env: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> Command:
        """The finished command; `env` wins over `defaults`.

        Raises:
            PlanRefused: a variable's name or value is none that an environment can hold.
        """
        merged = {**(defaults or {}), **env}
        for name, value in merged.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise PlanRefused(f"env: {name[:80]!r} cannot be an environment variable.",
                                  "Names are letters, digits and underscores; values hold no NUL.", code="env")
        if any("\0" in argument for argument in self.arguments):
            raise PlanRefused("An argument holds a NUL byte, which no program can be given.", code="argument")
        return Command(tuple(self.arguments), merged)


def checked_devices(devices: Iterable[str]) -> tuple[str, ...]:
    """Device names as one `--device` argument can hold them.

    Raises:
        PlanRefused: a name with a comma, a slash or a blank (both servers split at these), or twice.
    """
    names = tuple(devices)
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise PlanRefused(f"{name[:80]!r} is no device name.", "Devices are named as llama.cpp lists them: "
                              "CUDA0, MTL0, Vulkan1, CPU.", code="bad-device")
    if len(set(names)) != len(names):
        raise PlanRefused(f"A device is named twice: {', '.join(names)}.", "Name each device once.", code="bad-device")
    return names


def checked_port(port: int) -> str:
    """A port as an argument.

    Raises:
        PlanRefused: not 1 to 65535.
    """
    if not 1 <= port <= 65535:
        raise PlanRefused(f"{port} is no port.", "Ports are 1 to 65535.", code="bad-port")
    return str(port)
