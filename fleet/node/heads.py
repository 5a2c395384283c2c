"""The heads of HTTP/1.1, both ways, within narrow bounds.

Only what pieces need: GET, answers with a Content-Length, one byte range. Bodies never pass through
here. Whatever breaks a rule is BadHead and the connection is closed; nothing is repaired or guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

MOST_HEAD = 16_384        # bytes of a head
MOST_FIELDS = 64
LONGEST_TARGET = 2_048
MOST_QUERY = 16
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_REQUEST = re.compile(r"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/(1\.[01])")
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5]\d\d)(?: [\x20-\x7e\x80-\xff\t]*)?")
_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(?:\d{1,18}|\*)")
_LENGTH = re.compile(r"\d{1,18}")
_ONCE = frozenset({"host", "content-length", "authorization", "range", "content-range", "transfer-encoding"})


class BadHead(ValueError):
    """A head breaks a rule; str() says which."""


@dataclass(frozen=True)
class Request:
    """`path` is not decoded; `query` is."""

    method: str
    path: str
    query: Mapping[str, str]
    fields: Mapping[str, str]
    keep: bool

    def segments(self) -> list:
        """The parts of the path, decoded: "/models/a%20b/manifest" -> ["models", "a b", "manifest"]."""
        return [unquote(part, errors="strict") for part in self.path.strip("/").split("/")]


@dataclass(frozen=True)
class Answer:
    """The head of a response; `length` is that of its body, `start` the first byte of a 206."""

    status: int
    fields: Mapping[str, str]
    length: int
    start: int | None
    keep: bool


def parse_request(head: bytes) -> Request:
    """A request's head without its empty line."""
    first, fields = _lines(head)
    match = _REQUEST.fullmatch(first)
    if match is None:
        raise BadHead("the request line is none")
    method, target, version = match.groups()
    if len(target) > LONGEST_TARGET:
        raise BadHead("the target is too long")
    path, _, query = target.partition("?")
    if "transfer-encoding" in fields or fields.get("content-length", "0") != "0":
        raise BadHead("a request with a body")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_QUERY, errors="strict")
        unquote(path, errors="strict")
    except ValueError:
        raise BadHead("the target is no UTF-8 or asks too much") from None
    return Request(method, path, dict(pairs), fields, _keeps(version, fields))


def parse_answer(head: bytes) -> Answer:
    """A response's head without its empty line."""
    first, fields = _lines(head)
    match = _STATUS.fullmatch(first)
    if match is None:
        raise BadHead("the status line is none")
    if "transfer-encoding" in fields:
        raise BadHead("an answer in chunks")
    status = int(match[1])
    length = fields.get("content-length", "0" if status in (204, 304) else "")
    if not _LENGTH.fullmatch(length):
        raise BadHead("an answer without its length")
    start = None
    if status == 206:
        spread = _CONTENT_RANGE.fullmatch(fields.get("content-range", ""))
        if spread is None or int(spread[2]) - int(spread[1]) + 1 != int(length):
            raise BadHead("a range that is none")
        start = int(spread[1])
    return Answer(status, fields, int(length), start, _keeps(first[5:8], fields))


def parse_range(value: str, size: int) -> tuple | None:
    """(start, stop) of one byte range; None to send everything. BadHead: nothing of it is there (416)."""
    match = _RANGE.fullmatch(value.strip())
    if match is None or match.groups() == (None, None):
        return None    # several ranges, or none that is known: HTTP says to ignore the field
    first, last = match.groups()
    if first is None:
        start, stop = max(0, size - int(last)), size
        if int(last) == 0:
            raise BadHead("an empty range")
    else:
        start, stop = int(first), size if last is None else min(size, int(last) + 1)
        if last is not None and int(last) < int(first):
            return None
    if start >= size:
        raise BadHead("a range behind the end")
    return start, stop


def request_head(target: str, host: str, fields: Mapping[str, str]) -> bytes:
    """GET of `target`."""
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def answer_head(status: int, reason: str, length: int, fields: Mapping[str, str], keep: bool) -> bytes:
    """The head of an answer with `length` bytes of body."""
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {length}",
             *(f"{name}: {value}" for name, value in fields.items()),
             f"Connection: {'keep-alive' if keep else 'close'}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _lines(head: bytes) -> tuple:
    if len(head) > MOST_HEAD:
        raise BadHead("the head is too long")
    if b"\0" in head:
        raise BadHead("a NUL byte")
    lines = head.decode("latin-1").split("\r\n")
    if len(lines) - 1 > MOST_FIELDS:
        raise BadHead("too many fields")
    fields: dict = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or "\n" in value or "\r" in value:
            raise BadHead("a field that is none")
        key = name.lower()
        if key in fields:
            if key in _ONCE:
                raise BadHead(f"{key} twice")
            fields[key] += "," + value.strip(" \t")
        else:
            fields[key] = value.strip(" \t")
    return lines[0], fields


def _keeps(version: str, fields: Mapping[str, str]) -> bool:
    wish = fields.get("connection", "").lower()
    return "close" not in wish if version == "1.1" else "keep-alive" in wish
