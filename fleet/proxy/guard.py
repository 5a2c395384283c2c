"""Requests that are refused by their head alone: too large, ambiguous, or made to reach what they must not.

A request never chooses a host: upstreams come from configuration, and what goes to them is a path that begins with one
slash. A head that two servers could read in two ways (request smuggling) is refused, not interpreted. The HTTP parser
refuses some of it before; these checks do not count on that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from fleet.discovery.addresses import split_host_port
from fleet.proxy.access import is_loopback
from fleet.proxy.errors import bad_request, forbidden, too_large
from fleet.proxy.exchange import Headers, Limits, Problem

HEADERS_KEPT = 100           # headers of one request
VALUE_LIMIT = 16 * 1024      # bytes of one header
TARGET_LIMIT = 8 * 1024      # bytes of path and query

METHODS = frozenset(("GET", "HEAD", "POST", "OPTIONS", "DELETE", "PUT", "PATCH"))

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")           # RFC 9110, 5.6.2
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")                      # RFC 9110, 5.5: no CR, LF or NUL
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]{2,45}(?:%25[\w.\-]{1,32})?\]|[A-Za-z0-9_.\-]{1,255})(?::[0-9]{1,5})?")
_DIGITS = re.compile(rb"[0-9]{1,19}")
_ONCE = (b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization", b"expect", b"origin")


def check_head(method: str, target: bytes, headers: Headers, limits: Limits) -> Problem | None:
    """What is wrong with the head of a request; None when it may be read further.

    Args:
        target: path as it was sent, still percent-encoded, with or without its query.
        headers: names in lower case, in the order in which they came, repeated ones too.
    """
    if method not in METHODS:
        return Problem(405, "method_not_allowed", "This proxy does not know the method of the request.",
                       "invalid_request_error")
    return _target(target) or _headers(headers, limits) or _framing(headers, limits) or _host(headers)


def check_site(headers: Headers, *, listen: str, origins: Iterable[str] = (),
               names: Iterable[str] = ()) -> Problem | None:
    """Refuse what a web page of somebody else sends through the browser of a user.

    A page cannot hide its Origin; and a page whose name was pointed at this machine (DNS rebinding) names itself in
    Host. A proxy on loopback goes by names of loopback alone.

    Args:
        listen: the host that the proxy is bound to.
        origins: allowed web origins, "*" for all.
        names: further host names of this proxy.
    """
    host, origin = _value(headers, b"host").decode("latin-1"), _value(headers, b"origin").decode("latin-1")
    allowed = tuple(origins)
    name = (split_host_port(host) or (host, None))[0].lower()
    if is_loopback(listen) and name and not is_loopback(name) and not name.endswith(".localhost") \
            and name not in {other.lower() for other in names}:
        return forbidden(f"This proxy listens on {listen} and is not called {name[:200]}. Use http://{listen}.",
                         "host_not_allowed")
    if not origin.lower().startswith(("http://", "https://", "null")) or "*" in allowed or origin in allowed:
        return None                  # programs that are built like pages (app://, vscode-webview://) are no pages
    if origin.lower().partition("://")[2] == host.lower():
        return None
    return forbidden(f"Pages of {origin[:200]} may not use this proxy. Allow them with `cors` in the proxy's settings.",
                     "origin_not_allowed")


def cors_headers(origin: bytes, origins: Iterable[str]) -> Headers:
    """What a browser wants to see before it lets a page of `origin` read an answer; [] when CORS is off for it."""
    allowed = tuple(origins)
    if not origin or ("*" not in allowed and origin.decode("latin-1") not in allowed):
        return []
    return [(b"access-control-allow-origin", b"*" if "*" in allowed else origin), (b"vary", b"Origin"),
            (b"access-control-expose-headers", b"retry-after, x-request-id")]


def preflight_headers(origin: bytes, origins: Iterable[str], asked_headers: bytes = b"") -> Headers:
    """The answer to a browser's OPTIONS: what a page of `origin` may send; [] when CORS is off for it."""
    headers = cors_headers(origin, origins)
    if not headers:
        return []
    asked = asked_headers if _VALUE.fullmatch(asked_headers) and len(asked_headers) <= 1024 else b""
    return [*headers, (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-allow-headers", asked or b"authorization, content-type, x-api-key"),
            (b"access-control-max-age", b"600")]


class BodyMeter:
    """Counts a body while it comes: a chunked one does not say beforehand how long it is."""

    def __init__(self, limits: Limits) -> None:
        self.size = 0                # bytes so far
        self._limit = limits.body

    def take(self, piece: bytes) -> Problem | None:
        """413 as soon as the body is longer than it may be."""
        self.size += len(piece)
        return too_large(self._limit) if self.size > self._limit else None


def upstream_path(target: bytes) -> str | None:
    """The target as a path that can be put behind an upstream's address without reaching anything else; None if not."""
    return target.decode("ascii") if _target(target) is None else None


def _target(target: bytes) -> Problem | None:
    if len(target) > TARGET_LIMIT:
        return Problem(414, "target_too_long", f"The path is longer than {TARGET_LIMIT} bytes.",
                       "invalid_request_error")
    if not target.startswith(b"/") or target.startswith(b"//"):
        return bad_request("The target of the request is not a path: this proxy forwards to its own servers alone.",
                           code="bad_target")
    if any(byte <= 0x20 or byte >= 0x7F or byte in b"\\#" for byte in target):
        return bad_request("The path holds a character that has to be percent-encoded.", code="bad_target")
    path = unquote_to_bytes(target.partition(b"?")[0])
    if any(byte < 0x20 or byte == 0x7F or byte == 0x5C for byte in path) or b"//" in path \
            or any(part in (b".", b"..") for part in path.split(b"/")) or _encoded_again(path):
        return bad_request("The path leads out of itself, or hides a control character.", code="bad_target")
    return None


def _encoded_again(path: bytes) -> bool:
    """Percent-encoded twice: an upstream that decodes once more would see another path."""
    again = unquote_to_bytes(path)
    return again != path and (b"/.." in again or b"\\" in again or any(byte < 0x20 for byte in again))


def _headers(headers: Headers, limits: Limits) -> Problem | None:
    if len(headers) > HEADERS_KEPT:
        return _head_too_large(f"The request has more than {HEADERS_KEPT} headers.")
    size = 0
    for name, value in headers:
        size += len(name) + len(value) + 4
        if len(value) > VALUE_LIMIT or size > limits.head:
            return _head_too_large(f"The headers are larger than this proxy takes: {VALUE_LIMIT} bytes each, "
                                   f"{limits.head} in all.")
        if not _TOKEN.fullmatch(name):
            return bad_request("The name of a header holds a character that it must not.", code="bad_header")
        if not _VALUE.fullmatch(value):
            return bad_request("The value of a header holds a line break or another control character.",
                               code="bad_header")
    return None


def _head_too_large(message: str) -> Problem:
    return Problem(431, "headers_too_large", message, "invalid_request_error")


def _framing(headers: Headers, limits: Limits) -> Problem | None:
    """One length, told once and in one way: anything else is read differently by different servers."""
    names = [name for name, _ in headers]
    for once in _ONCE:
        if names.count(once) > 1:
            return bad_request(f"The header {once.decode()} is there more than once.", code="bad_framing")
    length, encoding = _value(headers, b"content-length"), _value(headers, b"transfer-encoding")
    if b"content-length" in names and b"transfer-encoding" in names:
        return bad_request("The request tells its length in two ways: Content-Length and Transfer-Encoding.",
                           code="bad_framing")
    if b"transfer-encoding" in names and encoding.strip().lower() != b"chunked":
        return bad_request("The only Transfer-Encoding that this proxy reads is chunked.", code="bad_framing")
    if b"content-length" in names and not _DIGITS.fullmatch(length):
        return bad_request("Content-Length is not a number.", code="bad_framing")
    if length and int(length) > limits.body:
        return too_large(limits.body)
    coding = _value(headers, b"content-encoding").strip().lower()
    if coding not in (b"", b"identity"):
        return Problem(415, "content_encoding", "The body is compressed. Send it as it is.", "invalid_request_error")
    return None


def _host(headers: Headers) -> Problem | None:
    host = _value(headers, b"host")
    if not any(name == b"host" for name, _ in headers):
        return bad_request("The request names no host.", code="bad_host")
    if not _HOST.fullmatch(host):
        return bad_request("The Host header is no host name or address.", code="bad_host")
    return None


def _value(headers: Headers, wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")
