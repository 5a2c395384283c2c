"""What the terminal can do, decided from the environment before Textual is imported.

Textual reads TEXTUAL_* once, when it is imported, so the command line asks here first and puts
`environment` into os.environ. Pure: nothing is read but what is passed in, nothing is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from widgets.ramp import Graphs

LOCAL_RATE = 5.0               # repaints a second
SSH_RATE = 2.0
SLOWEST, FASTEST = 0.2, 20.0

DARK, LIGHT = "quarterdeck-dark", "quarterdeck-light"
ANSI_DARK, ANSI_LIGHT = "quarterdeck-ansi-dark", "quarterdeck-ansi-light"

_MANY_COLOURS = ("256color", "direct", "kitty", "alacritty", "ghostty", "wezterm", "foot", "iterm", "tmux", "contour")


@dataclass(frozen=True, slots=True)
class TerminalChoice:
    """How the cockpit shows itself on this terminal, or why it cannot."""

    cockpit: bool              # False: run without a user interface instead
    reason: str = ""           # why not
    remote: bool = False       # reached over SSH
    mouse: bool = True
    rate: float = LOCAL_RATE   # repaints a second at most
    ansi: bool = False         # the terminal's own 16 colours, or none: App(ansi_color=True)
    theme: str = DARK
    graphs: Graphs = Graphs.BLOCKS
    environment: Mapping[str, str] = field(default_factory=dict)   # to set before importing textual


def prepare_environment(environ: Mapping[str, str], *, stdin_tty: bool = True, stdout_tty: bool = True,
                        rate: float | None = None, mouse: bool | None = None) -> TerminalChoice:
    """The choice for a terminal; `rate` and `mouse` are what the user said on the command line."""
    if not stdout_tty or not stdin_tty:
        return TerminalChoice(False, "standard input and output are not both a terminal")
    term = environ.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        return TerminalChoice(False, f"the terminal says TERM={term or '(nothing)'}, which cannot show a screen")
    remote = any(environ.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT"))
    light = _is_light(environ)
    ansi = "NO_COLOR" in environ or not _has_many_colours(term, environ)
    theme = (ANSI_LIGHT if light else ANSI_DARK) if ansi else (LIGHT if light else DARK)
    wanted = rate if rate is not None else (SSH_RATE if remote else LOCAL_RATE)
    settings = {
        "TEXTUAL_ANIMATIONS": "none",          # nothing moves by itself
        "TEXTUAL_SMOOTH_SCROLL": "0",
        "TEXTUAL_FPS": "10" if remote else "30",
        # Ours are all of the 256 (app/themes.py), and said by their numbers they take half the bytes.
        **({} if ansi else {"TEXTUAL_COLOR_SYSTEM": "256"}),
        # Ours are registered once the app runs; what it starts with has to be of the same sort, or
        # NO_COLOR gives black on black.
        "TEXTUAL_THEME": ("ansi-light" if light else "ansi-dark") if ansi else "textual-dark",
    }
    return TerminalChoice(
        cockpit=True, remote=remote, mouse=mouse if mouse is not None else not remote,
        rate=min(max(wanted, SLOWEST), FASTEST), ansi=ansi, theme=theme, graphs=_graphs(environ),
        environment=settings)


def _graphs(environ: Mapping[str, str]) -> Graphs:
    """QUARTERDECK_GRAPHS: blocks, braille (twice as fine, where the font has it) or ascii."""
    said = environ.get("QUARTERDECK_GRAPHS", "").lower()
    return Graphs(said) if said in set(Graphs) else Graphs.BLOCKS


def _has_many_colours(term: str, environ: Mapping[str, str]) -> bool:
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return True
    return any(word in term.lower() for word in _MANY_COLOURS)


def _is_light(environ: Mapping[str, str]) -> bool:
    """QUARTERDECK_THEME=light or dark decides; else COLORFGBG ("0;15": black on white) where a terminal sets it."""
    said = environ.get("QUARTERDECK_THEME", "").lower()
    if said in ("light", "dark"):
        return said == "light"
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    return background.isdigit() and int(background) in (7, 9, 10, 11, 12, 13, 14, 15)
