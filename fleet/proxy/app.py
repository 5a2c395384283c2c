"""The proxy's surface: an ASGI application, bare because each layer in between costs time at each part of a stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import parse_qsl

from fleet.proxy.access import Access
from fleet.proxy.answers import wants_usage
from fleet.proxy.control import BASE, BODY_LIMIT, Control
from fleet.proxy.errors import bad_request, error_body, error_headers, not_found, too_large
from fleet.proxy.exchange import Answer, ApiKind, Call, Caller, Headers, Problem
from fleet.proxy.guard import BodyMeter, check_head, check_site, cors_headers, preflight_headers
from fleet.proxy.metrics import CONTENT_TYPE
from fleet.proxy.ollama import FaceRequest, OllamaFace
from fleet.proxy.proxy import Proxy
from fleet.proxy.wire import WireError

Scope = MutableMapping[str, object]
Message = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = (b"content-type", b"application/json")
SSE_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
BODIES_AT_ONCE = 8               # times the largest body: what all that are still on their way may take of memory
UNFINISHED = "too_much_unfinished"
COMMENT = b": waiting\n\n"       # to a client whose upstream has not answered yet
_POSTS = {
    "/v1/chat/completions": ApiKind.CHAT, "/chat/completions": ApiKind.CHAT,
    "/v1/completions": ApiKind.COMPLETION, "/v1/embeddings": ApiKind.EMBEDDINGS, "/embeddings": ApiKind.EMBEDDINGS,
    "/v1/messages": ApiKind.MESSAGES, "/v1/responses": ApiKind.RESPONSES,
    "/completion": ApiKind.NATIVE, "/completions": ApiKind.NATIVE, "/infill": ApiKind.NATIVE,
    "/embedding": ApiKind.EMBEDDINGS, "/v1/rerank": ApiKind.EMBEDDINGS, "/rerank": ApiKind.EMBEDDINGS,
    "/v1/messages/count_tokens": ApiKind.OTHER, "/tokenize": ApiKind.OTHER, "/detokenize": ApiKind.OTHER,
    "/apply-template": ApiKind.OTHER, "/props": ApiKind.OTHER,
}
_GETS = frozenset(("/slots", "/props"))


class ClientGone(Exception):
    """The client has closed its connection."""


class App:
    """ASGI."""

    def __init__(self, proxy: Proxy, access: Access, *, control: Control | None = None) -> None:
        self.proxy = proxy
        self.access = access
        self.control = control
        self._ollama = OllamaFace(proxy.forward, clock=proxy.clock, wall=time.time)
        self._settings = proxy.settings
        self._coming = 0             # bytes of bodies that are not whole yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        headers: Headers = list(scope["headers"])        # type: ignore[call-overload]
        path, method = str(scope["path"]), str(scope["method"])
        raw, query = scope.get("raw_path"), scope.get("query_string")
        raw = raw if isinstance(raw, bytes) else path.encode()
        query = query if isinstance(query, bytes) else b""
        target = raw + b"?" + query if query else raw
        settings = self._settings
        ambiguous = check_head(method, target, headers, settings.limits)
        problem = ambiguous or check_site(headers, listen=settings.host, origins=settings.cors_origins,
                                          names=settings.names)
        origin = next((value for name, value in headers if name == b"origin"), b"") if settings.cors_origins else b""
        cors = cors_headers(origin, settings.cors_origins) if origin else []
        if problem is not None:
            # Where a head can be read in two ways, what follows it is somebody's guess: nothing more is read there.
            await _refuse(send, problem, path, cors, close=ambiguous is not None)
        elif path.startswith(BASE):
            await self._control(scope, method, path, query, headers, receive, send)
        elif method == "OPTIONS" and cors:
            asked = next((value for name, value in headers if name == b"access-control-request-headers"), b"")
            await _whole(send, 204, b"", preflight_headers(origin, settings.cors_origins, asked))
        elif path == "/health" or path == "/v1/health":
            await self._health(send, method, cors)
        else:
            caller = self.access.caller(headers)
            if isinstance(caller, Problem):
                await _refuse(send, caller, path, cors)
            else:
                await self._for(caller, scope, method, path, target, headers, cors, receive, send)

    async def _for(self, caller: Caller, scope: Scope, method: str, path: str, target: bytes, headers: Headers,
                   cors: Headers, receive: Receive, send: Send) -> None:
        """A request of somebody who may come in."""
        kind = _POSTS.get(path) if method == "POST" else None
        if kind is not None:
            await self._forward(kind, caller, target, headers, cors, _client(scope), receive, send)
        elif method == "GET" and path in _GETS:
            await self._pass(caller, target, headers, cors, _client(scope), receive, send)
        elif method == "GET" and (path in ("/v1/models", "/models") or path.startswith("/v1/models/")):
            await self._models(caller, path, cors, send)
        elif method == "GET" and path == "/metrics":
            await _whole(send, 200, self.proxy.metrics(), [(b"content-type", CONTENT_TYPE), *cors])
        elif method == "GET" and path == "/events":
            await self._events(cors, receive, send)
        elif self._ollama.handles(path):
            await self._face(caller, method, path, headers, cors, _client(scope), receive, send)
        elif method not in ("GET", "POST") or path in _POSTS or path in _GETS:
            await _refuse(send, Problem(405, "method_not_allowed", f"{path} does not take {method}.",
                                        "invalid_request_error"), path, cors)
        else:
            await _refuse(send, not_found(f"This proxy has no {path[:200]}."), path, cors)

    # --- to the upstreams ----------------------------------------------------------------------------

    async def _forward(self, kind: ApiKind, caller: Caller, target: bytes, headers: Headers, cors: Headers,
                       client: str, receive: Receive, send: Send) -> None:
        path = target.partition(b"?")[0].decode("ascii")
        body = await self._body(receive)
        if body is None:
            return                                      # the client left before it had said all
        if isinstance(body, Problem):
            await _refuse(send, body, path, cors)
            return
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            await _refuse(send, bad_request("The body of the request is no JSON object."), path, cors)
            return
        model = asked.get("model", "")
        if not isinstance(model, str):
            await _refuse(send, bad_request("The name of the model is no text.", "model"), path, cors)
            return
        call = Call(kind, target.decode("ascii"), body, "POST", model, asked.get("stream") is True, tuple(headers),
                    caller, client, client_wants_usage=wants_usage(asked), parsed=asked)
        await self._send(call, path, cors, receive, send)

    async def _pass(self, caller: Caller, target: bytes, headers: Headers, cors: Headers, client: str,
                    receive: Receive, send: Send) -> None:
        """A question to a llama-server, which `model` or `upstream` in the query chooses among several."""
        query = dict(parse_qsl(target.partition(b"?")[2].decode("ascii")))
        call = Call(ApiKind.OTHER, target.decode("ascii"), b"", "GET", query.get("upstream") or query.get("model", ""),
                    headers=tuple(headers), caller=caller, client=client)
        await self._send(call, target.partition(b"?")[0].decode("ascii"), cors, receive, send)

    async def _send(self, call: Call, path: str, cors: Headers, receive: Receive, send: Send) -> None:
        problem = self.access.check_model(call.caller, call.model)
        if problem is not None:
            await _refuse(send, problem, path, cors)
            return

        started = False

        async def early() -> None:
            nonlocal started
            if not started:
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *cors]})
            await send({"type": "http.response.body", "body": COMMENT, "more_body": True})

        async def work() -> None:
            answer = await self.proxy.forward(replace(call, early=early) if call.streaming else call)
            try:
                await _deliver(answer, cors, send, self.proxy.clock)
            finally:
                await answer.close()

        await self._while_there(call.caller, path, cors, receive, send, work)

    async def _face(self, caller: Caller, method: str, path: str, headers: Headers, cors: Headers, client: str,
                    receive: Receive, send: Send) -> None:
        """A request in the form of Ollama."""
        body = await self._body(receive)
        if body is None:
            return
        if isinstance(body, Problem):
            await _refuse(send, body, path, cors)
            return
        asked = FaceRequest(method, path, body, tuple(headers), caller, client,
                            check_model=lambda model: self.access.check_model(caller, model))

        async def work() -> None:
            answer = await self._ollama.answer(asked)
            try:
                await send({"type": "http.response.start", "status": answer.status,
                            "headers": [*answer.headers, *cors]})
                async for chunk in answer.chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                await answer.close()

        await self._while_there(caller, path, cors, receive, send, work)

    async def _while_there(self, caller: Caller, path: str, cors: Headers, receive: Receive, send: Send,
                           work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` unless the key may do no more now; the client's leaving cancels it."""
        lease = self.access.enter(caller) if not self.proxy.stopping else Problem(
            503, "stopping", "The proxy is being stopped.", retry_after=5.0)
        if isinstance(lease, Problem):
            await _refuse(send, lease, path, cors)
            return
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(_until_gone(receive))
                await work()
                watch.cancel()
        except* ClientGone:
            pass
        except* WireError:
            pass           # cut off in the middle of what is no stream: its length tells the client that it is not all
        finally:
            lease.release()

    async def _body(self, receive: Receive) -> bytes | Problem | None:
        """The whole body; None when the client left."""
        meter = BodyMeter(self._settings.limits)
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._settings.limits.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    assert isinstance(part, bytes)
                    self._coming += len(part)
                    if (problem := meter.take(part)) is not None:
                        return problem
                    if self._coming > BODIES_AT_ONCE * self._settings.limits.body:
                        return Problem(503, UNFINISHED, "Too many requests are being sent at once, none of them whole.",
                                       retry_after=5.0)
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            return Problem(408, "request_timeout", "The body of the request did not come in time.",
                           "invalid_request_error")
        finally:
            self._coming -= meter.size

    # --- of the proxy itself -------------------------------------------------------------------------

    async def _health(self, send: Send, method: str, cors: Headers) -> None:
        """200 as long as the proxy serves; whether its upstreams do is told beside, for to hold is no failure."""
        ups = self.proxy.routes.upstreams.values()
        status = 503 if self.proxy.stopping else 200
        said = {"status": "stopping" if self.proxy.stopping else "ok",
                "upstreams": {"configured": len(ups), "ready": sum(up.health.state == "ready" for up in ups)}}
        await _whole(send, status, _json(said) if method != "HEAD" else b"", [JSON, *cors])

    async def _models(self, caller: Caller, path: str, cors: Headers, send: Send) -> None:
        found = [entry for entry in self.proxy.forward.models(Caller())
                 if self.access.check_model(caller, str(entry["id"])) is None]
        if not path.startswith("/v1/models/"):
            await _whole(send, 200, _json({"object": "list", "data": found}), [JSON, *cors])
            return
        wanted = path.removeprefix("/v1/models/")
        entry = next((entry for entry in found if entry["id"] == wanted), None)
        if entry is None:
            await _refuse(send, not_found(f"No model {wanted[:200]!r} is served here.", "model_not_found"), path, cors)
        else:
            await _whole(send, 200, _json(entry), [JSON, *cors])

    async def _events(self, cors: Headers, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.TaskGroup() as group, aclosing(self.proxy.records.events.listen()) as blocks:
                group.create_task(_until_gone(receive))
                started = False
                async for block in blocks:
                    if not started:
                        await send({"type": "http.response.start", "status": 200, "headers": [
                            (b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *cors]})
                        started = True
                    await send({"type": "http.response.body", "body": block, "more_body": True})
                    if self.proxy.stopping:
                        raise ClientGone
        except* ClientGone:
            pass
        except* OverflowError as group_error:
            message = str(group_error.exceptions[0])
            await _refuse(send, Problem(503, "too_many_listeners", message, retry_after=30.0), "/events", cors)

    async def _control(self, scope: Scope, method: str, path: str, query: bytes, headers: Headers, receive: Receive,
                       send: Send) -> None:
        problem = not_found("Not here.")
        if self.control is not None:
            problem = self.control.check(_client(scope), headers, _server(scope))
        if problem is not None or self.control is None:
            await _refuse(send, problem or not_found("Not here."), path, [])
            return
        body = await self._body(receive) if method in ("POST", "PUT") else b""
        if body is None:
            return
        if isinstance(body, bytes) and len(body) > BODY_LIMIT:
            body = too_large(BODY_LIMIT)
        if isinstance(body, Problem):
            await _refuse(send, body, path, [])
            return
        asked = dict(parse_qsl(query.decode("latin-1"), max_num_fields=20))
        status, said = await self.control.answer(method, path, asked, body)
        await _whole(send, status, said, [JSON])


async def _deliver(answer: Answer, cors: Headers, send: Send, clock: Callable[[], float]) -> None:
    """The answer, part by part; how long the client takes for one is written down, for who takes none any more."""
    exchange = answer.exchange
    task = asyncio.current_task()
    exchange.drop = task.cancel if task is not None else None
    async with aclosing(answer.chunks) as chunks:
        if not answer.begun:
            await send({"type": "http.response.start", "status": answer.status,
                        "headers": [*answer.headers, (b"x-request-id", exchange.id.encode()), *cors]})
        async for chunk in chunks:
            exchange.sending_since = clock()
            ended = answer.last()
            await send({"type": "http.response.body", "body": chunk, "more_body": not ended})
            exchange.sending_since = None
            if ended:
                async for _ in chunks:          # nothing comes any more: it writes down how it ended
                    pass
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone


async def _whole(send: Send, status: int, body: bytes, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status,
                "headers": [*headers, (b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Send, problem: Problem, path: str, cors: Headers, *, close: bool = False) -> None:
    headers = [*error_headers(problem), *cors]
    if close or problem.status in (408, 413, 431) or problem.code == UNFINISHED:
        headers.append((b"connection", b"close"))       # the rest of the request is not read
    await _whole(send, problem.status, error_body(problem, path), headers)


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if isinstance(client, tuple | list) and client else ""


def _server(scope: Scope) -> str:
    server = scope.get("server")
    return str(server[0]) if isinstance(server, tuple | list) and server else ""


def _json(said: object) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()
