"""Copying over any number of SSH hops: the terminal's own OSC 52, wrapped where a multiplexer stands between.

No terminal says whether it took the text, so what is said to the user is what was done, not what
came of it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.text import visible

CAP = 74_994                   # base64 bytes that xterm and its kin take in one sequence
SCREEN_PIECE = 76              # GNU screen cuts a passed string off beyond its own line length


@dataclass(frozen=True, slots=True)
class Copy:
    """A sequence for the terminal and what to tell the user about it."""

    sequence: str              # "" = nothing is to be written
    message: str
    ok: bool


def copy(text: str, environ: Mapping[str, str]) -> Copy:
    """How to put `text` on the clipboard of the terminal that `environ` tells of.

    Control characters are written out: what is copied is pasted into shells, and a ctrl+c in it would end the quotes
    that it stands in.
    """
    text = visible(text, keep="\n\t")
    if not text:
        return Copy("", "Nothing to copy here.", False)
    payload = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    if len(payload) > CAP:
        size = len(text.encode("utf-8", "replace")) // 1024
        return Copy("", f"Not copied: {size} KiB is more than terminals take ({CAP * 3 // 4 // 1024} KiB).", False)
    bare = f"\x1b]52;c;{payload}\x07"
    lines = text.count("\n") + 1
    what = f"{lines} lines" if lines > 1 else text if len(text) <= 60 else f"{text[:57]}..."
    if environ.get("TMUX"):
        inner = bare.replace("\x1b", "\x1b\x1b")
        return Copy(f"\x1bPtmux;{inner}\x1b\\",
                    f"Sent to the terminal through tmux (needs allow-passthrough on): {what}", True)
    if environ.get("TERM", "").startswith("screen") and environ.get("STY"):
        pieces = [bare[start:start + SCREEN_PIECE] for start in range(0, len(bare), SCREEN_PIECE)]
        return Copy("".join(f"\x1bP{piece}\x1b\\" for piece in pieces),
                    f"Sent to the terminal through screen: {what}", True)
    return Copy(bare, f"Sent to the terminal's clipboard: {what}", True)
