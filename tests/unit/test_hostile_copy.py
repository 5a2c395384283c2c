"""What a hostile node gets into a command that a person copies into a shell, or into the terminal itself."""

from __future__ import annotations

import base64
import shlex
from dataclasses import replace

import pytest

from app import clipboard
from app.follow import ending
from app.output import note
from app.present import shell
from fleet.model import (
    Address,
    Deployment,
    DeploymentState,
    Node,
    NodeReading,
    Operation,
    OperationState,
    Snapshot,
)
from fleet.text import HIDDEN, without_secrets


def _node(user: str = "ops", host: str = "10.0.0.5") -> Node:
    address = Address(host)
    return Node("bolt", addresses=(address,), address=address, reading=NodeReading(user=user))


@pytest.mark.parametrize("user", [
    "-oProxyCommand=touch /tmp/x", "-l", "a b", "root\x1b[2J", "x;reboot", "a\nb", "\u202eabc", ""])
def test_a_user_name_that_is_none_is_left_out_of_the_ssh_command(user: str) -> None:
    assert shell.command_for(Snapshot(), "nodes", _node(user), None) == "ssh 10.0.0.5"


def test_a_host_that_begins_with_a_dash_is_no_option() -> None:
    words = shlex.split(shell.command_for(Snapshot(), "nodes", _node("", "-oProxyCommand=x"), None))
    assert words == ["ssh", "--", "-oProxyCommand=x"]


@pytest.mark.parametrize("model", [
    "--config=/tmp/evil.yaml", "a\x03\nreboot\n", "$(reboot)", "`reboot`", "'; reboot #", "\x1b[201~x"])
def test_a_models_name_stays_one_word_that_is_no_option_and_moves_no_terminal(model: str) -> None:
    snapshot = Snapshot(deployment=Deployment(state=DeploymentState.BROKEN, model=model))
    command = shell.command_for(snapshot, "placement", None, None)
    assert command.isprintable()
    words = [word for word in shlex.split(command)[2:] if word != "--"]
    assert len(words) == 1 and (not words[0].startswith("-") or " -- " in command)


def test_nothing_that_is_copied_holds_a_control_character() -> None:
    done = clipboard.copy("http://x\x03\x1b[201~\r:8080\n\u202enext", {})
    payload = base64.b64decode(done.sequence.removeprefix("\x1b]52;c;").removesuffix("\x07")).decode()
    assert payload == "http://x\\x03\\x1b[201~\\r:8080\n\\u202enext"


def test_remarks_and_endings_are_written_out_visibly(capsys: pytest.CaptureFixture[str]) -> None:
    note("model \x1b]0;owned\x07 on \u202eatlas")
    operation = Operation(1, "up", "Bring up \x1b[2J", OperationState.DONE)
    note(ending(operation))
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and "\u202e" not in shown and "\x07" not in shown
    assert "\\x1b" in ending(replace(operation, state=OperationState.REFUSED))


@pytest.mark.parametrize(("argv", "shown"), [
    (("x", "--api_key", "s3cret"), ("x", "--api_key", HIDDEN)),
    (("x", "--api_key=s3cret"), ("x", f"--api_key={HIDDEN}")),
    (("vllm", "--api-key", "one", "two", "--port", "8000"), ("vllm", "--api-key", HIDDEN, HIDDEN, "--port", "8000")),
    (("x", "--hf_token", "s3cret"), ("x", "--hf_token", HIDDEN)),
    (("x", "--api-keys=s3cret"), ("x", f"--api-keys={HIDDEN}")),
    (("x", "--api-key", "-s3cret"), ("x", "--api-key", HIDDEN)),
    (("x", "--max-tokens", "64"), ("x", "--max-tokens", "64")),
    (("x", "--api-key-file", "/etc/key"), ("x", "--api-key-file", "/etc/key")),
])
def test_keys_on_other_engines_command_lines_are_hidden_too(argv: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert without_secrets(argv) == shown
