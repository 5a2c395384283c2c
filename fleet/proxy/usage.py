"""How many tokens an answer took, read from whichever form a server tells it in."""

from __future__ import annotations

from collections.abc import Mapping

Usage = dict[str, int]      # prompt_tokens, completion_tokens, total_tokens

_LARGEST = 1 << 40          # a server that says more is wrong


def usage_of(said: object) -> Usage | None:
    """OpenAI's `usage` object, or Anthropic's and /v1/responses' `input_tokens` and `output_tokens`, in OpenAI's names.

    Anthropic counts cached tokens beside `input_tokens`, everybody else within. None where there are no figures.
    """
    if not isinstance(said, Mapping):
        return None
    prompt = count(said.get("prompt_tokens"))
    written = count(said.get("completion_tokens"))
    if prompt is None and written is None:
        prompt, written = count(said.get("input_tokens")), count(said.get("output_tokens"))
        if prompt is None and written is None:
            return None
        for cached in ("cache_read_input_tokens", "cache_creation_input_tokens"):
            prompt = (prompt or 0) + (count(said.get(cached)) or 0)
    prompt, written = prompt or 0, written or 0
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def usage_of_timings(timings: object) -> Usage | None:
    """The same from llama-server's `timings`: `cache_n` + `prompt_n` prompt tokens, `predicted_n` written ones."""
    if not isinstance(timings, Mapping):
        return None
    prompt, cached, written = (count(timings.get(key)) for key in ("prompt_n", "cache_n", "predicted_n"))
    if prompt is None or written is None:
        return None
    prompt += cached or 0
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def count(said: object) -> int | None:
    """A number of tokens, if it is one."""
    if isinstance(said, bool) or not isinstance(said, int) or not 0 <= said < _LARGEST:
        return None
    return said
