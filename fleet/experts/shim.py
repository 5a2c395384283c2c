"""The expert shim on a node: built there by its own compiler, or built elsewhere and copied; or why there is none.

It is one C file without dependencies (`moe_shim.c`), preloaded into an unmodified llama-server. A library is named by
the hash of its source, so one that is there under its name is this one; the node's own loader is asked whether it takes
it, which tells a wrong processor, another C library and a disk mounted noexec all at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fleet.errors import FleetError, ServiceError
from fleet.nodes.folder import Answer
from fleet.nodes.records import STATE_SH
from fleet.nodes.transport import Transport
from fleet.text import visible

PRELOAD = "LD_PRELOAD"
STATS = "experts.stats"          # in the service's own folder, which is its working directory
TRACE = "experts.trace"          # there, too: what is traced while ASKED is there
ASKED = "experts.trace.asked"
AHEAD = 256 << 20                # bytes that are read ahead for one layer of one pass at the most
_BUILD_TIMEOUT = 60.0            # seconds: a small machine's compiler on a slow card
_LARGEST = 1 << 20               # bytes of a library; it has about 40 000
_PIECE = 256 * 1024

_WHY = {
    "system": ("{node} runs {detail}: a library can be preloaded on Linux alone.", ""),
    "machine": ("{node} is a machine of the kind {detail}, which the shim was not made for.", ""),
    "static": ("{detail} is linked statically, or starts another program: nothing can stand between its parts.",
               "Use a llama.cpp with shared libraries, as its releases have them."),
    "compiler": ("{node} has no C compiler (cc, gcc or clang).",
                 "Install gcc or clang there; or here, where this machine is of the same kind."),
    "build": ("The compiler of {node} does not build the shim: {detail}.", "Install its C library's headers there."),
    "loader": ("The loader of {node} does not take the shim: {detail}.",
               "It was built for another kind of machine or C library, or the state folder's disk is mounted noexec."),
    "absent": ("The shim is not on {node}.", ""),
}


@dataclass(frozen=True, slots=True)
class Shim:
    """The shim on a node."""

    path: str            # there
    how: str             # "built by gcc", "there already", "copied from atlas"


@dataclass(frozen=True, slots=True)
class NoShim:
    """Why a node has none: what, and what to do about it; `code` is a stable word."""

    what: str
    remedy: str = ""
    code: str = ""


@cache
def source() -> bytes:
    """The C file."""
    return files("fleet.experts").joinpath("moe_shim.c").read_bytes()


@cache
def name() -> str:
    """The library's file name on a node."""
    return f"moe-shim-{hashlib.sha256(source() + _text().encode()).hexdigest()[:16]}.so"


@cache
def _text() -> str:
    return files("fleet.experts").joinpath("shim.sh").read_text(encoding="utf-8")


@cache
def _script() -> str:
    claim = files("fleet.nodes.supervise").joinpath("claim.sh").read_text(encoding="utf-8")
    return "\n".join((STATE_SH, claim, _text()))


async def prepare(transport: Transport, state_dir: str = "", *, program: str = "",
                  others: Sequence[Transport] = ()) -> Shim | NoShim:
    """Have the shim on a node.

    Args:
        state_dir: the node's state folder as fleet.yaml has it, "" = the usual one.
        program: path of its llama-server there, to see that it can be preloaded into; "" = not looked at.
        others: trusted machines that may have it, or build it, where this one has no compiler: what they hand out
            runs on this one.

    Raises:
        FleetError: the node does not answer.
    """
    found = await _ask(transport, state_dir, program, "source", source())
    if isinstance(found, Shim) or found.code not in ("compiler", "build"):
        return found
    for other in others:
        try:
            there = await _ask(other, "", "", "source", source())
            if isinstance(there, NoShim):
                continue
            copied = await _ask(transport, state_dir, program, "binary", await _fetch(other, there.path))
        except FleetError:
            continue                         # that one cannot help; the next may
        if isinstance(copied, Shim):
            return Shim(copied.path, f"copied from {other.name}" if copied.how == "copied" else copied.how)
    return found


async def _ask(transport: Transport, state_dir: str, program: str, kind: str, data: bytes) -> Shim | NoShim:
    done = await transport.run(_script(), (state_dir, name(), program, kind), stdin=data, timeout=_BUILD_TIMEOUT)
    answer = Answer(done.text)
    if answer.words.get("shim", "").startswith("/"):
        how = answer.words.get("how", "")
        return Shim(answer.words["shim"], "there already" if how == "there" else
                    f"built by {visible(how.removeprefix('built '))[:40]}" if how.startswith("built ") else how)
    code, _, detail = answer.words.get("none", "").partition(" ")
    if code in _WHY:
        what, remedy = _WHY[code]
        return NoShim(what.format(node=transport.name, detail=visible(detail)[:300].rstrip(".")), remedy, code)
    why = answer.words.get("nowhere") or answer.words.get("cannot") or done.error_text or done.text
    return NoShim(f"The shim could not be kept on {transport.name}: {visible(' '.join(why.split()))[:300]}.",
                  "See that its state folder can be written.", "not-written")


async def _fetch(transport: Transport, path: str) -> bytes:
    data = b""
    while piece := await transport.read_file(path, len(data), _PIECE):
        data += piece
        if len(data) > _LARGEST:
            raise ServiceError(f"{path} on {transport.name} is larger than a shim can be.", "Take it away there.")
    return data


def environment(shim: Shim, *, stats: str = STATS, slots: int = 1, drafted: int = 0, ahead: int = AHEAD,
                trace: str = "", asked: str = "", prefetch: bool = True) -> dict[str, str]:
    """What llama-server is given in its environment.

    Args:
        stats: where the counters go, "" = nowhere; relative to the server's working directory.
        slots: requests at once; each decodes one row of a pass, and `drafted` more where drafts are verified.
        ahead: bytes that are read ahead for one layer of one pass at the most.
        trace: where every routing decision goes, "" = nowhere.
        asked: it goes there only while this file is there; "" = always.
        prefetch: False counts alone, and leaves reading to page faults.
    """
    found = {PRELOAD: shim.path, "QUARTERDECK_MOE_ROWS": str(max(1, slots) * (1 + drafted)),
             "QUARTERDECK_MOE_AHEAD": str(ahead)}
    if prefetch:
        found |= {"QUARTERDECK_MOE_PREFETCH": "1", "QUARTERDECK_MOE_LAZY": "1"}
    if stats:
        found["QUARTERDECK_MOE_STATS"] = stats
    if trace:
        found["QUARTERDECK_MOE_TRACE"] = trace
        if asked:
            found["QUARTERDECK_MOE_TRACE_ASKED"] = asked
    return found
