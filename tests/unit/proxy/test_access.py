"""Keys: where they may stand, what each may do, and what a client without one is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.errors import ConfigError
from fleet.proxy.access import Access, Key, Lease, check_bind
from fleet.proxy.exchange import Caller, Problem
from fleet.proxy.keys import parse_keys, read_keys, read_secret

LAPTOP = Key("laptop", "secret-of-laptop", ("small", "qwen*"), requests_a_minute=3, concurrent=2)
HASS = Key("hass", "secret-of-hass")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def access(*keys: Key) -> tuple[Access, Clock]:
    clock = Clock()
    return Access(keys, clock), clock


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"a"), (b"authorization", b"Bearer " + key.encode())]


def test_without_keys_everybody_is_nobody() -> None:
    door, _ = access()
    assert door.open and door.caller([]) == Caller()
    assert door.check_model(Caller(), "any") is None and isinstance(door.enter(Caller()), Lease)


@pytest.mark.parametrize("headers", [bearer("secret-of-laptop"), [(b"x-api-key", b"secret-of-laptop")],
                                     [(b"authorization", b"bearer   secret-of-laptop ")],
                                     [*bearer("secret-of-laptop"), (b"x-api-key", b"secret-of-laptop")]])
def test_a_key_is_known_in_the_form_of_either_api(headers: list[tuple[bytes, bytes]]) -> None:
    door, _ = access(LAPTOP, HASS)
    assert door.caller(headers) == Caller("laptop", ("small", "qwen*"))


@pytest.mark.parametrize(("headers", "code"), [
    ([], "missing_api_key"), (bearer("wrong"), "invalid_api_key"), (bearer(""), "invalid_api_key"),
    ([(b"authorization", b"Basic c2VjcmV0")], "invalid_api_key"),
    ([(b"authorization", b"Bearer \xff\xfe")], "invalid_api_key"),
    ([*bearer("secret-of-laptop"), (b"x-api-key", b"secret-of-hass")], "invalid_api_key"),
    (bearer("x" * 5000), "invalid_api_key"),
])
def test_no_key_and_a_wrong_key_are_401(headers: list[tuple[bytes, bytes]], code: str) -> None:
    door, _ = access(LAPTOP, HASS)
    found = door.caller(headers)
    assert isinstance(found, Problem) and (found.status, found.code) == (401, code)
    assert "secret" not in found.message


def test_a_key_is_good_for_its_models() -> None:
    door, _ = access(LAPTOP, HASS)
    caller = door.caller(bearer("secret-of-laptop"))
    assert isinstance(caller, Caller)
    assert door.check_model(caller, "small") is None and door.check_model(caller, "qwen3-8b") is None
    refused = door.check_model(caller, "big")
    assert refused is not None and (refused.status, refused.param) == (403, "model")
    assert door.check_model(Caller("hass"), "big") is None


def test_as_many_at_once_as_the_key_may() -> None:
    door, _ = access(LAPTOP)
    first, second = door.enter(Caller("laptop")), door.enter(Caller("laptop"))
    assert isinstance(first, Lease) and isinstance(second, Lease)
    third = door.enter(Caller("laptop"))
    assert isinstance(third, Problem) and third.status == 429
    first.release()
    first.release()
    assert door.running("laptop") == 1
    assert isinstance(door.enter(Caller("laptop")), Lease)


def test_as_many_a_minute_as_the_key_may_and_when_to_come_again() -> None:
    door, clock = access(LAPTOP)
    for _ in range(3):
        lease = door.enter(Caller("laptop"))
        assert isinstance(lease, Lease)
        lease.release()
        clock.now += 10
    refused = door.enter(Caller("laptop"))
    assert isinstance(refused, Problem) and refused.retry_after == pytest.approx(30)
    clock.now += 30
    assert isinstance(door.enter(Caller("laptop")), Lease)


def test_a_secret_is_shown_by_nothing() -> None:
    assert "secret-of" not in repr(LAPTOP) and "secret-of" not in str(LAPTOP)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    check_bind(host, has_keys=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.4", "myhost"])
def test_beyond_loopback_a_key_is_needed_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match="without a key") as caught:
        check_bind(host, has_keys=False)
    assert "allow_open" in caught.value.remedy
    check_bind(host, has_keys=True)
    check_bind(host, has_keys=False, explicit=True)


# ---------------------------------------------------------------------------------------------
# Files


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = key_file(tmp_path, "# ours\nlaptop secret-of-laptop models=small,qwen* requests_a_minute=3 concurrent=2\r\n"
                              "\n  only-a-key-1  \n")
    assert read_keys(path) == (LAPTOP, Key("key4", "only-a-key-1"))
    assert read_secret(key_file(tmp_path, "sk-123456789\n")) == "sk-123456789"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_a_file_that_others_can_read_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="other users") as caught:
        read_keys(key_file(tmp_path, "a secret-of-a", mode))
    assert caught.value.remedy.startswith("Make it yours alone: chmod 600 ")


def test_what_is_no_file_of_keys_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, key_file(tmp_path, "# nothing\n")):
        with pytest.raises(ConfigError):
            read_keys(path)
    with pytest.raises(ConfigError, match="2 keys"):
        read_secret(key_file(tmp_path, "one-key-here\ntwo-key-here\n"))
    binary = key_file(tmp_path, "")
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_keys(binary)


def test_a_pipe_in_place_of_a_file_does_not_wait_for_ever(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(ConfigError, match="no plain file"):
        read_keys(pipe)


def test_every_wrong_line_is_told_by_its_number_and_none_by_its_key() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_keys("a short\nb long-enough-1 models=\nc long-enough-2 speed=4\nd long-enough-3 concurrent=0\n"
                   "e long-enough-4\ne long-enough-5\nf long-enough-4\ng schl\u00fcssel-lang", "keys")
    for number in (1, 2, 3, 4, 6, 7, 8):
        assert f"line {number}:" in caught.value.what
    assert "long-enough" not in str(caught.value) and "line 5:" not in caught.value.what
