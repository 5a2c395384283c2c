"""Quarterdeck's colours: brass and sea on slate, the same on white, and the terminal's own sixteen.

Every colour is one of the 256 that terminals over SSH are left with (COLORTERM does not cross an
SSH hop by default), so a theme looks the same with and without true colour. Nothing else in the
code names a colour: style sheets use the theme's variables.
"""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

from app.terminal import ANSI_DARK, ANSI_LIGHT, DARK, LIGHT

_CUBE = (0, 95, 135, 175, 215, 255)


def indexed(index: int) -> str:
    """The colour of the xterm palette (16 to 255) as a style sheet says it."""
    if index >= 232:
        grey = 8 + 10 * (index - 232)
        return f"rgb({grey},{grey},{grey})"
    red, rest = divmod(index - 16, 36)
    green, blue = divmod(rest, 6)
    return f"rgb({_CUBE[red]},{_CUBE[green]},{_CUBE[blue]})"


def _theme(name: str, *, dark: bool, background: int, surface: int, panel: int, text: int, muted: int, rule: int,
           sea: int, brass: int, good: int, warn: int, bad: int, cursor: int, resting: int) -> Theme:
    colour = indexed
    return Theme(
        name=name, dark=dark, primary=colour(sea), secondary=colour(sea), accent=colour(brass),
        success=colour(good), warning=colour(warn), error=colour(bad), foreground=colour(text),
        background=colour(background), surface=colour(surface), panel=colour(panel),
        variables={
            "text-muted": colour(muted), "text-success": colour(good), "text-warning": colour(warn),
            "text-error": colour(bad), "text-accent": colour(brass), "text-primary": colour(sea),
            "border": colour(rule), "border-blurred": colour(rule),
            "block-cursor-background": colour(cursor), "block-cursor-foreground": colour(text),
            "block-cursor-text-style": "none", "block-cursor-blurred-background": colour(resting),
            "block-cursor-blurred-foreground": colour(text), "block-hover-background": colour(resting),
            "scrollbar": colour(rule), "scrollbar-hover": colour(muted), "scrollbar-active": colour(muted),
            "scrollbar-background": colour(background), "scrollbar-background-hover": colour(background),
            "scrollbar-background-active": colour(background), "scrollbar-corner-color": colour(background),
            "input-cursor-background": colour(text), "input-cursor-foreground": colour(background),
            "input-selection-background": colour(cursor), "button-foreground": colour(text),
        },
    )


def _ansi(name: str, *, dark: bool) -> Theme:
    """The terminal's own colours; what is muted stays in the default colour where no grey is sure to show."""
    cursor = "ansi_blue" if dark else "ansi_white"
    stock = BUILTIN_THEMES["ansi-dark" if dark else "ansi-light"]
    return Theme(
        name=name, ansi=True, dark=dark, primary="ansi_cyan" if dark else "ansi_blue", secondary="ansi_cyan",
        warning="ansi_yellow" if dark else "ansi_magenta", error="ansi_red", success="ansi_green",
        accent="ansi_bright_yellow" if dark else "ansi_blue", foreground="ansi_default", background="ansi_default",
        surface="ansi_default", panel="ansi_default", boost="ansi_default",
        variables={
            **stock.variables,
            "text-muted": "ansi_default", "border": "ansi_default", "border-blurred": "ansi_default",
            "block-cursor-background": cursor, "block-cursor-blurred-background": "ansi_default",
            "block-cursor-foreground": "ansi_default", "scrollbar": "ansi_default",
            "scrollbar-background": "ansi_default", "input-cursor-text-style": "reverse",
        },
    )


THEMES = (
    _theme(DARK, dark=True, background=234, surface=235, panel=236, text=252, muted=245, rule=239, sea=67,
           brass=179, good=108, warn=215, bad=203, cursor=238, resting=236),
    _theme(LIGHT, dark=False, background=231, surface=255, panel=254, text=236, muted=242, rule=250, sea=67,
           brass=94, good=28, warn=130, bad=160, cursor=253, resting=255),
    _ansi(ANSI_DARK, dark=True),
    _ansi(ANSI_LIGHT, dark=False),
)
