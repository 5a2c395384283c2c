"""`draft:` of a model in fleet.yaml: speculation inside the head."""

from __future__ import annotations

from fleet.config.fields import integer, word
from fleet.config.form import Form, Section
from fleet.config.marks import Mapping
from fleet.config.schema import DraftConfig
from fleet.planning.speculation_modes import MODES, OFF, Drafts, mode_of

DRAFT_KEYS = ("file", "mode", "device", "length")


def draft(form: Form) -> DraftConfig | None:
    """`draft: ~/models/small.gguf`, or a mapping; None where it is absent."""
    if not form.written:
        return None
    if not isinstance(form.value, Mapping):
        file = word(form, "", "the path of a draft model on the head, or a mapping such as {mode: ngram-mod}")
        return DraftConfig(file) if file else None
    section = Section(form, DRAFT_KEYS, "a mapping with `file`, or with a `mode` that needs none")
    default = DraftConfig()
    found = DraftConfig(
        word(section["file"], "", "the path of a draft model on the head"),
        word(section["mode"], default.mode, "a way to speculate, as llama-server calls it") or default.mode,
        word(section["device"], "", "a device as the head names it, or the name of a worker's node"),
        integer(section["length"], default.length, 1, 64, "a number of tokens from 1 to 64") or default.length)
    for name in filter(None, found.mode.split(",")):
        known = mode_of(name.strip())
        if name.strip() == OFF or known is None:
            section["mode"].wrong(f"{name.strip()[:40]!r} is no way to speculate that is known here",
                                  f"one of {', '.join(mode.name for mode in MODES)}")
        elif known.drafts is Drafts.MODEL and not found.file:
            form.wrong("'file' is missing", f"the path of a draft model, which {known.name} drafts with")
    return found
