"""Mixtures of experts made for tests: files that llama.cpp loads and runs, whose routing is like that of real ones.

What such a model says is nonsense. What it asks of a cache is not: some experts are hot (a bias along a direction that
every token has), words belong to topics, a topic favours some experts and is stayed with, so that a token shares a part
of its experts with the one before; the rest is noise. Everything follows from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import gguf
import numpy as np

Q8_0, Q4_K, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.F32
COMMON, TOPICAL, NOISE = 0.60, 0.50, 0.62      # parts of a token's embedding: their squares add up to about 1
CODES = 73.9                                   # standard deviation of evenly spread 8-bit codes
WORDS, TOPICS = 768, 16


@dataclass(frozen=True, slots=True)
class Shape:
    """What is made."""

    layers: int = 4
    experts: int = 16
    used: int = 4
    width: int = 256
    feed: int = 256                            # of one expert
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 64
    kind: gguf.GGMLQuantizationType = Q8_0
    context: int = 4096
    seed: int = 1
    hot: float = 0.8                           # spread of the experts' biases
    topical: float = 0.8                       # of their liking for topics
    noise: float = 0.85
    staying: float = 4.5                       # how much a topic is stayed with


SMALL = Shape()                                                                         # 19 MB
MIDDLE = Shape(layers=8, experts=64, used=6, width=512, feed=192)                        # 160 MB
LARGE = Shape(layers=12, experts=128, used=8, width=1024, feed=256, heads=8, head_width=128)   # 1.3 GB


def make(path: Path, shape: Shape = SMALL) -> Path:
    """Write the file."""
    dice = np.random.default_rng(shape.seed)
    words = _words()
    pieces, kinds, scores = _vocabulary(words)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_name(f"made-{shape.layers}x{shape.experts}-{shape.used}")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.feed * shape.used)
    writer.add_expert_feed_forward_length(shape.feed)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.used)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }} {% endfor %}")
    tensors = list(_tensors(shape, dice, len(pieces), len(pieces) - len(words)))
    for name, sides, kind, _ in tensors:
        stored = gguf.quant_shape_to_byte_shape(sides, kind) if kind is not F32 else sides
        writer.add_tensor_info(name, stored, np.dtype(np.float32 if kind is F32 else np.uint8),
                               math.prod(stored) * (4 if kind is F32 else 1), kind if kind is not F32 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for *_, data in tensors:
        writer.write_tensor_data(data())
    writer.close()
    return path


def prompt(count: int = 12, seed: int = 5) -> str:
    """Some words of one topic; another seed, another topic."""
    words = _words()[seed % TOPICS::TOPICS]
    return " ".join(np.random.default_rng(seed).choice(words, count))


Sides = tuple[int, ...]
Tensor = tuple[str, Sides, gguf.GGMLQuantizationType, Callable[[], np.ndarray]]


def _words() -> list[str]:
    """Consonant, vowel, consonant; a word's topic is its place, counted round."""
    consonants = "bcdfghjklmnprstvwxyz"
    every = ["".join(letters) for letters in product(consonants, "aeiou", consonants)]
    return list(np.random.default_rng(7).permutation(every)[:WORDS])


def _vocabulary(words: list[str]) -> tuple[list[str], list[int], list[float]]:
    """Control tokens, bytes, letters pairs, words; the words that follow a blank come last."""
    pairs = sorted({word[:2] for word in words})
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *pairs, *words]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (1 + len(pairs) + len(words))
    scores = [0.0] * 259 + [-10.0] * (1 + len(pairs)) + [-8.0] * len(words)
    return [*pieces, *(f"▁{word}" for word in words)], [*kinds, *[1] * len(words)], [*scores, *[-1.0] * len(words)]


