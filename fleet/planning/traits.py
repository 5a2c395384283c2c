"""What of a model the compatibility rules look at, from its header. Pure."""

from __future__ import annotations

from fleet.models.attention import DELTA
from fleet.models.gguf import GgufHeader
from fleet.planning.situation import ModelTraits


def traits_of(header: GgufHeader) -> ModelTraits:
    """What of a model the rules ask for."""
    heads, width = header.number("{arch}.attention.head_count"), header.number("{arch}.embedding_length")
    usual = width // heads if heads and width else None
    lengths = [{length for length in (header.number(f"{{arch}}.attention.{part}_length") or usual,
                                      header.number(f"{{arch}}.attention.{part}_length_swa")) if length}
               for part in ("key", "value")]
    return ModelTraits(header.architecture, tuple(sorted(lengths[0])), tuple(sorted(lengths[1])),
                       latent=bool(header.number("{arch}.attention.kv_lora_rank")),
                       draft_head=bool(header.number("{arch}.nextn_predict_layers")),
                       scanned=bool(header.number("{arch}.ssm.inner_size")) and header.architecture not in DELTA)
