"""What a client is told when it does not get what it asked for, in the form of the API that it speaks.

A `Problem` of exchange.py becomes OpenAI's error object (`message`, `type`, `code`, `param`), Anthropic's or Ollama's.
The messages are for people and name what to do; `code` is for programs.
"""

from __future__ import annotations

import json
import math

from fleet.proxy.exchange import Headers, Problem
from fleet.text import visible

MESSAGE_LIMIT = 2000        # characters; part of a message may come from an upstream

# Anthropic's types by status: https://docs.anthropic.com/en/api/errors
_ANTHROPIC = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
              404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}


def openai_error(problem: Problem) -> dict[str, object]:
    """`{"error": {"message", "type", "code", "param"}}`, with `progress` where there is any."""
    error: dict[str, object] = {"message": message_of(problem), "type": problem.kind, "code": problem.code,
                                "param": problem.param or None}
    if problem.progress:
        error["progress"] = problem.progress
    return {"error": error}


def anthropic_error(problem: Problem) -> dict[str, object]:
    """`{"type": "error", "error": {"type", "message"}}`; without `code`, which Anthropic's API does not have."""
    kind = _ANTHROPIC.get(problem.status, "invalid_request_error" if 400 <= problem.status < 500 else "api_error")
    if problem.status == 503:
        kind = "overloaded_error"
    error: dict[str, object] = {"type": kind, "message": message_of(problem)}
    if problem.progress:
        error["progress"] = problem.progress
    return {"type": "error", "error": error}


def ollama_error(problem: Problem) -> dict[str, object]:
    """`{"error": "a sentence"}`."""
    return {"error": message_of(problem)}


def error_body(problem: Problem, path: str = "") -> bytes:
    """The body of a refusal, in the form of the API that `path` belongs to; OpenAI's where it is nobody's."""
    if path.startswith("/v1/messages"):
        found = anthropic_error(problem)
    elif path.startswith("/api/"):
        found = ollama_error(problem)
    else:
        found = openai_error(problem)
    return json.dumps(found, separators=(",", ":")).encode()


def error_headers(problem: Problem) -> Headers:
    """Content type, Retry-After (whole seconds, at least 1), and WWW-Authenticate beside a 401."""
    headers: Headers = [(b"content-type", b"application/json")]
    if problem.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(problem.retry_after))))
    if problem.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def message_of(problem: Problem) -> str:
    """The message, bounded and without anything that a terminal would obey."""
    return visible(problem.message, keep="\n\t", limit=MESSAGE_LIMIT)


# ---------------------------------------------------------------------------------------------
# Refusals that several modules make


def bad_request(message: str, param: str = "", code: str = "bad_request") -> Problem:
    """400: the request itself is wrong."""
    return Problem(400, code, message, "invalid_request_error", param=param)


def unauthorized(message: str, code: str = "invalid_api_key") -> Problem:
    """401: no key, or none that we know."""
    return Problem(401, code, message, "authentication_error")


def forbidden(message: str, code: str, param: str = "") -> Problem:
    """403: the key is right, and may not do this."""
    return Problem(403, code, message, "permission_error", param=param)


def too_many(message: str, retry_after: float) -> Problem:
    """429: more than the key may ask for at once, or in a minute."""
    return Problem(429, "rate_limit_exceeded", message, "rate_limit_error", retry_after=retry_after)


def too_large(limit: int) -> Problem:
    """413: the body is longer than this proxy takes."""
    return Problem(413, "request_too_large", f"The request is larger than the {limit} bytes that this proxy takes. "
                   "Send less, or raise its limit.", "invalid_request_error")


def not_found(message: str, code: str = "not_found") -> Problem:
    """404: no such path or model."""
    return Problem(404, code, message, "invalid_request_error")
