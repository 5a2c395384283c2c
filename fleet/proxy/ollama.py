"""A thin face for clients that speak Ollama's API alone: its models, /api/chat and /api/generate.

Behind it are the same upstreams as behind /v1; nothing can be pulled, copied or deleted here. What a server that runs
already cannot obey (`num_ctx`, `keep_alive` ...) is ignored, and the header `x-quarterdeck-ignored` names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from fleet.proxy.errors import bad_request, error_headers, not_found, ollama_error
from fleet.proxy.exchange import Answer, Call, Caller, Forward, Headers, Problem
from fleet.proxy.ollama_answer import OllamaAnswer, error_line, stamp
from fleet.proxy.ollama_request import Mapped, chat, generate

VERSION = "0.9.0"            # of Ollama's API, whose shape this is; clients ask for it before they use tools
WHOLE_LIMIT = 64 * 1024 * 1024      # bytes of an answer that comes at once
_JSON: tuple[bytes, bytes] = (b"content-type", b"application/json; charset=utf-8")
_NDJSON: tuple[bytes, bytes] = (b"content-type", b"application/x-ndjson")
_PATHS = {"/api/version": "GET", "/api/tags": "GET", "/api/ps": "GET", "/api/show": "POST", "/api/chat": "POST",
          "/api/generate": "POST"}
_ELSEWHERE = {"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/embed", "/api/embeddings"}


@dataclass(frozen=True, slots=True)
class FaceRequest:
    """A request of a client, let in already."""

    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    caller: Caller = Caller()
    client: str = ""
    check_model: Callable[[str], Problem | None] = lambda model: None    # may this caller use it?


async def _nothing() -> None:
    return None


@dataclass(slots=True)
class FaceAnswer:
    """What the client gets. Close it, whatever happens."""

    status: int
    headers: Headers
    chunks: AsyncGenerator[bytes, None]
    close: Callable[[], Awaitable[None]] = field(default=_nothing)


class OllamaFace:
    """Ollama's API in front of the proxy's upstreams.

    Args:
        forward: the way to them.
        clock: seconds, monotonic.
        wall: epoch seconds.
    """

    def __init__(self, forward: Forward, *, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._forward = forward
        self._clock = clock
        self._wall = wall

    @staticmethod
    def handles(path: str) -> bool:
        """The path is one of Ollama's, also where all there is to say is that it is not served here."""
        return path in _PATHS or path in _ELSEWHERE

    async def answer(self, asked: FaceRequest) -> FaceAnswer:
        """Answer a request; a refusal is an answer too."""
        if asked.path in _ELSEWHERE:
            return _refusal(Problem(501, "not_here", f"{asked.path} is not served here: models are not managed through "
                                    "this proxy. Embeddings are at /v1/embeddings.", "invalid_request_error"))
        wanted = _PATHS.get(asked.path)
        if wanted is None:
            return _refusal(not_found(f"There is no {asked.path} here."))
        if asked.method not in (wanted, "HEAD" if wanted == "GET" else wanted):
            return _refusal(Problem(405, "method_not_allowed", f"{asked.path} wants {wanted}.",
                                    "invalid_request_error"))
        if asked.path == "/api/version":
            return _told({"version": VERSION})
        if asked.path in ("/api/tags", "/api/ps"):
            return _told({"models": [self._listed(entry, running=asked.path == "/api/ps")
                                     for entry in self._forward.models(asked.caller)]})
        body = _body(asked.body)
        if isinstance(body, Problem):
            return _refusal(body)
        model = self._model(body, asked.caller)
        if isinstance(model, Problem):
            return _refusal(model)
        if refused := asked.check_model(model):
            return _refusal(refused)
        if asked.path == "/api/show":
            return self._show(model, asked.caller)
        if not body.get("prompt" if asked.path == "/api/generate" else "messages"):
            return self._loaded(str(body.get("model")), generate=asked.path == "/api/generate")
        mapped = generate(body, model) if asked.path == "/api/generate" else chat(body, model)
        if isinstance(mapped, Problem):
            return _refusal(mapped)
        return await self._ask(asked, mapped, str(body.get("model")))

    # -----------------------------------------------------------------------------------------

    async def _ask(self, asked: FaceRequest, mapped: Mapped, named: str) -> FaceAnswer:
        began, wall = self._clock(), self._wall()
        said = OllamaAnswer(named, mapped.generate, mapped.thinking, began, wall)
        headers = tuple((name, value) for name, value in asked.headers if name != b"content-type")
        answer = await self._forward(Call(
            mapped.kind, mapped.path, json.dumps(mapped.body).encode(), model=str(mapped.body["model"]),
            streaming=mapped.streaming, headers=(*headers, (b"content-type", b"application/json")),
            caller=asked.caller, client=asked.client, client_wants_usage=True, parsed=mapped.body))
        extra: Headers = [(b"x-quarterdeck-ignored", ", ".join(mapped.ignored).encode("ascii", "replace"))] \
            if mapped.ignored else []
        extra = [(name, bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in value)) for name, value in extra]
        kept = [(name, value) for name, value in answer.headers if name in (b"retry-after", b"x-request-id")]
        if answer.status < 400 and mapped.streaming:
            return FaceAnswer(200, [_NDJSON, *kept, *extra], self._lines(answer, said), answer.close)
        try:
            body = await _whole(answer)
        finally:
            await answer.close()
        if body is None:
            return _refusal(Problem(502, "answer_too_large", "The server's answer is larger than this proxy takes."))
        if answer.status >= 400:
            return FaceAnswer(answer.status, [_JSON, *kept], _once(error_line(body, answer.status)))
        status, line = said.whole(body, self._clock())
        return FaceAnswer(status, [_JSON, *kept, *extra], _once(line))

    async def _lines(self, answer: Answer, said: OllamaAnswer) -> AsyncGenerator[bytes, None]:
        async for chunk in answer.chunks:
            if line := said.feed(chunk, self._clock()):
                yield line
        if line := said.finish(self._clock()):
            yield line

    def _model(self, body: dict[str, object], caller: Caller) -> str | Problem:
        """The model by the name that /v1/models has: Ollama's clients write `:latest` behind one without a tag."""
        named = body.get("model") or body.get("name")
        if not isinstance(named, str) or not named:
            return bad_request("`model` is missing.", "model")
        body["model"] = named
        plain = named.removesuffix(":latest")
        if plain != named and plain:
            known = {entry.get("id") for entry in self._forward.models(caller)}
            if named not in known and plain in known:
                return plain
        return named

    def _show(self, model: str, caller: Caller) -> FaceAnswer:
        entry = next((entry for entry in self._forward.models(caller) if entry.get("id") == model), None)
        if entry is None:
            return _refusal(not_found(f"There is no model {model[:200]!r}. /api/tags lists the ones that there are.",
                                      "model_not_found"))
        listed = self._listed(entry, running=False)
        return _told({"modelfile": "", "parameters": "", "template": "", "license": "", "details": listed["details"],
                      "model_info": {}, "capabilities": ["completion", "tools"], "modified_at": listed["modified_at"]})

    def _loaded(self, model: str, *, generate: bool) -> FaceAnswer:
        """A request without a prompt asks Ollama to load a model. Ours are served or not; there is nothing to load."""
        said: dict[str, object] = {"model": model, "created_at": stamp(self._wall())}
        said |= {"response": ""} if generate else {"message": {"role": "assistant", "content": ""}}
        return _told({**said, "done": True, "done_reason": "load"})

    def _listed(self, entry: dict[str, object], *, running: bool) -> dict[str, object]:
        name = str(entry.get("id", ""))
        meta = entry.get("meta") if isinstance(entry.get("meta"), dict) else {}
        assert isinstance(meta, dict)
        size = meta.get("size") if isinstance(meta.get("size"), int) else 0
        parameters, context = meta.get("n_params"), meta.get("n_ctx")
        created = entry.get("created")
        listed: dict[str, object] = {
            "name": name, "model": name, "size": size, "digest": hashlib.sha256(name.encode()).hexdigest(),
            "details": {"parent_model": "", "format": "gguf", "family": "", "families": [],
                        "parameter_size": _billions(parameters), "quantization_level": str(meta.get("ftype") or "")}}
        if running:
            return {**listed, "size_vram": size, "expires_at": "9999-12-31T23:59:59Z",
                    **({"context_length": context} if isinstance(context, int) else {})}
        return {**listed, "modified_at": stamp(created if isinstance(created, int) and 0 < created < 1 << 36 else 0)}


def _billions(parameters: object) -> str:
    if not isinstance(parameters, int) or parameters <= 0:
        return ""
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"


def _body(body: bytes) -> dict[str, object] | Problem:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return bad_request("The body is no JSON.")
    return said if isinstance(said, dict) else bad_request("The body is no JSON object.")


async def _whole(answer: Answer) -> bytes | None:
    """All of an answer; None when it is too long."""
    body = bytearray()
    async for chunk in answer.chunks:
        body += chunk
        if len(body) > WHOLE_LIMIT:
            return None
    return bytes(body)


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def _told(said: object) -> FaceAnswer:
    return FaceAnswer(200, [_JSON], _once(json.dumps(said, separators=(",", ":")).encode()))


def _refusal(problem: Problem) -> FaceAnswer:
    headers = [entry for entry in error_headers(problem) if entry[0] != b"content-type"]
    return FaceAnswer(problem.status, [_JSON, *headers], _once(json.dumps(ollama_error(problem)).encode()))
