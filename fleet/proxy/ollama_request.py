"""A request of Ollama's API, as OpenAI's API says the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.proxy.errors import bad_request
from fleet.proxy.exchange import ApiKind, Problem

# Ollama's name -> the name that OpenAI's API or llama-server has for it.
OPTIONS = {
    "num_predict": "max_tokens", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "typical_p": "typical_p", "seed": "seed", "stop": "stop", "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty", "mirostat": "mirostat", "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
_IMAGES = {"iVBOR": "png", "/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}      # how their base64 begins
_LEVELS = ("low", "medium", "high", "max")
IMAGES_KEPT = 32


@dataclass(frozen=True, slots=True)
class Mapped:
    """A request for an upstream. `ignored` names what Ollama has and a server that already runs cannot obey."""

    kind: ApiKind
    path: str
    body: dict[str, object]
    streaming: bool
    generate: bool                     # /api/generate: the answer is `response`, not `message`
    thinking: bool = True              # tell what the model thought
    ignored: tuple[str, ...] = ()


class _Refused(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(slots=True)
class _Calls:
    """Ids for tool calls: OpenAI's API ties a tool's answer to its call by one, Ollama's by the name of the tool."""

    made: int = 0
    open: list[tuple[str, str]] = field(default_factory=list)     # id, name of the function

    def begin(self, name: str, said: object) -> str:
        self.made += 1
        found = said if isinstance(said, str) and said else f"call_{self.made}"
        self.open.append((found, name))
        return found

    def answer(self, name: object, said: object) -> str:
        """The id of the call that is answered: the named one, else the oldest without an answer."""
        if isinstance(said, str) and said:
            self.open = [entry for entry in self.open if entry[0] != said]
            return said
        for place, (found, called) in enumerate(self.open):
            if not name or called == name:
                del self.open[place]
                return found
        return self.open.pop(0)[0] if self.open else "call_0"


def chat(body: Mapping[str, object], model: str) -> Mapped | Problem:
    """/api/chat as /v1/chat/completions; a Problem says what is wrong with it."""
    try:
        messages = _messages(body.get("messages"))
        tools = body.get("tools")
        if tools is not None and not isinstance(tools, list):
            raise _Refused(bad_request("`tools` is not a list.", "tools"))
        return _finish(body, model, {"messages": messages, **({"tools": tools} if tools else {})}, generate=False)
    except _Refused as refused:
        return refused.problem


def generate(body: Mapping[str, object], model: str) -> Mapped | Problem:
    """/api/generate as a chat of one turn, or with `raw: true` as /v1/completions: the prompt as it is."""
    try:
        prompt = _text(body.get("prompt", ""), "prompt")
        if body.get("suffix"):
            raise _Refused(bad_request("`suffix` (filling in the middle) is not supported here. "
                                       "Use llama-server's /infill.", "suffix"))
        if body.get("raw") is True:
            if body.get("images"):
                raise _Refused(bad_request("A raw prompt cannot have images. Leave `raw` out, or use /api/chat.",
                                           "images"))
            return _finish(body, model, {"prompt": prompt}, generate=True)
        messages: list[dict[str, object]] = []
        if body.get("system"):
            messages.append({"role": "system", "content": _text(body["system"], "system")})
        messages.append({"role": "user", "content": _content(prompt, body.get("images"), "images")})
        return _finish(body, model, {"messages": messages}, generate=True)
    except _Refused as refused:
        return refused.problem


def _finish(body: Mapping[str, object], model: str, asked: dict[str, object], *, generate: bool) -> Mapped:
    ignored = [name for name in ("keep_alive", "template", "context") if body.get(name) is not None]
    asked["model"] = model
    options = body.get("options") or {}
    if not isinstance(options, Mapping):
        raise _Refused(bad_request("`options` is not an object.", "options"))
    for name, value in options.items():
        if name not in OPTIONS:
            ignored.append(f"options.{name}")          # num_ctx and the like belong to the start of a server
        elif name == "num_predict" and isinstance(value, int) and value < 0:
            continue                                   # Ollama's words for "as many as there is room for"
        elif value is not None:
            asked[OPTIONS[name]] = value
    _format(body.get("format"), asked)
    thinking = _think(body.get("think"), asked)
    streaming = body.get("stream", True)
    if not isinstance(streaming, bool):
        raise _Refused(bad_request("`stream` is neither true nor false.", "stream"))
    asked["stream"] = streaming
    if streaming:
        asked["stream_options"] = {"include_usage": True}
    for name in ("logprobs", "top_logprobs"):
        if body.get(name) is not None:
            asked[name] = body[name]
    plain = "prompt" in asked
    return Mapped(ApiKind.COMPLETION if plain else ApiKind.CHAT,
                  "/v1/completions" if plain else "/v1/chat/completions", asked, streaming, generate, thinking,
                  tuple(str(name)[:80] for name in ignored[:20]))


