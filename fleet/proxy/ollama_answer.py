"""Answers of OpenAI's API, as Ollama's API says the same: one object, or one a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fleet.proxy.sse import SseSplitter, parse_event
from fleet.proxy.usage import Usage, usage_of, usage_of_timings

CALLS_KEPT = 256                     # tool calls of one answer
ARGUMENTS_LIMIT = 4 * 1024 * 1024    # bytes of all their arguments together
_REASONS = {"stop": "stop", "length": "length", "tool_calls": "stop", "function_call": "stop", "content_filter": "stop"}

INCOMPLETE = "The server ended its answer before it was finished."


@dataclass(slots=True)
class _Call:
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class OllamaAnswer:
    """One answer on its way to a client of Ollama's API.

    Args:
        model: as the client named it.
        generate: the text stands in `response` (/api/generate), not in `message`.
        thinking: tell what the model thought.
        began: of the request, seconds of any clock that `whole` and `finish` are told too.
        wall: the same moment, epoch seconds.
    """

    model: str
    generate: bool
    thinking: bool
    began: float
    wall: float
    failed: bool = False
    _splitter: SseSplitter = field(default_factory=SseSplitter)
    _calls: dict[int, _Call] = field(default_factory=dict)
    _size: int = 0
    _reason: str = ""
    _usage: Usage | None = None
    _timings: Mapping[str, object] = field(default_factory=dict)
    _first: float | None = None
    _done: bool = False

    def whole(self, body: bytes, now: float) -> tuple[int, bytes]:
        """Status and body for an answer that came at once."""
        said = _object(body)
        choice = _choice(said)
        if said is None or choice is None:
            return 502, _line({"error": "The server sent something that is no answer."})
        self._figures(said)
        self._reason = str(choice.get("finish_reason") or "stop")
        message = choice.get("message")
        part = message if isinstance(message, Mapping) else {"content": choice.get("text")}
        calls, wrong = _whole_calls(part.get("tool_calls"), cut=self._reason == "length")
        if wrong:
            return 502, _line({"error": wrong})
        return 200, _line({**self._said(_str(part.get("content")), _thought(part), calls), **self._end(now)})

    def feed(self, chunk: bytes, now: float) -> bytes:
        """The lines that a part of an event stream becomes."""
        out = b"".join(self._event(block, now) for block in self._splitter.feed(chunk))
        return out + (self._fail("The server sent one event that is too long.") if self._splitter.overflowed else b"")

    def finish(self, now: float) -> bytes:
        """The last line, with the figures."""
        if self._done:
            return b""
        if not self._reason:
            return self._fail(INCOMPLETE)
        self._done = True
        calls, wrong = self._whole_calls()
        if wrong:
            self.failed = True
            return _line({"error": wrong})
        out = _line({**self._said("", "", calls), "done": False}) if calls else b""
        return out + _line({**self._said("", "", []), **self._end(now)})

    def _event(self, block: bytes, now: float) -> bytes:
        text = (parse_event(block).data or "").strip()
        if text == "[DONE]":
            self._reason = self._reason or "stop"
        said = _object(text.encode("utf-8", "replace"))
        if said is None or self._done:
            return b""
        if said.get("error"):
            error = said["error"]
            return self._fail(_str(error.get("message")) if isinstance(error, Mapping) else _str(error))
        self._figures(said)
        choice = _choice(said)
        if choice is None:
            return b""
        if choice.get("finish_reason"):
            self._reason = str(choice["finish_reason"])
        delta = choice.get("delta")
        part = delta if isinstance(delta, Mapping) else {"content": choice.get("text")}
        if not self._keep_calls(part.get("tool_calls")):
            return self._fail("The tool calls of this answer are larger than this proxy takes.")
        content, thought = _str(part.get("content")), _thought(part) if self.thinking else ""
        if not content and not thought:
            return b""
        if self._first is None:
            self._first = now
        return _line({**self._said(content, thought, []), "done": False})

    def _fail(self, message: str) -> bytes:
        if self._done:
            return b""
        self._done = self.failed = True
        return _line({"error": message or "The server reported an error and said nothing about it."})

    def _figures(self, said: Mapping[str, object]) -> None:
        timings = said.get("timings")
        if isinstance(timings, Mapping):
            self._timings = timings
        self._usage = usage_of(said.get("usage")) or self._usage or usage_of_timings(timings)

    def _keep_calls(self, said: object) -> bool:
        for call in said if isinstance(said, list) else ():
            if not isinstance(call, Mapping):
                continue
            index = call.get("index")
            function = call.get("function")
            if not isinstance(index, int) or not isinstance(function, Mapping):
                continue
            if index not in self._calls and len(self._calls) >= CALLS_KEPT:
                return False
            kept = self._calls.setdefault(index, _Call())
            kept.name = kept.name or _str(function.get("name"))
            arguments = _str(function.get("arguments"))
            self._size += len(arguments) + len(kept.name)
            if self._size > ARGUMENTS_LIMIT:
                return False
            kept.arguments += arguments
        return True

    def _whole_calls(self) -> tuple[list[object], str]:
        return _whole_calls([{"function": {"name": call.name, "arguments": call.arguments}}
                             for _, call in sorted(self._calls.items())], cut=self._reason == "length")

    def _said(self, content: str, thought: str, calls: list[object]) -> dict[str, object]:
        head: dict[str, object] = {"model": self.model, "created_at": stamp(self.wall)}
        shown = thought if self.thinking else ""
        if self.generate:
            return {**head, "response": content, **({"thinking": shown} if shown else {})}
        return {**head, "message": {"role": "assistant", "content": content, **({"thinking": shown} if shown else {}),
                                    **({"tool_calls": calls} if calls else {})}}

    def _end(self, now: float) -> dict[str, object]:
        """Durations in nanoseconds: llama-server's own where it tells them, else ours from here."""
        usage = self._usage or {"prompt_tokens": 0, "completion_tokens": 0}
        first = self._first if self._first is not None else now
        prompt, written = self._timings.get("prompt_ms"), self._timings.get("predicted_ms")
        return {"done": True, "done_reason": _REASONS.get(self._reason, "stop"),
                "total_duration": _nano(now - self.began), "load_duration": 0,
                "prompt_eval_count": usage["prompt_tokens"],
                "prompt_eval_duration": _nano(prompt / 1000 if _number(prompt) else first - self.began),
                "eval_count": usage["completion_tokens"],
                "eval_duration": _nano(written / 1000 if _number(written) else now - first)}


