"""The proxy from `QUARTERDECK_*` variables alone: what they make, and what is said about wrong ones."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config.load import ConfigErrors
from fleet.proxy.__main__ import health
from fleet.proxy.access import Key
from fleet.proxy.environment import PREFIX, VARIABLES, from_environment, is_configured, table
from fleet.proxy.exchange import BackendKind, HoldSettings, ProxySettings, RepairSettings

ROOT = Path(__file__).parents[3]


def variables(**said: str) -> dict[str, str]:
    return {PREFIX + name: value for name, value in said.items()}


def settings(**said: str) -> ProxySettings:
    return from_environment(variables(**said)).settings


def problems(**said: str) -> tuple[str, ...]:
    with pytest.raises(ConfigErrors) as caught:
        from_environment(variables(**said))
    return caught.value.problems


def test_a_target_is_enough() -> None:
    assert is_configured(variables(TARGET_URL="http://a:1")) and not is_configured({})
    found = settings(TARGET_URL="http://a:1")
    assert (found.host, found.port) == ("127.0.0.1", 8088)
    assert [(up.name, up.url, up.backend) for up in found.upstreams] == [("target", "http://a:1", BackendKind.OPENAI)]
    assert found.hold == HoldSettings() and found.repair == RepairSettings() and found.keys == ()


def test_everything_can_be_said(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("key-of-the-draft\n")
    key_file.chmod(0o600)
    found = settings(
        TARGET_URL="http://a:1, https://b/api", TARGET_MODEL="big,large", TARGET_BACKEND="vllm", TARGET_KEY="key-of-a",
        TARGET_SLOTS="3", TARGET_LET_FINISH="yes", TARGET_FIRST_BYTE_TIMEOUT="60", TARGET_STALL_TIMEOUT="30",
        DRAFT_URL="http://c:2", DRAFT_MODEL="small", DRAFT_KEY_FILE=str(key_file), LISTEN="[::]:9000",
        KEY="only-a-key-1; bob key-of-bob models=big concurrent=2", ALIASES="gpt-4o=big, tiny=small",
        DEFAULT_MODEL="big", CORS="https://chat.example", MAX_BODY="1MiB", MAX_HEAD="8KiB", MAX_CONNECTIONS="10",
        HOLD_COUNT="5", HOLD_SIZE="2MiB", HOLD_SECONDS="7", KEEP_ALIVE="0", NO_KEEP_ALIVE="Old/1,Odd", RETRIES="0",
        REPAIR_OFF="usage, line_ends", RECORDS="9", KEEP_BODIES="on")
    first, second, draft = sorted(found.upstreams, key=lambda up: ("target" not in up.name, up.name))
    assert (first.url, second.url, draft.url) == ("http://a:1", "https://b/api", "http://c:2")
    assert first.models == second.models == ("big", "large") and draft.models == ("small",)
    assert (second.key, second.slots, second.let_finish, second.first_byte_timeout) == ("key-of-a", 3, True, 60)
    assert draft.key == "key-of-the-draft" and (found.host, found.port) == ("::", 9000)
    assert found.keys == (Key("key1", "only-a-key-1"), Key("bob", "key-of-bob", ("big",), concurrent=2))
    assert found.aliases == {"gpt-4o": "big", "tiny": "small"} and found.cors_origins == ("https://chat.example",)
    assert found.hold == HoldSettings(5, 2 << 20, 7, keep_alive=0, no_keep_alive_agents=("Old/1", "Odd"))
    assert found.repair == RepairSettings(usage=False, line_ends=False)
    assert (found.limits.body, found.limits.head, found.limits.connections, found.retries) == (1 << 20, 8192, 10, 0)
    assert found.keep_bodies and found.records == 9
    assert "key-of" not in repr(found)


def test_the_draft_server_drafts_where_speculation_is_on() -> None:
    found = settings(TARGET_URL="http://a:1", SPECULATION="auto", DRAFT_URL="http://b:2", DRAFT_MODEL="small,other",
                     DRAFT_KEY="key-of-b")
    target = next(up for up in found.upstreams if up.name == "target")
    assert target.backend is BackendKind.LLAMA_SERVER and target.speculation is not None
    drafter, = target.speculation.drafters
    assert (drafter.url, drafter.kind, drafter.model, drafter.key) == (
        "http://b:2", "llama-server", "small", "key-of-b")
    found = settings(TARGET_URL="http://a:1", SPECULATION="strided", DRAFT_URL="http://b:2", DRAFT_BACKEND="vllm")
    assert next(up for up in found.upstreams if up.name == "target").speculation.drafters == ()
    assert settings(TARGET_URL="http://a:1", DRAFT_URL="http://b:2").upstreams[0].speculation is None
    assert any("cannot verify drafts" in problem for problem in problems(
        TARGET_URL="http://a:1", SPECULATION="auto", TARGET_BACKEND="openai"))
    assert any("SPECULATION" in problem for problem in problems(TARGET_URL="http://a:1", SPECULATION="fast"))


@pytest.mark.parametrize(("said", "told"), [
    ({}, "QUARTERDECK_TARGET_URL: this is not set. Expected the URL of a server"),
    ({"DRAFT_MODEL": "x"}, "QUARTERDECK_DRAFT_URL: this is not set."),
    ({"TARGET_URL": "a:1"}, "QUARTERDECK_TARGET_URL: 'a:1' is no http:// or https:// URL."),
    ({"TARGET_URL": "http://a,http://b c"}, "QUARTERDECK_TARGET_URL: "),
    ({"LISTEN": "8088"}, "QUARTERDECK_LISTEN: '8088' is no host and port. Expected host:port"),
    ({"LISTEN": "0.0.0.0:1"}, "QUARTERDECK_LISTEN: The proxy would listen on 0.0.0.0 without a key"),
    ({"TARGET_BACKEND": "vlm"}, "QUARTERDECK_TARGET_BACKEND: this is 'vlm'; did you mean 'vllm'?"),
    ({"HOLD_SECONDS": "soon"}, "QUARTERDECK_HOLD_SECONDS: this is 'soon'. Expected seconds"),
    ({"MAX_BODY": "big"}, "QUARTERDECK_MAX_BODY: this is 'big'. Expected a size such as 24GiB"),
    ({"ALLOW_OPEN": "perhaps"}, "QUARTERDECK_ALLOW_OPEN: this is 'perhaps'. Expected true or false"),
    ({"ALIASES": "a"}, "QUARTERDECK_ALIASES: 'a' is no pair."),
    ({"REPAIR_OFF": "usge"}, "QUARTERDECK_REPAIR_OFF: there is no repair 'usge'; did you mean 'usage'?"),
    ({"KEY": "short"}, "The keys of $QUARTERDECK_KEY cannot be used: line 1:"),
    ({"KEY": "long-enough-1", "KEY_FILE": "/none"}, "QUARTERDECK_KEY_FILE: QUARTERDECK_KEY is set too."),
    ({"TARGET_KEY_FILE": "/none"}, "The key file /none cannot be read"),
    ({"CORS": "x"}, "QUARTERDECK_CORS: 'x' is no origin."),
    ({"TARGET_URL": "http://a" + "a" * 70_000}, "QUARTERDECK_TARGET_URL: this is longer than"),
])
def test_a_wrong_variable_is_named_with_what_it_should_be(said: dict[str, str], told: str) -> None:
    target = {"TARGET_URL": "http://a:1"} if said else {}
    assert any(problem.startswith(told) for problem in problems(**{**target, **said}))


def test_all_that_is_wrong_is_told_at_once_and_no_key_is_repeated() -> None:
    found = problems(TARGET_URL="x", LISTEN="y", RETRIES="z", KEY="!sh\u00f6rt", TARGET_KEY="caf\u00e9-secret")
    assert len(found) == 5
    assert "sh\u00f6rt" not in "".join(found) and "secret" not in "".join(found)


def test_a_typing_error_is_warned_about() -> None:
    found = from_environment({**variables(TARGET_URL="http://a:1", LISTN="1", CONFIG="x", XYZZY="1"), "OTHER": "1"})
    assert found.warnings == (
        "QUARTERDECK_LISTN is not a variable that Quarterdeck knows; did you mean QUARTERDECK_LISTEN?",
        "QUARTERDECK_XYZZY is not a variable that Quarterdeck knows.")


@given(st.dictionaries(st.sampled_from([variable.name for variable in VARIABLES]), st.text(max_size=30), max_size=6))
def test_no_value_makes_anything_but_settings_or_problems(said: dict[str, str]) -> None:
    with contextlib.suppress(ConfigErrors):
        assert isinstance(settings(**{"TARGET_URL": "http://a:1", **said}), ProxySettings)


def test_the_readme_has_the_table_and_the_dockerfile_every_name() -> None:
    assert table() in (ROOT / "README.md").read_text()
    dockerfile = (ROOT / "Dockerfile").read_text()
    for variable in VARIABLES:
        assert PREFIX + variable.name in dockerfile


def test_the_tables_defaults_are_the_settings() -> None:
    bare = settings(TARGET_URL="http://a:1")
    skipped = ("none", "required", "what it says", "the only one")
    said = {variable.name: variable.default for variable in VARIABLES
            if variable.default not in skipped and not variable.name.startswith("DRAFT_")}
    assert settings(TARGET_URL="http://a:1", **said) == bare


# ---------------------------------------------------------------------------------------------
# The process


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run(*argv: str, **said: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fleet.proxy", *argv], env=variables(**said), cwd=ROOT,
                          capture_output=True, text=True, timeout=30, check=False)


def test_the_environment_alone_starts_it_and_its_health_is_seen() -> None:
    port = free_port()
    said = variables(TARGET_URL=f"http://127.0.0.1:{free_port()}", TARGET_MODEL="small", LISTEN=f"127.0.0.1:{port}")
    with subprocess.Popen([sys.executable, "-m", "fleet.proxy"], env=said, cwd=ROOT, stderr=subprocess.PIPE,
                          text=True) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline() == f"quarterdeck: the proxy serves at http://127.0.0.1:{port}\n"
            models = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=10).json()
            assert [model["id"] for model in models["data"]] == ["small"]
            assert health("127.0.0.1", port) == health("0.0.0.0", port) == 0
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    assert run("--health", LISTEN=f"127.0.0.1:{port}", TARGET_URL="http://127.0.0.1:1").returncode == 1


def test_a_wrong_environment_ends_with_code_3_and_no_traceback() -> None:
    ended = run(TARGET_URL="ftp://a", LISTEN="here")
    assert ended.returncode == 3 and ended.stdout == ""
    assert [line.split(":")[1].strip() for line in ended.stderr.splitlines()] == [
        "QUARTERDECK_TARGET_URL", "QUARTERDECK_LISTEN"]
    assert run("--nonsense").returncode == 2 and run("--variables").stdout.strip() == table()
