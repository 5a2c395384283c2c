"""The output of a probe, cut into its sections.

A marker is a line that begins with "@@" and the token of this very run; the token stands in the
begin line. A section counts only when another marker follows it: one that broke off half-way says
nothing, and what was known before stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fleet.errors import ShellUnusable

_BEGIN = re.compile(r"^@@quarterdeck-probe 1 ([0-9a-f]{8,64}) (full|quick)\r?$", re.MULTILINE)
_MARKER = re.compile(r"\n?^@@([0-9a-f]{8,64}) ([^\r\n]{1,120})\r?$\n?", re.MULTILINE)   # of any run: tokens change
_STATUS = re.compile(r"^@status ([0-9]{1,3})\r?$", re.MULTILINE)
_MOST = 1024
_TOOL_LIMIT = 72 * 1024   # characters of one tool that are read; our script cuts at 64 KiB, a hostile node does not


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool printed, and its exit status; None when its output was cut."""

    text: str
    status: int | None

    @property
    def timed_out(self) -> bool:
        """It was killed because it took too long."""
        return self.status in (124, 137)


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections by name. `whole` tells whether the script came to its end."""

    full: bool = False
    whole: bool = False
    texts: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """The text of a section; "" when there is none."""
        return self.texts.get(name, "")

    def tool(self, name: str) -> ToolOutput | None:
        """The output of a tool; None when it was not run."""
        text = self.texts.get(name)
        if text is None:
            return None
        found = list(_STATUS.finditer(text))
        if not found:
            return ToolOutput(text[:_TOOL_LIMIT], None)
        return ToolOutput(text[:min(found[-1].start(), _TOOL_LIMIT)], int(found[-1][1]))

    def numbered(self, prefix: str) -> dict[str, str]:
        """The sections "prefix WHAT", by WHAT."""
        start = f"{prefix} "
        return {name[len(start):]: text for name, text in self.texts.items() if name.startswith(start)}


def split(text: str, token: str = "") -> Sections:
    """The sections of a probe's output; whatever precedes the begin line is noise.

    With `token` only the begin line of that run counts. Without it the first one does: what comes
    after it holds process titles and file names, which anybody on the node can choose.

    Raises:
        ShellUnusable: there is no begin line.
    """
    begin = next((match for match in _BEGIN.finditer(text) if token in ("", match[1])), None)
    if begin is None:
        raise ShellUnusable("The node's shell ran, but the probe's answer did not come back.",
                            "See what `/bin/sh -c 'echo hello'` prints on that machine.")
    markers = (match for match in _MARKER.finditer(text, begin.end()) if match[1] == begin[1])
    texts: dict[str, str] = {}
    name, start, last = "", begin.end(), ""
    for count, match in enumerate(markers):
        if name and count < _MOST:
            texts.setdefault(name, text[start:match.start()])
        name, start, last = match[2], match.end(), match[2]
    return Sections(begin[2] == "full", last == "end", texts)
