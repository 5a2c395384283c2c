"""Text from elsewhere: nothing in it reaches a terminal as a command, and no secret is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.text import HIDDEN, hidden_values, visible, without_secrets


def test_escape_sequences_are_written_out():
    assert visible("\x1b[2Jatlas\x07") == r"\x1b[2Jatlas\x07"


def test_c1_controls_and_bidi_marks_are_written_out():
    assert visible("\x9b1m a\u202eb\u2066") == r"\x9b1m a\u202eb\u2066"


def test_line_ends_and_tabs_are_written_out_unless_kept():
    assert visible("a\nb\tc\r") == r"a\nb\tc\r"
    assert visible("a\nb\tc\r", keep="\n\t") == "a\nb\tc\\r"


def test_ordinary_text_of_any_script_stays():
    assert visible("Größe 32 GiB · 模型 👩‍💻") == "Größe 32 GiB · 模型 👩‍💻"


def test_a_limit_is_kept_and_shown():
    assert visible("abcdef", limit=4) == "abc…"
    assert visible("abcd", limit=4) == "abcd"


@given(st.text(alphabet=st.characters()))
def test_the_result_holds_nothing_that_a_terminal_obeys(text):
    shown = visible(text)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in shown)
    shown.encode("utf-8")


@pytest.mark.parametrize(("argv", "shown"), [
    (("llama-server", "--api-key", "s3cret", "-c", "1"), ("llama-server", "--api-key", HIDDEN, "-c", "1")),
    (("x", "--api-key=s3cret"), ("x", f"--api-key={HIDDEN}")),
    (("x", "--hf-token", "s3cret"), ("x", "--hf-token", HIDDEN)),
    (("x", "-hft", "s3cret"), ("x", "-hft", HIDDEN)),
    (("x", "--api-key-file", "/etc/key"), ("x", "--api-key-file", "/etc/key")),
    (("x", "--api-key"), ("x", "--api-key")),
])
def test_secrets_of_a_command_line_are_hidden(argv, shown):
    assert without_secrets(argv) == shown


def test_secrets_of_an_environment_are_hidden():
    shown = hidden_values({"HF_TOKEN": "s3cret", "LLAMA_API_KEY": "s3cret", "CUDA_VISIBLE_DEVICES": "1"})
    assert shown == {"HF_TOKEN": HIDDEN, "LLAMA_API_KEY": HIDDEN, "CUDA_VISIBLE_DEVICES": "1"}
