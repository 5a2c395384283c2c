"""What a model in Hugging Face's layout says of its shape: `config.json` beside its weights. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

CONFIG_LIMIT = 1 << 20          # bytes of it that are read; real ones have some KiB
MOST = 100_000
_INNER = ("text_config", "llm_config", "language_config")     # where models that also see or hear keep it


@dataclass(frozen=True, slots=True)
class HfShape:
    """None = not told."""

    n_layers: int | None = None
    n_heads: int | None = None          # attention heads: tensor parallelism divides them


def read_hf_config(content: bytes) -> HfShape:
    """The shape that a config.json tells. One that cannot be understood tells nothing."""
    try:
        config = json.loads(content[:CONFIG_LIMIT])
    except (ValueError, RecursionError):
        return HfShape()
    if not isinstance(config, Mapping):
        return HfShape()
    places = [config, *(config[name] for name in _INNER if isinstance(config.get(name), Mapping))]
    return HfShape(_first(places, "num_hidden_layers", "n_layer", "num_layers"),
                   _first(places, "num_attention_heads", "n_head"))


def _first(places: list[Mapping[str, object]], *names: str) -> int | None:
    for place in places:
        for name in names:
            value = place.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST:
                return value
    return None
