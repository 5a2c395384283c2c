"""What a head says over HTTP, as records; every field checked, for any of them may be missing or of another kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

TEXT_LIMIT = 256 * 1024
MOST = 1 << 60        # of whatever is counted: what is larger is nonsense, and breaks divisions


class HeadHealth(StrEnum):
    """What `/health` says."""

    STARTING = "starting"        # takes connections and does not answer yet
    LOADING = "loading"
    READY = "ready"
    DOWN = "down"                # nothing listens, or what answers is no head


@dataclass(frozen=True, slots=True)
class Props:
    """What a head says of itself."""

    model_path: str = ""
    alias: str = ""
    context: int | None = None            # tokens of one slot
    slots: int | None = None
    build_info: str = ""                  # "b10068-571d0d5", "b1-571d0d5"
    chat_template: str = ""               # never empty for a model without one: llama-server lends it ChatML
    is_sleeping: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a head."""

    id: int
    is_processing: bool
    context: int | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """What a request took."""

    prompt_tokens: int = 0                # read anew
    cached_tokens: int = 0                # reused from the slot
    prompt_seconds: float = 0.0
    tokens: int = 0                       # written
    seconds: float = 0.0                  # from the first token to the last
    drafted: int = 0
    drafts_accepted: int = 0

    @property
    def tokens_per_second(self) -> float | None:
        """Writing speed; None for a single token. The server's own figure is a million for one (b10068)."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds > 0 else None

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """Reading speed."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_tokens and self.prompt_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    prompt_tokens: int
    tokens: int
    stop: str = ""                        # "eos", "limit", "word"
    timings: Timings = Timings()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a streamed answer. The last one has `timings` and no text."""

    text: str = ""
    reasoning: str = ""                   # what a thinking model says to itself
    timings: Timings | None = None
    stop: str = ""                        # of the last: "stop", "eos", "length", "limit"


def read_props(answer: object) -> Props:
    """`/props`."""
    props = mapping(answer)
    settings = mapping(props.get("default_generation_settings"))
    return Props(text(props.get("model_path")), text(props.get("model_alias")), count(settings.get("n_ctx")),
                 count(props.get("total_slots")), text(props.get("build_info")), text(props.get("chat_template")),
                 props.get("is_sleeping") is True)


def read_slots(answer: object) -> tuple[Slot, ...]:
    """`/slots`."""
    if not isinstance(answer, list):
        return ()
    slots = [mapping(slot) for slot in answer[:1024]]
    return tuple(Slot(count(slot.get("id")) or 0, slot.get("is_processing") is True, count(slot.get("n_ctx")),
                      count(slot.get("n_prompt_tokens"))) for slot in slots if slot)


def read_timings(answer: object) -> Timings | None:
    """`timings` of an answer, None where there are none."""
    timings = mapping(answer)
    if not timings:
        return None
    return Timings(count(timings.get("prompt_n")) or 0, count(timings.get("cache_n")) or 0,
                   milliseconds(timings.get("prompt_ms")), count(timings.get("predicted_n")) or 0,
                   milliseconds(timings.get("predicted_ms")), count(timings.get("draft_n")) or 0,
                   count(timings.get("draft_n_accepted")) or 0)


def read_completion(answer: object) -> Completion:
    """`/completion`."""
    done = mapping(answer)
    timings = read_timings(done.get("timings")) or Timings()
    return Completion(text(done.get("content")), count(done.get("tokens_evaluated")) or timings.prompt_tokens,
                      count(done.get("tokens_predicted")) or timings.tokens, text(done.get("stop_type")), timings)


def read_completion_piece(event: object) -> Piece:
    """One event of a streamed `/completion`."""
    chunk = mapping(event)
    if chunk.get("stop") is True:
        return Piece(text(chunk.get("content")), timings=read_timings(chunk.get("timings")) or Timings(),
                     stop=text(chunk.get("stop_type")) or "stop")
    return Piece(text(chunk.get("content")))


def read_chat_piece(event: object) -> Piece:
    """One event of a streamed chat. `timings` come with the last chunk, which may have no choices."""
    chunk = mapping(event)
    choices = chunk.get("choices")
    choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    delta = mapping(choice.get("delta"))
    return Piece(text(delta.get("content")), text(delta.get("reasoning_content")), read_timings(chunk.get("timings")),
                 text(choice.get("finish_reason")))


def error_message(answer: object) -> str:
    """What an error object says, "" when this is none."""
    error = mapping(answer).get("error")
    if isinstance(error, str):
        return text(error)[:500]
    return text(mapping(error).get("message"))[:500] if error else ""


def mapping(value: object) -> Mapping[str, object]:
    """A JSON object, {} for all else."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """A string, bounded; half a character, which JSON can say and nobody can send on, becomes a question mark."""
    return value[:TEXT_LIMIT].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def count(value: object) -> int | None:
    """A whole number of 0 or more."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None


def milliseconds(value: object) -> float:
    """Milliseconds, as seconds."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return value / 1000 if known else 0.0
