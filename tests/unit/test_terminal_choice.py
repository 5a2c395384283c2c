"""What is decided about a terminal before Textual is imported, and copying through it."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest

from app import clipboard
from app.terminal import ANSI_DARK, ANSI_LIGHT, DARK, LIGHT, prepare_environment
from widgets.ramp import Graphs

XTERM = {"TERM": "xterm-256color"}


def test_a_local_terminal_gets_five_repaints_a_second_and_the_mouse() -> None:
    choice = prepare_environment(XTERM)
    assert (choice.cockpit, choice.rate, choice.mouse, choice.ansi, choice.theme) == (True, 5.0, True, False, DARK)


def test_over_ssh_there_are_two_repaints_a_second_and_no_mouse() -> None:
    choice = prepare_environment({**XTERM, "SSH_CONNECTION": "10.0.0.1 4 10.0.0.2 22"})
    assert (choice.remote, choice.rate, choice.mouse) == (True, 2.0, False)
    assert prepare_environment({**XTERM, "SSH_CONNECTION": "x"}, mouse=True, rate=4).rate == 4


def test_the_rate_has_bounds() -> None:
    assert prepare_environment(XTERM, rate=1_000).rate == 20.0
    assert prepare_environment(XTERM, rate=0).rate == 0.2


@pytest.mark.parametrize("environ", [{}, {"TERM": "dumb"}, {"TERM": "unknown"}])
def test_a_terminal_that_cannot_show_a_screen_gets_no_cockpit(environ: dict[str, str]) -> None:
    choice = prepare_environment(environ)
    assert not choice.cockpit and "TERM=" in choice.reason


def test_a_pipe_gets_no_cockpit() -> None:
    assert not prepare_environment(XTERM, stdout_tty=False).cockpit


def test_no_color_and_small_terminals_get_their_own_colours() -> None:
    plain = prepare_environment({**XTERM, "NO_COLOR": ""})
    assert plain.ansi and plain.theme == ANSI_DARK and plain.environment["TEXTUAL_THEME"] == "ansi-dark"
    assert prepare_environment({"TERM": "linux"}).ansi
    assert not prepare_environment({"TERM": "xterm", "COLORTERM": "truecolor"}).ansi


def test_a_light_terminal_gets_a_light_theme() -> None:
    assert prepare_environment({**XTERM, "COLORFGBG": "0;15"}).theme == LIGHT
    assert prepare_environment({**XTERM, "COLORFGBG": "15;0"}).theme == DARK
    assert prepare_environment({**XTERM, "COLORFGBG": "15;0", "QUARTERDECK_THEME": "light"}).theme == LIGHT
    assert prepare_environment({"TERM": "linux", "QUARTERDECK_THEME": "light"}).theme == ANSI_LIGHT


def test_nothing_moves_by_itself() -> None:
    assert prepare_environment(XTERM).environment["TEXTUAL_ANIMATIONS"] == "none"


def test_the_choice_is_made_without_textual_and_the_first_frame_without_the_engine() -> None:
    script = ("import sys, app.terminal\nassert not [m for m in sys.modules if m.startswith(('textual', 'rich'))]\n"
              "import app.cockpit, app.screens.fleet\n"
              "late = ('asyncssh', 'zeroconf', 'httpx', 'gguf', 'numpy', 'fleet.engine')\n"
              "sys.exit(repr([m for m in sys.modules if m in late]) if set(late) & set(sys.modules) else 0)\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_presentation_needs_no_textual() -> None:
    script = ("import sys\nfrom app.present import deployment, dialogs, models, node_detail, nodes, operations, "
              "services, shell, status\nsys.exit(any(m.startswith('textual') for m in sys.modules))\n")
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


# -- the clipboard -----------------------------------------------------------------------------


def payload(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_bare_terminal_gets_osc_52() -> None:
    done = clipboard.copy("atlas", {"TERM": "xterm"})
    assert done.ok and done.sequence == f"\x1b]52;c;{payload('atlas')}\x07"
    assert "Sent" in done.message and "copied" not in done.message.lower()


@pytest.mark.parametrize(("said", "graphs"), [("", Graphs.BLOCKS), ("Braille", Graphs.BRAILLE), ("ascii", Graphs.ASCII),
                                              ("pixels", Graphs.BLOCKS)])
def test_graphs_are_drawn_with_what_the_user_says(said: str, graphs: Graphs) -> None:
    assert prepare_environment({**XTERM, "QUARTERDECK_GRAPHS": said}).graphs is graphs


def test_tmux_is_passed_through_and_its_setting_named() -> None:
    done = clipboard.copy("atlas", {"TERM": "tmux-256color", "TMUX": "/tmp/x,1,0"})
    assert done.sequence == f"\x1bPtmux;\x1b\x1b]52;c;{payload('atlas')}\x07\x1b\\"
    assert "allow-passthrough" in done.message


def test_screen_gets_it_in_pieces() -> None:
    done = clipboard.copy("x" * 200, {"TERM": "screen-256color", "STY": "1.pts"})
    pieces = done.sequence.split("\x1b\\")[:-1]
    assert len(pieces) > 1 and all(piece.startswith("\x1bP") and len(piece) <= 78 for piece in pieces)
    assert "".join(piece[2:] for piece in pieces) == f"\x1b]52;c;{payload('x' * 200)}\x07"


def test_what_is_too_much_is_not_sent_and_said_so() -> None:
    done = clipboard.copy("x" * 100_000, {})
    assert not done.ok and done.sequence == "" and "Not copied" in done.message
    assert not clipboard.copy("", {}).ok
