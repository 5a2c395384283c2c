"""A client's request as it goes to an upstream, and an upstream's headers as they go to the client."""

from __future__ import annotations

import json

from fleet.proxy.answers import prepare_request
from fleet.proxy.exchange import BackendKind, Call, Headers, RepairSettings
from fleet.proxy.upstream import Upstream

# Of one connection only, or meant for this proxy, or telling an upstream things that it could be misled by.
_NOT_SENT_ON = frozenset((
    b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
    b"content-length", b"authorization", b"x-api-key", b"api-key", b"cookie", b"accept-encoding", b"origin",
    b"referer", b"forwarded", b"via", b"x-real-ip", b"x-http-method-override", b"x-original-url", b"x-rewrite-url"))
_NOT_SENT_ON_PREFIXES = (b"proxy-", b"sec-", b"x-forwarded-", b"access-control-")
_NOT_SENT_BACK = frozenset((
    b"connection", b"keep-alive", b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"server", b"date",
    b"set-cookie", b"alt-svc", b"www-authenticate"))
_NOT_SENT_BACK_PREFIXES = (b"proxy-", b"access-control-")


def request_body(call: Call, upstream: Upstream, model: str, repair: RepairSettings) -> bytes:
    """The body, byte for byte as it came unless it must be changed.

    It must where an alias or a group has to become the upstream's own name for the model, where usage has to be asked
    for, and where the caller's key allows some models only: of two `model` keys the upstream might read the other one.
    """
    asked = call.parsed
    if asked is None:
        return call.body
    changed = asked
    named = asked.get("model")
    wanted = model if model in upstream.models else (upstream.models[0] if len(upstream.models) == 1 else "")
    if isinstance(named, str) and wanted and named != wanted and named not in upstream.models \
            and (model != named or model in (upstream.settings.group, upstream.name)):
        changed = {**asked, "model": wanted}
    if upstream.settings.backend is not BackendKind.LLAMA_SERVER:
        changed = prepare_request(changed, repair, call.kind)
    if changed is asked and not call.caller.models:
        return call.body
    return json.dumps(changed, separators=(",", ":")).encode()


def request_head(call: Call, upstream: Upstream, size: int) -> bytes:
    """Request line and headers, with the empty line."""
    place, key = upstream.place, upstream.settings.key
    named = _nominated(call.headers)
    lines = [f"{call.method} {place.prefix}{call.path} HTTP/1.1".encode("ascii"),
             b"host: " + place.host_header.encode("ascii"), b"accept-encoding: identity"]
    lines += [name + b": " + value for name, value in call.headers
              if name not in _NOT_SENT_ON and not name.startswith(_NOT_SENT_ON_PREFIXES) and name not in named]
    if key:
        lines.append(b"authorization: Bearer " + key.encode("latin-1"))
    if size or call.method != "GET":
        lines.append(b"content-length: %d" % size)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def answer_headers(headers: Headers) -> Headers:
    """What of an upstream's headers the client gets."""
    named = _nominated(headers)
    return [(name, value) for name, value in headers
            if name not in _NOT_SENT_BACK and not name.startswith(_NOT_SENT_BACK_PREFIXES) and name not in named]


def _nominated(headers: Headers | tuple[tuple[bytes, bytes], ...]) -> frozenset[bytes]:
    """Headers that Connection says are of this connection only."""
    return frozenset(word.strip().lower() for name, value in headers if name == b"connection"
                     for word in value.split(b","))
