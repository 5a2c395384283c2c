"""How a stream of each API ends: the mark of a good end, and an error that a client of that API understands.

A client that reads a stream has had its 200 and its headers; what goes wrong then can be told in the stream alone.
"""

from __future__ import annotations

import json

from fleet.proxy.errors import anthropic_error, message_of, openai_error
from fleet.proxy.exchange import Problem

DONE = b"data: [DONE]\n\n"
WITH_DONE = frozenset(("chat", "completion"))      # llama-server's own /completion sends no [DONE]

UNFINISHED = Problem(502, "upstream_incomplete",
                     "The server ended its answer before it was finished. What has come is not the whole; ask again.")
TOO_LONG = Problem(502, "upstream_event_too_long",
                   "The server sent one event that is longer than this proxy takes, so the answer was ended.")


def error_event(kind: str, problem: Problem, sequence: int = 0) -> bytes:
    """One event that tells `problem` in the form of the API.

    Args:
        kind: "chat", "completion", "messages", "responses", or another that gets llama-server's form.
        sequence: `sequence_number` for /v1/responses.
    """
    if kind == "messages":
        return event(anthropic_error(problem), "error")
    if kind == "responses":
        return event({"type": "error", "code": problem.code, "message": message_of(problem), "param": None,
                      "sequence_number": sequence}, "error")
    if kind in WITH_DONE:
        return event(openai_error(problem))
    return event({"error": {"code": problem.status, "message": message_of(problem), "type": problem.kind}})


def event(said: object, name: str = "") -> bytes:
    """An event with JSON in it. Everything beyond ASCII is escaped: a lone surrogate has no UTF-8."""
    head = b"event: %s\n" % name.encode() if name else b""
    return b"%sdata: %s\n\n" % (head, json.dumps(said, separators=(",", ":")).encode())


def as_error(kind: str, said: object) -> dict[str, object] | None:
    """An error that a server sent in a stream, in a form that clients understand; None if it has that form already."""
    if kind == "messages":
        if isinstance(said, dict) and said.get("type") == "error" and isinstance(said.get("error"), dict):
            return None
        return anthropic_error(_problem(said))
    error = said.get("error") if isinstance(said, dict) else said
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return None
    return openai_error(_problem(said))


def _problem(said: object) -> Problem:
    error = said.get("error", said) if isinstance(said, dict) else said
    text = error.get("message") or error.get("detail") or json.dumps(error) if isinstance(error, dict) else error
    message = text if isinstance(text, str) and text else "The server reported an error and said nothing about it."
    return Problem(502, "upstream_error", message)
