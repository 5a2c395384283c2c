"""What each way to speculate needs of a llama-server, and whether it works with workers. A table to read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_DOCS = "llama.cpp docs/speculative.md, b11434"


class Drafts(StrEnum):
    """Where the draft comes from."""

    TOKENS = "the tokens themselves"       # n-grams of what was read and written: nothing more is needed
    MODEL = "a draft model"                # -md: a smaller model with the same tokenizer
    TRAINED = "a drafter that was trained for this model"    # -md: it reads the model's hidden states
    HEAD = "the model's own draft layers"  # MTP: in the file itself, or as a file of its own by -md


class OverRpc(StrEnum):
    """Whether it works while layers of the model are on workers."""

    WORKS = "works"                        # run here
    REPORTED = "reported to crash"         # somebody's threads; not seen here
    UNPROVEN = "unproven"                  # nobody that we know of has run it


@dataclass(frozen=True, slots=True)
class Mode:
    """One value of `--spec-type`."""

    name: str
    drafts: Drafts
    over_rpc: OverRpc
    source: str
    note: str = ""                         # a sentence about it over RPC


MODES = (
    Mode("draft-simple", Drafts.MODEL, OverRpc.WORKS,
         "run: b10068 and b11434, draft on the head and on a worker; llama.cpp#23242 (closed) tells of crashes"),
    Mode("draft-mtp", Drafts.HEAD, OverRpc.REPORTED, "llama.cpp#23242 (closed), a comment on #22673",
         "Builds around b9193 crashed in it soon after the first tokens, since its context shared a stored graph."),
    Mode("draft-eagle3", Drafts.TRAINED, OverRpc.UNPROVEN, _DOCS,
         "It reads hidden states of layers that are then on other machines."),
    Mode("draft-dflash", Drafts.TRAINED, OverRpc.UNPROVEN, f"{_DOCS}; ik_llama.cpp#2164: a fork's worker crashed",
         "It reads hidden states of layers that are then on other machines; a fork's workers crashed in that."),
    Mode("draft-dspark", Drafts.TRAINED, OverRpc.UNPROVEN, f"{_DOCS} (llama.cpp#25173); not in b10068",
         "It is DFlash with one head more, and new."),
    Mode("ngram-simple", Drafts.TOKENS, OverRpc.WORKS, "nothing of it is on a device; " + _DOCS),
    Mode("ngram-map-k", Drafts.TOKENS, OverRpc.WORKS, "nothing of it is on a device; " + _DOCS),
    Mode("ngram-map-k4v", Drafts.TOKENS, OverRpc.WORKS, "nothing of it is on a device; " + _DOCS),
    Mode("ngram-mod", Drafts.TOKENS, OverRpc.WORKS, "run: b10068 and b11434, target on a worker"),
    Mode("ngram-cache", Drafts.TOKENS, OverRpc.WORKS, "nothing of it is on a device; " + _DOCS),
)
OFF = "none"


def mode_of(name: str) -> Mode | None:
    """The row of a mode; None for one that the table does not have."""
    return next((mode for mode in MODES if mode.name == name), None)
