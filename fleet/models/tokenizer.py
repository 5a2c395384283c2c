"""Whether two models cut text into the same tokens."""

from __future__ import annotations

import hashlib

from fleet.models.header import GgufHeader

MODEL = "tokenizer.ggml.model"


def tokenizer_fingerprint(header: GgufHeader) -> str:
    """Hex, equal when two files have the same kind of tokenizer and the same tokens under the same numbers; "" = none.

    Merges, scores and token types are not in it: they decide how text is cut, not what a number means. llama.cpp is
    less strict with a draft model: it takes one whose vocabulary is of the same kind and agrees from the sixth token
    on, up to 128 tokens longer or shorter. So equal fingerprints say yes; different ones do not yet say no.
    """
    if not header.vocabulary:
        return ""
    kind = header.text(MODEL)
    return hashlib.blake2b(f"{kind}\0{header.n_vocab}\0{header.vocabulary}".encode("utf-8", "replace"),
                           digest_size=16).hexdigest()