def error_line(body: bytes, status: int) -> bytes:
    """An error object of OpenAI's form (or anything else with a bad status) as Ollama's."""
    said = _object(body)
    error = said.get("error") if said else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return _line({"error": _str(message) or f"The server answered {status} and said nothing about it."})


def stamp(wall: float) -> str:
    """A moment as Ollama writes it: RFC 3339 in UTC."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _whole_calls(said: object, *, cut: bool) -> tuple[list[object], str]:
    """Tool calls with their arguments as an object, as Ollama has them; and what is wrong with them.

    The last one of an answer that was cut off by its length is left out where it is not whole.
    """
    calls: list[object] = []
    for call in said if isinstance(said, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        name, arguments = _str(function.get("name")), function.get("arguments") or "{}"
        if isinstance(arguments, str):
            arguments = _object(arguments.encode("utf-8", "replace"))
        if not isinstance(arguments, Mapping):
            if cut:
                break
            return [], f"The model called {name[:80]!r} with arguments that are no JSON object."
        calls.append({"function": {"name": name, "arguments": arguments}})
    return calls, ""


def _choice(said: Mapping[str, object] | None) -> Mapping[str, object] | None:
    choices = said.get("choices") if said is not None else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _thought(part: Mapping[str, object]) -> str:
    return _str(part.get("reasoning_content")) or _str(part.get("reasoning"))


def _object(data: bytes) -> dict[str, object] | None:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _str(said: object) -> str:
    return said if isinstance(said, str) else ""


def _number(said: object) -> bool:
    return isinstance(said, int | float) and not isinstance(said, bool) and 0 <= said < 1e12


def _nano(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


def _line(said: object) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"
