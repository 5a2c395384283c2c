"""Heads that are refused before anything is read of the body, and any head at all without an exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.proxy.exchange import Headers, Limits, Problem
from fleet.proxy.guard import (
    BodyMeter,
    check_head,
    check_site,
    cors_headers,
    preflight_headers,
    upstream_path,
)

HOST: tuple[bytes, bytes] = (b"host", b"127.0.0.1:8088")
LIMITS = Limits(body=1000, head=4000)


def check(*headers: tuple[bytes, bytes], target: bytes = b"/v1/models", method: str = "POST") -> Problem | None:
    return check_head(method, target, [HOST, *headers], LIMITS)


def test_an_ordinary_request_passes() -> None:
    assert check((b"content-length", b"12"), (b"authorization", b"Bearer x"), target=b"/v1/models?a=%20b") is None
    assert check((b"transfer-encoding", b"chunked"), (b"upgrade", b"h2c")) is None
    for host in (b"a.example", b"[::1]:80", b"[fe80::1%25eth0]", b"10.0.0.1"):
        assert check_head("GET", b"/", [(b"host", host)], LIMITS) is None


@pytest.mark.parametrize(("headers", "status"), [
    ([(b"content-length", b"1"), (b"transfer-encoding", b"chunked")], 400),
    ([(b"content-length", b"1"), (b"content-length", b"1")], 400),
    ([(b"content-length", b"+1")], 400), ([(b"content-length", b"1,1")], 400), ([(b"content-length", b"")], 400),
    ([(b"content-length", b"\xb2")], 400), ([(b"content-length", b"9" * 30)], 400),
    ([(b"transfer-encoding", b"gzip, chunked")], 400), ([(b"transfer-encoding", b"xchunked")], 400),
    ([(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"identity")], 400),
    ([(b"content-length", b"1001")], 413),
    ([HOST], 400), ([(b"x-a", b"b\r\nx-c: d")], 400), ([(b"x-a", b"b\x00")], 400), ([(b"x a", b"b")], 400),
    ([(b"", b"b")], 400), ([(b"content-encoding", b"gzip")], 415),
    ([(b"authorization", b"a"), (b"authorization", b"b")], 400),
    ([(b"x-a", b"b" * 5000)], 431), ([(b"x-%d" % n, b"") for n in range(200)], 431),
])
def test_heads_that_are_ambiguous_or_too_large(headers: Headers, status: int) -> None:
    found = check(*headers)
    assert found is not None and found.status == status and found.message.endswith(".")


@pytest.mark.parametrize("host", [b"", b"a b", b"a@b", b"a/b", b"http://a", b"a,b", b"a:b", b"[::1", b"a\tb"])
def test_hosts_that_are_none(host: bytes) -> None:
    found = check_head("GET", b"/", [(b"host", host)], LIMITS)
    assert found is not None and found.code == "bad_host"
    assert check_head("GET", b"/", [], LIMITS) is not None


@pytest.mark.parametrize("target", [
    b"http://169.254.169.254/latest", b"//evil.example/v1", b"evil:80", b"*", b"", b"/v1/../../admin", b"/v1/%2e%2e/x",
    b"/v1/%2E%2E%2Fx", b"/v1/%252e%252e/x", b"/a%0d%0aHost:%20b", b"/a b", b"/a\r\nb", b"/a%00", b"/\\evil", b"/a%5cb",
    b"/v1//x", b"/\xff", b"/a#b",
])
def test_targets_that_are_no_plain_path(target: bytes) -> None:
    found = check(target=target)
    assert found is not None and found.status == 400
    assert upstream_path(target) is None


def test_a_target_without_end_and_an_unknown_method() -> None:
    long, connect = check(target=b"/" + b"a" * 10_000), check(method="CONNECT")
    assert long is not None and long.status == 414
    assert connect is not None and connect.status == 405
    assert upstream_path(b"/v1/models?x=1") == "/v1/models?x=1"


@given(st.text(max_size=8), st.binary(max_size=60), st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)),
                                                             max_size=12))
def test_no_head_makes_an_exception(method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    for at in (target, b"/" + target):
        assert isinstance(check_head(method, at, headers, LIMITS), Problem | None)
        assert isinstance(check_head("POST", at, [HOST, *headers], LIMITS), Problem | None)
    assert isinstance(check_site([HOST, *headers], listen="127.0.0.1"), Problem | None)
    for name, value in headers:
        check_site([(b"host", value), (b"origin", b"http://" + name)], listen="127.0.0.1")


@given(st.sampled_from([b"content-length", b"transfer-encoding", b"host", b"origin"]), st.binary(max_size=30))
def test_what_passes_has_one_length(name: bytes, value: bytes) -> None:
    if check((name, value)) is None and name == b"content-length":
        assert 0 <= int(value) <= LIMITS.body


def test_a_body_is_counted_while_it_comes() -> None:
    meter = BodyMeter(LIMITS)
    assert meter.take(b"x" * 1000) is None
    found = meter.take(b"x")
    assert found is not None and found.status == 413 and meter.size == 1001


@pytest.mark.parametrize(("host", "origin", "fine"), [
    (b"127.0.0.1:8088", b"", True), (b"localhost:8088", b"", True), (b"a.localhost", b"", True),
    (b"evil.example", b"", False), (b"127.0.0.1:8088", b"http://evil.example", False),
    (b"127.0.0.1:8088", b"http://127.0.0.1:8088", True), (b"127.0.0.1:8088", b"null", False),
    (b"127.0.0.1:8088", b"vscode-webview://abc", True), (b"127.0.0.1:8088", b"https://chat.example", True),
])
def test_pages_of_others_do_not_reach_a_proxy_on_loopback(host: bytes, origin: bytes, fine: bool) -> None:
    headers = [(b"host", host), *([(b"origin", origin)] if origin else [])]
    found = check_site(headers, listen="127.0.0.1", origins=("https://chat.example",))
    assert (found is None) is fine
    if found is not None:
        assert found.status == 403


def test_a_proxy_beyond_loopback_goes_by_any_name() -> None:
    assert check_site([(b"host", b"atlas.lan:8088")], listen="0.0.0.0") is None
    assert check_site([(b"host", b"atlas.lan")], listen="127.0.0.1", names=("Atlas.lan",)) is None


def test_cors_is_off_unless_an_origin_is_allowed() -> None:
    assert cors_headers(b"https://a.example", ()) == [] and preflight_headers(b"https://a.example", ()) == []
    assert cors_headers(b"https://b.example", ("https://a.example",)) == []
    allowed = dict(cors_headers(b"https://a.example", ("https://a.example",)))
    assert allowed[b"access-control-allow-origin"] == b"https://a.example"
    asked = dict(preflight_headers(b"https://a.example", ("*",), b"x-one, x-two"))
    assert asked[b"access-control-allow-headers"] == b"x-one, x-two"
    assert asked[b"access-control-allow-origin"] == b"*"
    assert b"\n" not in dict(preflight_headers(b"https://a.example", ("*",), b"x\ny"))[b"access-control-allow-headers"]
