"""GGUF files made for tests: real headers, and data that is a hole in the file."""

from __future__ import annotations

import math
import os
import random
import struct
from collections.abc import Iterable
from pathlib import Path

U8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 2, 4, 5, 6, 7, 8, 9, 10
GIB = 1024 ** 3
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
ALIGNMENT = 32


def text(value: bytes | str) -> bytes:
    """A string as the format has it."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    """A piece of metadata."""
    return text(key) + struct.pack("<I", kind) + value


def string(key: str, value: str) -> bytes:
    """One that is a text."""
    return entry(key, STRING, text(value))


def number(key: str, value: int) -> bytes:
    """One that is a whole number."""
    return entry(key, U32, struct.pack("<I", value))


def numbers(key: str, values: Iterable[int]) -> bytes:
    """One that is a list of whole numbers."""
    values = list(values)
    return entry(key, ARRAY, struct.pack(f"<IQ{len(values)}i", I32, len(values), *values))


def strings(key: str, values: Iterable[str | bytes]) -> bytes:
    """One that is a list of texts."""
    values = list(values)
    return entry(key, ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values)))


def flat(key: str, kind: int, count: int, each: int) -> bytes:
    """A list of numbers that are all nought."""
    return entry(key, ARRAY, struct.pack("<IQ", kind, count) + bytes(count * each))


def vocabulary(count: int, seed: int = 1) -> list[str]:
    """Made-up tokens, as long as real ones are: 6 to 7 bytes on average, a few very long."""
    dice = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz▁"
    return [f"<unused{n}>" if n < 100 else "▁" * 300 if n % 50_000 == 101 else
            "".join(dice.choices(letters, k=dice.choice((2, 4, 5, 6, 7, 9, 11)))) for n in range(count)]


class Maker:
    """Puts a file together: entries, then tensors, each where the one before it ended."""

    def __init__(self, *entries: bytes) -> None:
        self.entries = list(entries)
        self._tensors: list[bytes] = []
        self.data = 0                    # bytes of all tensors so far

    def tensor(self, name: str, shape: tuple[int, ...], kind: str = "F32") -> Maker:
        """One more tensor."""
        number_of_type, values, size = TYPES[kind]
        self._tensors.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number_of_type,
                                                      self.data))
        self.data += -(-(-(-math.prod(shape) // values) * size) // ALIGNMENT) * ALIGNMENT
        return self

    def head(self) -> bytes:
        """Everything before the data, padded."""
        head = (b"GGUF" + struct.pack("<IQQ", 3, len(self._tensors), len(self.entries)) + b"".join(self.entries)
                + b"".join(self._tensors))
        return head + bytes(-len(head) % ALIGNMENT)

    def bytes(self) -> bytes:
        """The whole of a small file."""
        return self.head() + bytes(self.data)

    def write(self, path: Path, *, size: int | None = None) -> Path:
        """Write the file; its data is a hole, so 40 GB take no room."""
        head = self.head()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(head)
            os.truncate(file.fileno(), len(head) + self.data if size is None else size)
        return path


def llama(layers: int = 2, *, tokens: Iterable[str] = (), name: str = "", **more: int) -> Maker:
    """A small dense model of 64 x 64 matrices; `more` are numbers of its metadata."""
    tokens = list(tokens)
    made = Maker(string("general.architecture", "llama"), number("llama.block_count", layers),
                 number("llama.embedding_length", 64), number("llama.context_length", 4096),
                 *([string("general.name", name)] if name else []),
                 *(number(key.replace("__", "."), value) for key, value in more.items()),
                 *([string("tokenizer.ggml.model", "gpt2"), strings("tokenizer.ggml.tokens", tokens)]
                   if tokens else []))
    made.tensor("token_embd.weight", (64, 32))
    for layer in range(layers):
        made.tensor(f"blk.{layer}.attn_q.weight", (64, 64)).tensor(f"blk.{layer}.ffn_up.weight", (64, 128))
    return made.tensor("output_norm.weight", (64,)).tensor("output.weight", (64, 32))


def large(vocabulary_size: int = 262_144, layers: int = 80, merges: int = 250_000) -> Maker:
    """A header as a 70B model with a big vocabulary has it: 40 GB of data, about 1000 tensors, some 18 MB of header."""
    tokens = vocabulary(vocabulary_size)
    made = Maker(
        string("general.architecture", "llama"), string("general.name", "Sparse 70B"), number("general.file_type", 15),
        number("llama.block_count", layers), number("llama.context_length", 131_072),
        number("llama.embedding_length", 8192), number("llama.feed_forward_length", 28_672),
        number("llama.attention.head_count", 64), number("llama.attention.head_count_kv", 8),
        string("tokenizer.ggml.model", "gpt2"), strings("tokenizer.ggml.tokens", tokens),
        flat("tokenizer.ggml.scores", F32, vocabulary_size, 4),
        flat("tokenizer.ggml.token_type", I32, vocabulary_size, 4),
        strings("tokenizer.ggml.merges", (f"{a} {b}" for a, b in zip(tokens[:merges], reversed(tokens), strict=False))),
        string("tokenizer.chat_template", "{{ messages }}" * 500))
    made.tensor("token_embd.weight", (8192, vocabulary_size), "Q4_K")
    for layer in range(layers):
        block = f"blk.{layer}."
        made.tensor(f"{block}attn_norm.weight", (8192,)).tensor(f"{block}ffn_norm.weight", (8192,))
        for part, shape in (("attn_q", (8192, 8192)), ("attn_k", (8192, 1024)), ("attn_output", (8192, 8192)),
                            ("ffn_gate", (8192, 28_672)), ("ffn_up", (8192, 28_672))):
            made.tensor(f"{block}{part}.weight", shape, "Q4_K")
        for part, shape in (("attn_v", (8192, 1024)), ("ffn_down", (28_672, 8192))):
            made.tensor(f"{block}{part}.weight", shape, "Q6_K" if layer % 2 else "Q4_K")
        for part in ("attn_q_norm", "attn_k_norm", "post_attention_norm"):
            made.tensor(f"{block}{part}.weight", (128,))
    return made.tensor("output_norm.weight", (8192,)).tensor("output.weight", (8192, vocabulary_size), "Q6_K")
