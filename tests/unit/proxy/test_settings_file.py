"""A detached proxy's settings: what is written is what is read, and nothing else is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.errors import ConfigError
from fleet.proxy.__main__ import main
from fleet.proxy.access import Key
from fleet.proxy.exchange import (
    BackendKind,
    HoldSettings,
    Limits,
    ProxySettings,
    RepairSettings,
    UpstreamSettings,
)
from fleet.proxy.settings_file import SIZE_LIMIT, from_json, read_settings, to_json
from fleet.speculation.settings import DrafterKind, DrafterSettings, SpeculationMode, SpeculationSettings

SECRET = "s3cret-of-a-client"
FULL = ProxySettings(
    host="10.0.0.4", port=9000, aliases={"gpt": "big"}, default_model="big", allow_open=True, retries=0,
    upstreams=(UpstreamSettings("one", "http://10.0.0.5:8080", BackendKind.VLLM, ("big",), key="server-key", slots=4),
               UpstreamSettings("two", "http://10.0.0.6:8080", speculation=SpeculationSettings(
                   SpeculationMode.STRIDED, (DrafterSettings("pi", "http://10.0.0.7:11434", DrafterKind.OLLAMA, "small",
                                                             "draft-key"),), ngram=False, grace=0))),
    keys=(Key("ann", SECRET, ("big", "small*"), 60, 2), Key("bob", "another")), cors_origins=("https://a.example",),
    names=("llm.home",),
    limits=Limits(body=1000, head_timeout=1.5), hold=HoldSettings(count=3, no_keep_alive_agents=("curl",)),
    repair=RepairSettings(usage=False), control_file="/tmp/x/control", keep_bodies=True)


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("settings", [ProxySettings(), FULL])
def test_settings_come_back_as_they_were(tmp_path: Path, settings: ProxySettings) -> None:
    assert read_settings(written(tmp_path / "s", to_json(settings))) == settings


@pytest.mark.parametrize("change", [
    {"port": "80"}, {"port": True}, {"port": -1}, {"unheard_of": 1}, {"limits": 3}, {"limits": {"body": None}},
    {"hold": {"counted": 1}}, {"repair": {"usage": 1}}, {"keys": {}}, {"keys": [{"name": "a"}]}, {"keys": ["a"]},
    {"keys": [{"name": "a", "secret": SECRET, "models": "big"}]}, {"aliases": {"a": 1}}, {"aliases": []},
    {"upstreams": {}}, {"upstreams": [{"name": "x"}]}, {"cors_origins": [1]}, {"host": None}, {"drain_seconds": 1e99},
])
def test_anything_else_is_refused_and_no_secret_repeated(change: dict[str, object]) -> None:
    said = {**json.loads(to_json(FULL)), **change}
    with pytest.raises(ConfigError) as refused:
        from_json(json.dumps(said).encode())
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b" " * (SIZE_LIMIT + 1)])
def test_what_is_no_settings_at_all_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError):
        read_settings(written(tmp_path / "s", content))


def test_a_file_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="others may read it"):
        read_settings(written(tmp_path / "s", to_json(FULL), 0o640))


def test_a_link_a_folder_and_a_pipe_are_not_followed(tmp_path: Path) -> None:
    import os

    written(tmp_path / "real", to_json(FULL))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "folder", "pipe", "absent"):
        with pytest.raises(ConfigError):
            read_settings(tmp_path / name)


def test_the_program_says_what_is_wrong_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--settings", str(tmp_path / "absent")], {}) == 3
    assert "cannot be read" in capsys.readouterr().err
    assert main(["--settings"], {}) == 2
