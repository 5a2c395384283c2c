"""What goes over the wire to a node's /bin/sh, and what comes back: pure, shared by both transports.

The command that starts the shell is one constant line without a backslash, a `!` or a line break,
so bash, dash, zsh, fish and csh as login shells all hand it on as it is. That line reads the script
from its standard input and runs it. Two ways, told apart by a first line:

- `all`: the script is everything up to the end of input (no data for the script);
- a number: the script is that many bytes; what follows is the script's own standard input. `dd` with
  one-byte reads is the only tool that never reads ahead on every system (`head -c` does on BSD and
  busybox, and dash itself reads a script from a pipe in blocks of 8 kB).

The script is wrapped in braces: half of one, after a broken link, is a syntax error and nothing runs.
Before it, the line prints a mark with its pid on both outputs: what rc files printed comes before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fleet.nodes.transport import with_arguments

MARK = b"--quarterdeck-begin--"
NAME = "quarterdeck"   # $0 of every script: what its error messages and `ps` begin with
WRAPPER = (
    "echo; echo --quarterdeck-begin-- $$; { echo; echo --quarterdeck-begin-- $$; } >&2; read -r qd_n; "
    'case $qd_n in all) qd_s=$(cat) ;; *) qd_s=$(dd ibs=1 obs=65536 count="$qd_n" 2>/dev/null) ;; esac; '
    'eval "$qd_s"'
)
LOCAL_ARGV = ("/bin/sh", "-c", WRAPPER, NAME)
REMOTE_COMMAND = f"exec /bin/sh -c '{WRAPPER}' {NAME}"
STDERR_LIMIT = 64 * 1024
NOISE_LIMIT = 1024     # bytes of what came before the mark that are kept, to show what the shell said instead

_BEGIN = re.compile(rb"(?:^|\n)" + re.escape(MARK) + rb" (\d{1,10})\r?\n")
_LONGEST_MARK = len(MARK) + 16


def request(script: str, arguments: Sequence[str] = (), stdin: bytes = b"") -> bytes:
    """All that is written to the shell: how much is script, the script, the data for it.

    Raises:
        ValueError: an argument holds a NUL, which no shell can carry.
    """
    text = f"{{\n{with_arguments(script, arguments)}\n}}\n".encode("utf-8", "surrogateescape")
    return b"%d\n%b%b" % (len(text), text, stdin) if stdin else b"all\n" + text


class Beginning:
    """Drops what precedes the mark in an output that comes in pieces.

    `pid` is the shell's own on its node, None as long as no mark was seen. `noise` is the start of
    what came before it, bounded.
    """

    def __init__(self) -> None:
        self.pid: int | None = None
        self.noise = b""
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What of `data` belongs to the script's own output."""
        if self.pid is not None:
            return data
        held = self._held + data
        if found := _BEGIN.search(held):
            self.pid = int(found[1])
            self._held = b""
            self._keep(held[:found.start()])
            return held[found.end():]
        cut = max(0, len(held) - _LONGEST_MARK)
        self._keep(held[:cut])
        self._held = held[cut:]
        return b""

    @property
    def said(self) -> str:
        """What the shell said in place of the mark, in one short line."""
        words = (self.noise + self._held).decode("utf-8", "replace").split()
        return "".join(c if c.isprintable() else "?" for c in " ".join(words))[:200]

    def _keep(self, noise: bytes) -> None:
        self.noise += noise[:NOISE_LIMIT - len(self.noise)]


class Output:
    """What a script wrote, from the mark on, up to a limit; more is dropped and `truncated` says so."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.begin = Beginning()
        self.data = bytearray()
        self.truncated = False

    def feed(self, data: bytes) -> None:
        """Take what there is room for."""
        data = self.begin.feed(data)
        room = self.limit - len(self.data)
        self.data += data[:room]
        self.truncated = self.truncated or len(data) > room


class Lines:
    """Cuts a byte stream into lines; of a line longer than `limit` bytes the rest is dropped."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._part = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` ends, without their line breaks."""
        *whole, rest = data.split(b"\n")
        lines = []
        for piece in whole:
            self._take(piece)
            lines.append(self._line())
        self._take(rest)
        return lines

    def end(self) -> list[str]:
        """The last line, when it had no line break."""
        return [self._line()] if self._part else []

    def _take(self, piece: bytes) -> None:
        self._part += piece[:max(0, self.limit - len(self._part))]

    def _line(self) -> str:
        line = self._part.decode("utf-8", "replace").removesuffix("\r")
        self._part.clear()
        return line