def _format(wanted: object, asked: dict[str, object]) -> None:
    if wanted in (None, ""):
        return
    if wanted == "json":
        asked["response_format"] = {"type": "json_object"}
    elif isinstance(wanted, Mapping):
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted}}
    else:
        raise _Refused(bad_request("`format` is neither \"json\" nor a JSON schema.", "format"))


def _think(wanted: object, asked: dict[str, object]) -> bool:
    """Ask for thinking or not; whether to tell what was thought."""
    if wanted is None:
        return True
    if isinstance(wanted, bool):
        if "messages" in asked:
            asked["chat_template_kwargs"] = {"enable_thinking": wanted}
        return wanted
    if wanted in _LEVELS:
        asked["reasoning_effort"] = wanted
        return True
    raise _Refused(bad_request(f"`think` is none of true, false, {', '.join(_LEVELS)}.", "think"))


def _messages(said: object) -> list[dict[str, object]]:
    if not isinstance(said, list):
        raise _Refused(bad_request("`messages` is not a list.", "messages"))
    calls = _Calls()
    return [_message(message, calls, f"messages[{place}]") for place, message in enumerate(said)]


def _message(said: object, calls: _Calls, where: str) -> dict[str, object]:
    if not isinstance(said, Mapping):
        raise _Refused(bad_request(f"`{where}` is not an object.", where))
    role = _text(said.get("role"), f"{where}.role")
    content = _content(_text(said.get("content") or "", f"{where}.content"), said.get("images"), f"{where}.images")
    message: dict[str, object] = {"role": role, "content": content}
    if role == "tool":
        message["tool_call_id"] = calls.answer(said.get("tool_name") or said.get("name"), said.get("tool_call_id"))
    if said.get("thinking"):
        message["reasoning_content"] = _text(said["thinking"], f"{where}.thinking")
    made = said.get("tool_calls")
    if made:
        if not isinstance(made, list):
            raise _Refused(bad_request(f"`{where}.tool_calls` is not a list.", where))
        message["tool_calls"] = [_call(call, calls, f"{where}.tool_calls[{n}]") for n, call in enumerate(made)]
    return message


def _call(said: object, calls: _Calls, where: str) -> dict[str, object]:
    function = said.get("function") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(function, Mapping):
        raise _Refused(bad_request(f"`{where}` has no function.", where))
    name = _text(function.get("name"), f"{where}.function.name")
    arguments = function.get("arguments", {})
    return {"id": calls.begin(name, said.get("id")), "type": "function",
            "function": {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}}


def _content(text: str, images: object, where: str) -> object:
    """Text alone, or text and pictures; a server without eyes refuses those with a sentence of its own."""
    if not images:
        return text
    if not isinstance(images, list) or len(images) > IMAGES_KEPT or not all(isinstance(image, str) for image in images):
        raise _Refused(bad_request(f"`{where}` is not a list of at most {IMAGES_KEPT} pictures in base64.", where))
    parts: list[dict[str, object]] = [{"type": "text", "text": text}]
    for image in images:
        kind = next((kind for begin, kind in _IMAGES.items() if image.startswith(begin)), "")
        if not kind:
            raise _Refused(bad_request(f"`{where}` holds something that is no PNG, JPEG, GIF or WebP in base64.",
                                       where))
        parts.append({"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{image}"}})
    return parts


def _text(said: object, where: str) -> str:
    if not isinstance(said, str):
        raise _Refused(bad_request(f"`{where}` is not a text.", where))
    return said
