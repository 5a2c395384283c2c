"""A stream of a real server on its way to the client: whole events go through byte for byte, broken ones are repaired.

What is repaired is what real servers were seen to send (tests/data/sse): tool calls without index, empty data, comments
written as data, usage that is missing, cumulative or was not asked for, CRLF, errors in the midst of a stream, streams
that end without their end. An event that was cut in two never reaches the client, so text is never cut within a
character.

Most events of a completion hold one token and need nothing. They are known by a look for a few words and not parsed.
Cost of an event of llama-server (245 bytes, alone in its chunk; one core of a busy 2-core machine, medians of 9 runs of
20,000, `python tests/bench/repair.py`): 6.5 us where nothing is to repair, 2.2 us of them for the cut; 31 us with CRLF,
37 us for a tool call that gets its index. 64 streams of 100 tokens a second: 4 % of a core.
"""

from __future__ import annotations

import json
import re

from fleet.proxy.answers import WholeAnswer, prepare_request, repair_answer, wants_usage
from fleet.proxy.endings import DONE, TOO_LONG, UNFINISHED, WITH_DONE, as_error, error_event, event
from fleet.proxy.exchange import Problem, RepairSettings
from fleet.proxy.sse import SseSplitter, parse_event
from fleet.proxy.tool_calls import ToolCallIndexes
from fleet.proxy.usage import Usage, usage_of, usage_of_timings

__all__ = ["RepairSettings", "StreamRepair", "WholeAnswer", "prepare_request", "repair_answer", "wants_usage"]

CHOICES_KEPT = 128         # choices of one answer whose tool calls are told apart

