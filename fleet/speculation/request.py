"""A client's request, read for a session: what is sampled and how, or a sentence why the target answers it alone.

What decides which token comes next given those before is passed to the target as the client wrote it. What has a state
that starts anew with every question (grammars, tools, mirostat, a seed, budgets of thought) would give other answers,
so such requests go through untouched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.proxy.exchange import ApiKind, Call
from fleet.speculation.target import ids_of

# Never sent on: the session says these itself, or answers what they ask for.
_OWN = frozenset((
    "prompt", "messages", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n_predict", "n",
    "stop", "logprobs", "top_logprobs", "n_probs", "cache_prompt", "return_tokens", "response_fields", "seed", "user",
    "id_slot", "timings_per_token", "return_progress", "metadata", "store", "service_tier", "echo", "best_of", "suffix",
    "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format", "grammar",
    "json_schema", "verbose", "chat_template_kwargs", "add_generation_prompt", "reasoning_format"))
# With a value in them these make a state, or an answer of another form.
_STATES = ("tools", "functions", "function_call", "grammar", "json_schema", "mirostat", "lora", "id_slot", "suffix",
           "echo", "n_indent", "t_max_predict_ms", "t_max_prompt_ms", "return_progress", "input_prefix", "input_suffix",
           "n_discard", "post_sampling_probs", "response_fields", "return_tokens", "verbose", "adaptive_target",
           "reasoning_budget", "thinking_budget_tokens", "modalities", "audio", "image_data", "timings_per_token",
           "grammar_lazy", "grammar_triggers", "chat_parser", "backend_sampling", "reasoning_effort", "prediction",
           "continue_final_message", "reasoning_control", "web_search_options", "preserved_tokens")
# Words in a template of models that think before they speak: their answers are taken apart by the server.
_THINKS = re.compile(r"think|reasoning|<\|channel\|>|<\|message\|>|\[THINK", re.IGNORECASE)
MOST_STOPS = 64
LONGEST_STOP = 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """What a session answers."""

    kind: ApiKind
    model: str
    streaming: bool
    usage: bool                                       # the client wants a last chunk with it
    chat: Mapping[str, object] | None = field(default=None, repr=False)     # for the template
    text: str | None = field(default=None, repr=False)
    tokens: tuple[int, ...] | None = field(default=None, repr=False)
    most: int | None = None                           # tokens; None = until it ends
    answers: int = 1
    stops: tuple[str, ...] = ()
    probabilities: int = 0                            # most likely tokens to tell of each
    sampling: Mapping[str, object] = field(default_factory=dict)
    greedy: bool = False


def read_request(call: Call, *, template: str = "") -> Asked | str:
    """What `call` asks for; a sentence where the target has to answer by itself.

    Args:
        template: the target's own template of chats.
    """
    body = call.parsed
    if body is None or call.method != "POST":
        return "It is no completion."
    path = call.path.partition("?")[0]
    if call.kind is ApiKind.NATIVE or call.kind not in (ApiKind.CHAT, ApiKind.COMPLETION):
        return f"{path} is passed on as it is."
    if why := _state(body) or _wrong(body):
        return why
    temperature = body.get("temperature")
    greedy = isinstance(temperature, int | float) and temperature <= 0
    if not greedy and _number(body.get("seed")) not in (None, -1, 0xFFFFFFFF):
        # The promise of a seed is the text that the target alone makes of it, and its dice are thrown anew at every
        # question, so they would fall alike at every token.
        return "It has a seed: the target alone keeps its promise."
    chat = text = tokens = None
    if call.kind is ApiKind.CHAT:
        if _THINKS.search(template):
            return "The model's chats have thoughts apart from the answer, which the target takes apart itself."
        if why := _not_plain(body.get("messages")):
            return why
        chat = {key: body[key] for key in ("messages", "chat_template_kwargs", "add_generation_prompt") if key in body}
    else:
        prompt = body.get("prompt")
        if isinstance(prompt, str) and prompt:
            text = prompt
        elif isinstance(prompt, list) and prompt and (ids := ids_of(prompt)):
            tokens = tuple(ids)
        else:
            return "It asks for several prompts at once, or for none."
    most = next((number for key in ("max_completion_tokens", "max_tokens", "n_predict")
                 if (number := _number(body.get(key))) is not None), None)
    return Asked(
        call.kind, call.model, body.get("stream") is True, _wants_usage(body), chat, text, tokens,
        None if most is None or most < 0 else max(1, most), _number(body.get("n")) or 1, _stops(body.get("stop")),
        _probabilities(body, call.kind), {key: value for key, value in body.items() if key not in _OWN}, greedy)


def _state(body: Mapping[str, object]) -> str:
    for key in _STATES:
        value = body.get(key)
        if value not in (None, False, "", 0, [], {}, -1):
            return f"It has `{key}`, which the target answers by itself."
    wanted = body.get("response_format")
    if isinstance(wanted, Mapping) and wanted.get("type") not in (None, "text"):
        return "It asks for a form of the answer, whose rules do not outlast a question."
    samplers = body.get("samplers")
    if samplers is not None and not isinstance(samplers, list):
        return "Its samplers are written in a way that is passed on as it is."
    return ""


def _wrong(body: Mapping[str, object]) -> str:
    """What is wrong the target says best by itself."""
    for key in ("max_tokens", "max_completion_tokens", "n_predict", "seed", "n"):
        value = body.get(key)
        if value is not None and _number(value) is None:
            return f"Its `{key}` is no whole number."
    many = body.get("n")
    if (many is not None and not 1 <= (_number(many) or 0) <= 16) or body.get("best_of") not in (None, 1, many):
        return "It asks for answers in a number that is passed on as it is."
    stop = body.get("stop")
    stops = stop if isinstance(stop, list) else [stop]
    if stop is not None and not (len(stops) <= MOST_STOPS and all(
            isinstance(one, str) and 0 < len(one) <= LONGEST_STOP for one in stops)):
        return "Its stop strings are passed on as they are."
    for key in ("logprobs", "top_logprobs", "n_probs"):
        value = body.get(key)
        if value is not None and not isinstance(value, bool) and not 0 <= (_number(value) or 0) <= 1000:
            return f"Its `{key}` is passed on as it is."
    if body.get("top_logprobs") is not None and body.get("logprobs") is not True:
        return "Its `top_logprobs` are passed on as they are."
    options = body.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        return "Its `stream_options` are passed on as they are."
    return ""


def _not_plain(messages: object) -> str:
    if not isinstance(messages, list) or not messages:
        return "It has no messages."
    for message in messages:
        if not isinstance(message, Mapping):
            return "One of its messages is none."
        if message.get("tool_calls") or message.get("role") in ("tool", "function") or message.get("reasoning_content"):
            return "Its messages tell of tools or thoughts."
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if not isinstance(content, str | list) or any(
                not isinstance(part, Mapping) or part.get("type") != "text" for part in parts):
            return "Its messages hold more than text."
    last = messages[-1]
    if isinstance(last, Mapping) and last.get("role") == "assistant":
        return "It goes on with what the assistant said."
    return ""


def _wants_usage(body: Mapping[str, object]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _stops(stop: object) -> tuple[str, ...]:
    many = stop if isinstance(stop, list) else [stop]
    return tuple(one for one in many if isinstance(one, str))


def _probabilities(body: Mapping[str, object], kind: ApiKind) -> int:
    """`n_probs`, as llama-server reads it out of both APIs."""
    said = body.get("logprobs")
    if kind is ApiKind.CHAT and said is True:
        most = _number(body.get("top_logprobs"))
        return 20 if most is None else most
    if kind is ApiKind.COMPLETION and said is not None:
        return int(said) if isinstance(said, bool | int) else 0
    return _number(body.get("n_probs")) or 0


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53 else None
