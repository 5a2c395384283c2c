"""By what a saved slot is known, so that no head reads back what another kind of head wrote.

A state is only right for the head that wrote it. It is named by a digest of everything that it depends on: the whole
command line (model, context, KV types, slots, template, split), the build, the file's size and time of change. A head
that differs in any of it finds no file of its name, and what others left is taken away. llama-server itself reads a
prompt anew where a restored state does not fit it (sliding windows without `--swa-full`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from fleet.nodes.notes import SlotsFolder

KEY_FACT = "slots_key"       # beside a head's pid file


def slots_key(argv: Sequence[str], build: str, file_size: int, folder: SlotsFolder) -> str:
    """Sixteen hex digits, equal for heads whose slots fit each other; "" where the file's age is not known."""
    if not folder.changed:
        return ""
    told = json.dumps([list(argv), build, file_size, folder.changed])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def key_of(facts: Mapping[str, object]) -> str:
    """What a head wrote beside its pid file; "" = it keeps nothing."""
    key = facts.get(KEY_FACT)
    return key if isinstance(key, str) and len(key) == 16 and set(key) <= set("0123456789abcdef") else ""
