"""Answers in the forms of OpenAI's API, as llama-server writes them: what a client would have got from it directly."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.proxy.exchange import ApiKind
from fleet.speculation.request import Asked

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Tally:
    """What an answer took. Seconds."""

    prompt: int = 0                 # tokens
    cached: int = 0                 # of these, known to the target already
    prompt_seconds: float = 0.0
    written: int = 0                # tokens, the one that means the end too
    seconds: float = 0.0            # since the first
    drafted: int = 0
    accepted: int = 0

    def add(self, other: Tally) -> None:
        """Another answer of the same request: its tokens besides, its seconds at the same time."""
        self.written += other.written
        self.seconds = max(self.seconds, other.seconds)
        self.drafted += other.drafted
        self.accepted += other.accepted

    def usage(self) -> dict[str, object]:
        """OpenAI's `usage`."""
        return {"completion_tokens": self.written, "prompt_tokens": self.prompt,
                "total_tokens": self.prompt + self.written, "prompt_tokens_details": {"cached_tokens": self.cached}}

    def timings(self) -> dict[str, object]:
        """llama-server's `timings`."""
        read, read_ms, written_ms = self.prompt - self.cached, self.prompt_seconds * 1000, self.seconds * 1000
        said: dict[str, object] = {
            "cache_n": self.cached, "prompt_n": read, "prompt_ms": round(read_ms, 3),
            "prompt_per_token_ms": round(read_ms / max(1, read), 3),
            "prompt_per_second": round(read / self.prompt_seconds, 3) if self.prompt_seconds > 0 else 0.0,
            "predicted_n": self.written, "predicted_ms": round(written_ms, 3),
            "predicted_per_token_ms": round(written_ms / max(1, self.written), 3),
            "predicted_per_second": round((self.written - 1) / self.seconds, 3)
            if self.written > 1 and self.seconds > 0 else 0.0}
        if self.drafted:
            said.update(draft_n=self.drafted, draft_n_accepted=self.accepted)
        return said


@dataclass(slots=True)
class Written:
    """One of the answers when it is all there."""

    index: int
    text: str = ""
    reason: str = ""
    probabilities: list[Mapping[str, object]] = field(default_factory=list)


class Form:
    """One answer's chunks, or the whole of it."""

    def __init__(self, asked: Asked, *, model: str, build: str, now: float) -> None:
        self._asked = asked
        self._chat = asked.kind is ApiKind.CHAT
        self._common: dict[str, object] = {
            "created": int(now), "id": f"chatcmpl-{secrets.token_urlsafe(24)}", "model": model,
            "system_fingerprint": build}

    def first(self, index: int) -> bytes:
        """The chunk that a chat begins with."""
        if not self._chat:
            return b""
        return self._chunk({"finish_reason": None, "index": index, "delta": {"role": "assistant", "content": None}})

    def delta(self, index: int, text: str, probabilities: Sequence[Mapping[str, object]] = ()) -> bytes:
        """A chunk with text."""
        told = {"logprobs": {"content": list(probabilities)}} if probabilities else {}
        if self._chat:
            return self._chunk({"finish_reason": None, "index": index, "delta": {"content": text}, **told})
        return self._chunk({"text": text, "index": index, "logprobs": None, "finish_reason": None, **told})

    def finish(self, index: int, reason: str, tally: Tally, *, last: bool) -> bytes:
        """The last chunk of one of the answers; `last`: of all of them."""
        if self._chat:
            with_usage = self._asked.usage
            return self._chunk({"finish_reason": reason, "index": index, "delta": {}},
                               {"timings": tally.timings()} if last and not with_usage else {})
        return self._chunk({"text": "", "index": index, "logprobs": None, "finish_reason": reason},
                           {"usage": tally.usage(), "timings": tally.timings()} if last else {})

    def end(self, tally: Tally) -> bytes:
        """What follows the last of all the answers."""
        if self._chat and self._asked.usage:
            return _event({"choices": [], **self._common, "object": "chat.completion.chunk", "usage": tally.usage(),
                           "timings": tally.timings()}) + DONE
        return DONE

    def whole(self, answers: Sequence[Written], tally: Tally) -> bytes:
        """All of it, for a client that does not stream."""
        choices: list[dict[str, object]] = []
        for answer in answers:
            choice: dict[str, object] = {"finish_reason": answer.reason, "index": answer.index}
            logprobs = {"content": answer.probabilities} if answer.probabilities else None
            if self._chat:
                choice["message"] = {"role": "assistant", "content": answer.text}
                if logprobs:
                    choice["logprobs"] = logprobs
            else:
                choice.update(text=answer.text, logprobs=logprobs)
            choices.append(choice)
        return json.dumps({
            "choices": choices, **self._common, "object": "chat.completion" if self._chat else "text_completion",
            "usage": tally.usage(), "timings": tally.timings()}, separators=(",", ":")).encode()

    def _chunk(self, choice: Mapping[str, object], more: Mapping[str, object] | None = None) -> bytes:
        return _event({"choices": [choice], **self._common,
                       "object": "chat.completion.chunk" if self._chat else "text_completion", **(more or {})})


def _event(said: Mapping[str, object]) -> bytes:
    return b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\n\n"