def _tensors(shape: Shape, dice: np.random.Generator, vocabulary: int, first_word: int) -> Iterator[Tensor]:
    width = shape.width
    common = dice.choice([-1.0, 1.0], width)
    topics = dice.choice([-1.0, 1.0], (TOPICS, width))
    topic_of = (np.arange(vocabulary) - first_word) % TOPICS
    spread = 1 / math.sqrt(width)

    def embedding() -> np.ndarray:
        own = dice.standard_normal((vocabulary, width))
        return (COMMON * common + TOPICAL * topics[topic_of] + NOISE * own).astype(np.float32)

    def router() -> np.ndarray:
        own = dice.standard_normal((shape.experts, width)) * shape.noise / NOISE * spread
        bias = dice.normal(0, shape.hot, (shape.experts, 1)) / (COMMON * width)
        liking = dice.normal(0, shape.topical, (shape.experts, TOPICS)) / (TOPICAL * width)
        return (own + bias * common + liking @ topics).astype(np.float32)

    def head() -> np.ndarray:
        rows = topics[topic_of] * shape.staying / (TOPICAL / 1.2 * width) + dice.normal(0, spread, (vocabulary, width))
        rows[:first_word] = common * -20.0 / (COMMON / 1.2 * width)       # words alone are ever said
        return rows.astype(np.float32)

    def noise(*sides: int, deviation: float) -> Tensor:
        return "", sides, shape.kind, lambda: _noise(dice, sides, shape.kind, deviation)

    def ones(count: int) -> Tensor:
        return "", (count,), F32, lambda: np.ones(count, np.float32)

    def named(name: str, tensor: Tensor) -> Tensor:
        return (name, *tensor[1:])

    queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    yield "token_embd.weight", (vocabulary, width), F32, embedding
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield named(f"{block}attn_norm.weight", ones(width))
        yield named(f"{block}attn_q.weight", noise(queries, width, deviation=spread))
        yield named(f"{block}attn_k.weight", noise(keys, width, deviation=spread))
        yield named(f"{block}attn_v.weight", noise(keys, width, deviation=spread))
        yield named(f"{block}attn_q_norm.weight", ones(shape.head_width))
        yield named(f"{block}attn_k_norm.weight", ones(shape.head_width))
        yield named(f"{block}attn_output.weight", noise(width, queries, deviation=0.15 / math.sqrt(queries)))
        yield named(f"{block}ffn_norm.weight", ones(width))
        yield f"{block}ffn_gate_inp.weight", (shape.experts, width), F32, router
        for part, sides, deviation in (("gate", (shape.feed, width), 1.5 * spread),
                                       ("down", (width, shape.feed), 0.5 / math.sqrt(shape.feed)),
                                       ("up", (shape.feed, width), spread)):
            yield named(f"{block}ffn_{part}_exps.weight", noise(shape.experts, *sides, deviation=deviation))
    yield named("output_norm.weight", ones(width))
    yield "output.weight", (vocabulary, width), F32, head


def _noise(dice: np.random.Generator, sides: Sides, kind: gguf.GGMLQuantizationType, deviation: float) -> np.ndarray:
    """Weights of that standard deviation, as they are stored: random codes, one scale."""
    if kind is F32:
        return dice.normal(0, deviation, sides).astype(np.float32)
    stored = gguf.quant_shape_to_byte_shape(sides, kind)
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.frombuffer(dice.bytes(math.prod(stored)), np.uint8).reshape(-1, size).copy()
    if kind is Q8_0:
        blocks[:, :2] = np.frombuffer(np.float16(deviation / CODES).tobytes(), np.uint8)
    elif kind is Q4_K:             # all scales and minima 32, the minimum's scale 7.5 times the other: their mean is 0
        scale = deviation / (32 * 4.61)
        blocks[:, :4] = np.frombuffer(np.array([scale, 7.5 * scale], np.float16).tobytes(), np.uint8)
        blocks[:, 4:12], blocks[:, 12:16] = 0xA0, 0x00
    else:
        raise ValueError(f"no such noise: {kind}")
    return blocks.reshape(stored)