# A key with a value that wants a look. A key within a text has its quotes escaped and is not found; null says nothing.
_WANTS_A_LOOK = re.compile(rb'"(?:usage|tool_calls|error|timings|finish_reason|stop)" ?+: ?+(?!null|false)')
_TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning|text|thinking|partial_json|arguments)" ?: ?"(?!")')
_DELTA = re.compile(rb'"delta" ?: ?"(?!")')
_DELTA_EVENTS = (b"event: content_block_delta\n", b"event: response.output_text.delta\n")

_ENDS = {"messages": ("message_stop",),
         "responses": ("response.completed", "response.incomplete", "response.failed", "response.cancelled")}


class StreamRepair:
    """One answer's stream. `feed` what comes, then `finish`; what they return goes to the client.

    Attributes:
        finished: the answer came to its proper end (a reason to finish, or the API's own mark), and without an error.
        failed: an error was told to the client within the stream, by the server or by `finish`.
        usage: tokens of prompt and answer in OpenAI's names, as the server told them; None until it has.
        timings: llama-server's `timings`; {} until it has told them.
        tokens: of the answer: the server's own figure, else events with text in them.
    """

    def __init__(self, settings: RepairSettings, *, kind: str, client_wants_usage: bool = True) -> None:
        self.finished = False
        self.failed = False
        self.usage: Usage | None = None
        self.timings: dict[str, object] = {}
        self._settings = settings
        self._kind = str(kind)
        self._plain = self._kind in ("chat", "completion", "native")
        self._wants_usage = client_wants_usage
        self._splitter = SseSplitter()
        self._counted = 0
        self._repairs: dict[str, int] = {}
        self._calls: dict[int, ToolCallIndexes] = {}
        self._ended = False                # the API's own mark has been sent: nothing may follow
        self._usage_sent = False
        self._usage_held: object = None                      # a cumulative one, taken out of the chunk that had it
        self._like: dict[str, object] = {}                   # id, model ... of the chunks, for one of our own
        self._sequence = 0

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far."""
        return self.usage["completion_tokens"] if self.usage and self.usage["completion_tokens"] else self._counted

    @property
    def repairs(self) -> tuple[str, ...]:
        """Names of the repairs that were made, as `RepairSettings` has them."""
        return tuple(self._repairs)

    def feed(self, chunk: bytes) -> bytes:
        """What of the stream may go on to the client now; b"" while an event is not whole."""
        blocks = self._splitter.feed(chunk)
        out = self._block(blocks[0]) if len(blocks) == 1 else b"".join(map(self._block, blocks))
        if self._splitter.overflowed and not self._ended:
            out += self._break(TOO_LONG)
        return out

    def finish(self, broken: Problem | None = None) -> bytes:
        """The end of the stream. `broken`: the server did not end it itself; None: it did, in good order."""
        out = b"" if self._splitter.overflowed else self._rest(self._splitter.rest())
        if self._ended:
            return out
        if self.finished or self.failed:
            return out + self._close()
        if broken is not None:
            return out + self._break(broken)
        # A clean end says that all has come, and nothing in the stream says so: the server was cut off, or speaks a
        # form that we do not know. Streams of a kind that has no end of its own are left as they are.
        if self._kind in WITH_DONE or self._kind in _ENDS:
            return out + self._break(UNFINISHED)
        return out

    # -----------------------------------------------------------------------------------------
    # Blocks

    def _block(self, block: bytes) -> bytes:
        if self._plain:
            if block[:7] == b"data: {" and block[-3:] == b"}\n\n" and block.find(b"\n") == len(block) - 2 \
                    and not self._ended and b"\r" not in block and _WANTS_A_LOOK.search(block) is None \
                    and (b'"choices"' in block or self._kind == "native"):
                if _TEXT.search(block) is not None:
                    self._counted += 1
                return block
        elif block.startswith(_DELTA_EVENTS) and b"\r" not in block and block[-3:] == b"}\n\n" and not self._ended:
            if _TEXT.search(block) is not None or _DELTA.search(block) is not None:
                self._counted += 1
            return block
        return self._look(block)

    def _look(self, block: bytes) -> bytes:
        """An event that may need repair."""
        if b"\r" in block and self._settings.line_ends:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            self._made("line_ends")
        found = parse_event(block)
        if found.data is None and found.error is not None and self._settings.broken:
            self._made("broken")
            said = _json(found.error)
            return self._error(found.error if said is None else said, b"")
        if found.data is None:
            return block
        text = found.data.strip()
        if text == "[DONE]":
            return self._done(block)
        if self._ended and self._settings.done:      # nothing comes after the end
            self._made("done")
            return b""
        if not text:
            return self._dropped("empty_data", self._settings.empty_data, block)
        said = _json(text)
        if said is None:
            if text == "null":
                return self._dropped("empty_data", self._settings.empty_data, block)
            return self._dropped("comments_as_data", self._settings.comments_as_data, block)
        if said in ({}, [], ""):
            return self._dropped("empty_data", self._settings.empty_data, block)
        if not isinstance(said, dict):
            return block
        return self._plain_chunk(said, block) if self._plain else self._named(found.event, said, block)

    def _dropped(self, name: str, on: bool, block: bytes) -> bytes:
        if not on:
            return block
        self._made(name)
        return b""

    def _rest(self, rest: bytes) -> bytes:
        """What came after the last whole event: an event that only lacks its blank line is one all the same."""
        if not rest.strip():
            return b""
        found = parse_event(rest)
        whole = found.data is not None and (found.data.strip() == "[DONE]" or _json(found.data) is not None)
        if not whole and not (found.error is not None and _json(found.error) is not None):
            return b""
        self._made("done")
        return self._block(rest.rstrip(b"\r\n") + b"\n\n")

    # -----------------------------------------------------------------------------------------
    # Chunks of OpenAI's and llama-server's APIs

    def _plain_chunk(self, said: dict[str, object], block: bytes) -> bytes:
        if said.get("error"):
            return self._error(said, block)
        changed = False
        choices = said.get("choices")
        first = choices if isinstance(choices, list) else []
        for place, choice in enumerate(first):
            if isinstance(choice, dict):
                changed |= self._choice(choice, place)
        if said.get("stop") is True and self._kind == "native":
            self.finished = True
        if _TEXT.search(block) is not None or b'"tool_calls"' in block:
            self._counted += 1
        self._like = {key: said[key] for key in ("id", "object", "created", "model", "system_fingerprint")
                      if key in said}
        timings = said.get("timings")
        if isinstance(timings, dict):
            self.timings = timings
            self.usage = self.usage or usage_of_timings(timings)
        usage = usage_of(said.get("usage"))
        if usage is not None:
            self.usage = usage
            kept = self._usage(said, first)
            if kept is None:
                return b""
            changed |= kept
        return event(said) if changed else block

    def _choice(self, choice: dict[str, object], place: int) -> bool:
        if choice.get("finish_reason"):
            self.finished = True
        delta = choice.get("delta")
        calls = delta.get("tool_calls") if isinstance(delta, dict) else None
        if not isinstance(calls, list) or not calls or not self._settings.tool_call_index:
            return False
        index = choice.get("index")
        which = index if isinstance(index, int) else place
        if which not in self._calls and len(self._calls) >= CHOICES_KEPT:
            return False
        if not self._calls.setdefault(which, ToolCallIndexes()).repair(calls):
            return False
        self._made("tool_call_index")
        return True

    def _usage(self, said: dict[str, object], choices: list[object]) -> bool | None:
        """What to do with a chunk that has usage: None = leave it out, True = it was changed, False = as it is.

        A chunk for usage alone is what `stream_options.include_usage` asks for. Usage beside a reason to finish is
        sent by servers of their own accord (llama-server's /v1/completions) and stays. Usage in any other chunk is
        cumulative: clients that add it up count too much, so it comes once, at the end.
        """
        if not choices:
            if not self._wants_usage and self._settings.usage:
                self._made("usage")
                return None
            self._usage_sent = True
            if "choices" not in said and self._settings.usage:
                said["choices"] = []
                self._made("usage")
                return True
            return False
        if any(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices):
            self._usage_sent = True
            return False
        if not self._settings.cumulative_usage:
            self._usage_sent = True
            return False
        self._usage_held = said.pop("usage")
        self._made("cumulative_usage")
        return True

    def _missing_usage(self) -> bytes:
        """Usage that the client asked for and that has not been sent, before the end; b"" where there is nothing."""
        if not self._wants_usage or self._usage_sent or self._kind not in WITH_DONE or self.failed:
            return b""
        if self._usage_held is not None:
            usage = self._usage_held
        elif self._settings.usage and (usage := usage_of_timings(self.timings)) is not None:
            self._made("usage")
        else:
            return b""
        self._usage_sent = True
        return event({**self._like, "choices": [], "usage": usage})

    # -----------------------------------------------------------------------------------------
    # Events of Anthropic's API and of /v1/responses, which have names

    def _named(self, name: str, said: dict[str, object], block: bytes) -> bytes:
        kind = name or str(said.get("type") or "")
        number = said.get("sequence_number")
        self._sequence = number + 1 if isinstance(number, int) else self._sequence + 1
        if kind == "error" or (said.get("error") and kind not in _ENDS.get(self._kind, ())):
            return self._error(said, block)
        for inner in (said.get("message"), said.get("response"), said):
            if isinstance(inner, dict):
                self._named_usage(inner)
        if _TEXT.search(block) is not None and kind.endswith("_delta"):
            self._counted += 1
        delta = said.get("delta")
        if kind == "message_delta" and isinstance(delta, dict) and delta.get("stop_reason"):
            self.finished = True
        if kind in _ENDS.get(self._kind, ()):
            self.finished = self._ended = True
        return block

    def _named_usage(self, said: dict[str, object]) -> None:
        """Anthropic tells the prompt at the start and the answer at the end: the newer figure wins, if there is one."""
        usage = usage_of(said.get("usage"))
        if usage is not None:
            before = self.usage or usage
            prompt = usage["prompt_tokens"] or before["prompt_tokens"]
            written = usage["completion_tokens"] or before["completion_tokens"]
            self.usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        timings = said.get("timings")
        if isinstance(timings, dict):
            self.timings = timings

    # -----------------------------------------------------------------------------------------
    # Ends

    def _error(self, said: object, block: bytes) -> bytes:
        """An error that the server tells: passed on, in a form that the client understands."""
        self.failed, self.finished = True, False
        right = as_error(self._kind, said) if self._settings.broken and self._kind != "responses" else None
        if right is None and block:
            return block
        if block:
            self._made("broken")
        if right is None:
            right = said if isinstance(said, dict) and "error" in said else {"error": said}
        return event(right, "error" if self._kind in _ENDS else "")

    def _done(self, block: bytes) -> bytes:
        if self._ended and self._settings.done:
            self._made("done")
            return b""
        out = self._missing_usage() + block
        self._ended = True
        self.finished = not self.failed
        return out

    def _break(self, problem: Problem) -> bytes:
        """An error of ours and the end."""
        self.failed, self.finished = True, False
        if not self._settings.broken:
            self._ended = True
            return b""
        self._made("broken")
        return error_event(self._kind, problem, self._sequence) + self._close()

    def _close(self) -> bytes:
        """The mark that the API's streams end with, where the server did not send it."""
        self._ended = True
        out = self._missing_usage()
        if not self._settings.done:
            return out
        if self._kind in WITH_DONE:
            self._made("done")
            return out + DONE
        if self._kind == "messages" and self.finished:
            self._made("done")
            return event({"type": "message_stop"}, "message_stop")
        return out

    def _made(self, name: str) -> None:
        self._repairs[name] = self._repairs.get(name, 0) + 1


def _json(text: str) -> object | None:
    """What a text says as JSON; None if it is none (or null). A nesting beyond Python's stack is none either."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
