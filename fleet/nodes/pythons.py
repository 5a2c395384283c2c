"""Which Python a node has for the proxy: one question over the transport, and what to say when there is none."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from fleet.errors import PlanRefused, ShellUnusable
from fleet.nodes.transport import Transport
from fleet.text import visible

TIMEOUT = 45.0             # seconds: a small machine with many Pythons, and a Quarterdeck that reads its own sources
MOST = 64
_LONGEST = 4096            # characters of a path


@dataclass(frozen=True, slots=True)
class Python:
    """One Python of a node."""

    path: str
    version: tuple[int, int, int]
    lacks: str = ""                 # a module of its own library that is not installed


@dataclass(frozen=True, slots=True)
class Pythons:
    """All that were found, in the order of the node's PATH; `ours`: code hash -> Python with that Quarterdeck."""

    found: tuple[Python, ...] = ()
    ours: dict[str, str] | None = None

    def with_code(self, code: str) -> str:
        """The Python whose Quarterdeck has this code (`zipapp.own_code`); "" = none has."""
        return (self.ours or {}).get(code, "")


async def find_pythons(transport: Transport) -> Pythons:
    """Ask a node.

    Raises:
        NodeError: it does not answer, or not so that it can be read.
    """
    done = await transport.run(files(__package__).joinpath("pythons.sh").read_text("utf-8"), timeout=TIMEOUT,
                               limit=64 * 1024)
    if done.status != 0 or not done.text.endswith("end\n"):
        raise ShellUnusable(f"{transport.name} did not say which Python it has (status {done.status}).",
                            "Run `quarterdeck doctor` and look at this node.")
    return read_pythons(done.text)


def read_pythons(text: str) -> Pythons:
    """What the script printed; lines that are none of ours are passed over."""
    found: list[Python] = []
    ours: dict[str, str] = {}
    for line in text.split("\n")[:10 * MOST]:
        word, _, rest = line.partition("|")
        if word == "python" and len(found) < MOST:
            version, _, rest = rest.partition(" ")
            lacks, _, path = rest.partition(" ")
            if (numbers := _version(version)) is not None and _is_path(path):
                found.append(Python(path, numbers, "" if lacks == "-" else lacks))
        elif word == "ours" and len(ours) < MOST:
            code, _, path = rest.partition(" ")
            if code and _is_path(path):
                ours.setdefault(code, path)
    return Pythons(tuple(found), ours)


def choose_python(node: str, pythons: Pythons, oldest: tuple[int, int], what: str) -> Python:
    """The node's `python3` where it is new enough, else the newest that is.

    Raises:
        PlanRefused: there is none, or it lacks something; `what` is what needs it: "The proxy".
    """
    wanted = f"{oldest[0]}.{oldest[1]}"
    remedy = f"Install Python {wanted} or newer on {node} (no packages of it are needed), or use another node."
    new = [python for python in pythons.found if python.version[:2] >= oldest]
    whole = [python for python in new if not python.lacks]
    if whole:
        usual = [python for python in whole if python.path.endswith("/python3")]
        return usual[0] if usual else max(whole, key=lambda python: python.version)
    if new:
        raise PlanRefused(f"{_name(new[0])} on {node} has no module {visible(new[0].lacks, limit=40)}, "
                          f"which {what.lower()} needs: parts of Python's own library are not installed there.",
                          f"Install the rest of it (Debian: python3, not python3-minimal) on {node}.", code="no-python")
    if pythons.found:
        newest = max(pythons.found, key=lambda python: python.version)
        raise PlanRefused(f"{what} needs Python {wanted} or newer, and the newest on {node} is {_name(newest)}.",
                          remedy, code="no-python")
    raise PlanRefused(f"{what} needs Python {wanted} or newer, and {node} has no python3.", remedy, code="no-python")


def _name(python: Python) -> str:
    return f"Python {'.'.join(map(str, python.version))} ({visible(python.path, limit=200)})"


def _version(text: str) -> tuple[int, int, int] | None:
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        return None
    return int(parts[0]), int(parts[1]), int(parts[2])


def _is_path(text: str) -> bool:
    return text.startswith("/") and len(text) < _LONGEST and text.isprintable()
