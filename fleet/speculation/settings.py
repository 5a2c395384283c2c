"""What a user says of speculation in front of one target."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum

from fleet.errors import ConfigError

MOST_DRAFTERS = 16


class SpeculationMode(StrEnum):
    """Who decides, or which way is taken."""

    AUTO = "auto"                  # whatever gives the most tokens a second, measured
    OFF = "off"
    STRIDED = "strided"            # always, with the largest N and s that are allowed
    INJECTION = "injection"        # always, with drafts of N tokens
    NATIVE = "native"              # left to the head, whose own figures are shown


class DrafterKind(StrEnum):
    """What guesses."""

    LLAMA_SERVER = "llama-server"
    OLLAMA = "ollama"
    NGRAM = "ngram"                # what the request repeats; no server


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """A server that guesses. It comes from configuration only."""

    name: str
    url: str                                   # http://host:port
    kind: DrafterKind = DrafterKind.LLAMA_SERVER
    model: str = ""                            # its name there; Ollama needs one
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Speculation in front of one target."""

    mode: SpeculationMode = SpeculationMode.AUTO
    drafters: tuple[DrafterSettings, ...] = ()
    ngram: bool = True                         # guess from what the request itself repeats
    draft_length: int = 16                     # tokens of one draft at most, N
    stride: int = 4                            # tokens between two verified places at most, s
    deadline: float = 2.0                      # seconds for one draft
    grace: float = 0.3                         # seconds for a slower llama-server after the first draft
    grace_text: float = 1.0                    # the same for Ollama
    look_ahead: bool = True                    # draft the next round while this one is verified
    honesty: float = 0.02                      # share of the requests that are asked again plainly and compared


def read_speculation(said: object, where: str) -> SpeculationSettings | None:
    """Settings from JSON, as `dataclasses.asdict` makes them; None for null.

    Raises:
        ConfigError: they are something else. Secrets are not repeated.
    """
    if said is None:
        return None
    given = _record(SpeculationSettings, said, where)
    drafters = given.pop("drafters", ())
    if not isinstance(drafters, list | tuple) or len(drafters) > MOST_DRAFTERS:
        raise ConfigError(f"'drafters' of {where} is no list of up to {MOST_DRAFTERS}.")
    found = []
    for entry in drafters:
        one = _record(DrafterSettings, entry, f"a drafter of {where}")
        if not one.get("name") or not one.get("url"):
            raise ConfigError(f"A drafter of {where} needs a name and a url.")
        found.append(DrafterSettings(**one))            # type: ignore[arg-type]
    return SpeculationSettings(**given, drafters=tuple(found))       # type: ignore[arg-type]


def _record(kind: type, said: object, where: str) -> dict[str, object]:
    """The fields of a record, each of the kind that its default is."""
    if not isinstance(said, dict):
        raise ConfigError(f"The speculation of {where} is no object.")
    known = {entry.name: entry.default for entry in fields(kind)}
    given: dict[str, object] = {}
    for name, value in said.items():
        if name not in known:
            raise ConfigError(f"The speculation of {where} has {str(name)[:60]!r}, which means nothing.",
                              f"There are: {', '.join(known)}.")
        default = "" if known[name] is MISSING else known[name]
        if isinstance(default, StrEnum):
            if value not in tuple(type(default)):
                raise ConfigError(f"{name!r} of {where} is none of {', '.join(type(default))}.")
            value = type(default)(value)
        elif isinstance(default, bool):
            if not isinstance(value, bool):
                raise ConfigError(f"{name!r} of {where} is neither true nor false.")
        elif isinstance(default, int | float):
            wrong = isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6
            if wrong or (isinstance(default, int) and (not isinstance(value, int) or value < 1)):
                raise ConfigError(f"{name!r} of {where} is no fitting number.")
        elif not isinstance(default, tuple) and not (
                isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= 2000):
            raise ConfigError(f"{name!r} of {where} is not plain text.")
        given[name] = value
    return given
