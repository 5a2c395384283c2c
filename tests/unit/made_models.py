"""GGUF files made for a test: real headers, every weight zero, nearly no bytes on disk (the data is a hole).

llama-server loads them like any other; what they say is worth nothing, what they take is exact.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType

Tensor = tuple[str, tuple[int, ...], GGMLQuantizationType]
F32 = GGMLQuantizationType.F32
F16 = GGMLQuantizationType.F16


@dataclass(frozen=True)
class Shape:
    """The figures of a model, under llama.cpp's names for them."""

    architecture: str
    layers: int
    width: int                                   # embedding_length
    feed_forward: int | tuple[int, ...]
    vocabulary: int
    heads: int = 0
    kv_heads: int | tuple[int, ...] = 0
    head_width: int = 0                          # 0 = width / heads
    weights: GGMLQuantizationType = F16          # f16 is neither repacked nor padded on a processor
    tied: bool = False                           # no output matrix of its own
    more: Mapping[str, int | float | list[int] | list[bool]] = field(default_factory=dict)   # further metadata

    @property
    def head(self) -> int:
        """Values of one head."""
        return self.head_width or (self.width // self.heads if self.heads else 0)

    def kv(self, layer: int) -> int:
        """Heads of keys and values of a layer."""
        return self.kv_heads[layer] if isinstance(self.kv_heads, tuple) else self.kv_heads

    def feed(self, layer: int) -> int:
        """Width of a layer's feed-forward part."""
        return self.feed_forward[layer] if isinstance(self.feed_forward, tuple) else self.feed_forward


# Another ratio of heads than gemma's, an output matrix of its own.
LLAMA = Shape("llama", layers=6, width=512, feed_forward=1536, vocabulary=32_000, heads=8, kv_heads=2)
# Every fourth layer attends fully, the others to 700 tokens.
WINDOWED = Shape("cohere2", layers=8, width=512, feed_forward=1024, vocabulary=20_000, heads=16, kv_heads=4,
                 tied=True, more={"attention.sliding_window": 700, "logit_scale": 1.0,
                                  "attention.layer_norm_epsilon": 1e-5})
# Two layers attend, the others keep a state.
HYBRID = Shape("granitehybrid", layers=6, width=512, feed_forward=1024, vocabulary=16_000, heads=8,
               kv_heads=(0, 0, 4, 0, 0, 4),
               more={"ssm.conv_kernel": 4, "ssm.inner_size": 1024, "ssm.state_size": 128, "ssm.group_count": 1,
                     "ssm.time_step_rank": 16})
# No attention at all.
RECURRENT = Shape("mamba", layers=6, width=512, feed_forward=0, vocabulary=16_000,
                  more={"ssm.conv_kernel": 4, "ssm.inner_size": 1024, "ssm.state_size": 16, "ssm.time_step_rank": 32})
# The widths of a 13B model in a single layer, where what is computed with is large.
WIDE = Shape("llama", layers=1, width=5120, feed_forward=13_824, vocabulary=100_000, heads=40, kv_heads=8,
             weights=GGMLQuantizationType.IQ2_XXS, tied=True)
# Experts of which a few compute.
EXPERTS = Shape("qwen3moe", layers=2, width=1024, feed_forward=4096, vocabulary=16_000, heads=16, kv_heads=2,
                head_width=128, more={"expert_count": 32, "expert_used_count": 8, "expert_feed_forward_length": 512})

_STATES = {"ssm.conv_kernel": 4, "ssm.inner_size": 1024, "ssm.state_size": 64, "ssm.group_count": 2,
           "ssm.time_step_rank": 16}
# Further ways to remember: every second layer windowed, as the program has it and not the file; both attention and a
# state in each layer; a state of the second kind of mamba; a short convolution; keys that hold the values.
ALTERNATING = Shape("gemma2", layers=5, width=512, feed_forward=1024, vocabulary=16_000, heads=8, kv_heads=2,
                    head_width=128, tied=True, more={"attention.sliding_window": 300})
BOTH = Shape("falcon-h1", layers=3, width=512, feed_forward=1024, vocabulary=16_000, heads=8, kv_heads=2, more=_STATES)
SECOND_MAMBA = Shape("mamba2", layers=3, width=512, feed_forward=0, vocabulary=16_000, more=_STATES)
CONVOLVED = Shape("lfm2", layers=5, width=512, feed_forward=1024, vocabulary=16_000, heads=8, kv_heads=(0, 4, 0, 4, 0),
                  tied=True, more={"shortconv.l_cache": 3})
LATENT = Shape("deepseek2", layers=4, width=512, feed_forward=1024, vocabulary=16_000, heads=8, kv_heads=1,
               more={"attention.q_lora_rank": 256, "attention.kv_lora_rank": 512, "attention.key_length": 576,
                     "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
                     "rope.dimension_count": 64, "leading_dense_block_count": 4, "expert_shared_count": 1,
                     "expert_weights_scale": 1.0, "expert_feed_forward_length": 256})
# Three gated delta nets to one attention with a gate.
DELTA = Shape("qwen35", layers=4, width=1024, feed_forward=2048, vocabulary=16_000, heads=8, kv_heads=2,
              head_width=128, tied=True,
              more={"ssm.conv_kernel": 4, "ssm.inner_size": 2048, "ssm.state_size": 128, "ssm.group_count": 16,
                    "ssm.time_step_rank": 16, "rope.dimension_sections": [11, 11, 10, 0], "rope.dimension_count": 64})

SHAPES = {"llama": LLAMA, "windowed": WINDOWED, "hybrid": HYBRID, "recurrent": RECURRENT, "wide": WIDE,
          "experts": EXPERTS}
FURTHER = {"alternating": ALTERNATING, "both": BOTH, "mamba2": SECOND_MAMBA, "convolved": CONVOLVED, "latent": LATENT,
           "delta": DELTA}
_BITS = GGMLQuantizationType.IQ2_XXS
# The widths of large models in few layers, where a width counted once too often shows. For one machine alone: over a
# wire all their zeros would be sent.
LARGE = {
    "like 70B": Shape("llama", layers=2, width=8192, feed_forward=28_672, vocabulary=32_000, heads=64, kv_heads=8,
                      weights=_BITS, tied=True),
    "like 235B-A22B": Shape("qwen3moe", layers=2, width=4096, feed_forward=12_288, vocabulary=32_000, heads=64,
                            kv_heads=4, head_width=128, weights=_BITS,
                            more={"expert_count": 16, "expert_used_count": 8, "expert_feed_forward_length": 1536}),
    "wide experts": Shape("qwen3moe", layers=2, width=2048, feed_forward=6144, vocabulary=32_000, heads=32,
                          kv_heads=4, head_width=128, weights=_BITS,
                          more={"expert_count": 16, "expert_used_count": 8, "expert_feed_forward_length": 4096}),
    "large hybrid": Shape("granitehybrid", layers=3, width=4096, feed_forward=8192, vocabulary=100_000, heads=32,
                          kv_heads=(0, 8, 0), weights=_BITS,
                          more={"ssm.conv_kernel": 4, "ssm.inner_size": 8192, "ssm.state_size": 128,
                                "ssm.group_count": 1, "ssm.time_step_rank": 128}),
}


def make(shape: Shape, path: Path) -> Path:
    """Write the model to `path`."""
    writer = GGUFWriter(path, shape.architecture)
    _describe(writer, shape)
    _vocabulary(writer, shape.vocabulary)
    return _written(writer, path, _tensors(shape))


def make_projector(path: Path, *, picture: int, patch: int, width: int, feed: int, layers: int, heads: int,
                   into: int) -> Path:
    """Write a projector for pictures (gemma3's kind) into a model of the width `into`."""
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", "gemma3")
    for key, value in (("image_size", picture), ("patch_size", patch), ("embedding_length", width),
                       ("feed_forward_length", feed), ("block_count", layers), ("attention.head_count", heads),
                       ("projection_dim", into)):
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    tensors: list[Tensor] = [
        ("v.patch_embd.weight", (patch, patch, 3, width), F16), ("v.patch_embd.bias", (width,), F32),
        ("v.position_embd.weight", (width, (picture // patch) ** 2), F32), ("v.post_ln.weight", (width,), F32),
        ("v.post_ln.bias", (width,), F32), ("mm.input_projection.weight", (into, width), F16),
        ("mm.soft_emb_norm.weight", (width,), F32)]
    for layer in range(layers):
        at = f"v.blk.{layer}."
        for name, shape in (("attn_q", (width, width)), ("attn_k", (width, width)), ("attn_v", (width, width)),
                            ("attn_out", (width, width)), ("ffn_up", (width, feed)), ("ffn_down", (feed, width)),
                            ("ln1", (width,)), ("ln2", (width,))):
            tensors += [(at + name + ".weight", shape, F16 if len(shape) > 1 else F32),
                        (at + name + ".bias", shape[-1:], F32)]
    return _written(writer, path, iter(tensors))


def _written(writer: GGUFWriter, path: Path, tensors: Iterator[Tensor]) -> Path:
    """Finish the file: header, index, and a hole for the data."""
    for name, dimensions, kind in tensors:
        block, size = GGML_QUANT_SIZES[kind]
        writer.add_tensor_info(name, tuple(reversed(dimensions)), np.dtype(np.float32),
                               math.prod(dimensions) // block * size, kind)
        # The writer takes the shape of quantised data in bytes; here it is in values, as in the file.
        writer.tensors[-1][name].shape = tuple(reversed(dimensions))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.flush()
    writer.close()
    align = writer.data_alignment
    data = sum(-(-info.nbytes // align) * align for info in writer.tensors[0].values())
    os.truncate(path, -(-path.stat().st_size // align) * align + data)
    return path


def _describe(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"made {shape.architecture}")
    writer.add_block_count(shape.layers)
    writer.add_context_length(1 << 17)
    writer.add_embedding_length(shape.width)
    feed = shape.feed_forward
    writer.add_feed_forward_length(list(feed) if isinstance(feed, tuple) else feed)
    if shape.heads:
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(list(shape.kv_heads) if isinstance(shape.kv_heads, tuple) else shape.kv_heads)
    if shape.head_width:
        writer.add_key_length(shape.head_width)
        writer.add_value_length(shape.head_width)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in shape.more.items():
        name = f"{shape.architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)


def _vocabulary(writer: GGUFWriter, count: int) -> None:
    """A SentencePiece vocabulary: three marks, every byte, and words that mean nothing."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    words = count - len(tokens)
    tokens += ["\u2581", "\n", *(f"\u2581w{number}" for number in range(words - 2))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * count)
    writer.add_token_types([*kinds, *[TokenType.NORMAL] * words])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _tensors(shape: Shape) -> Iterator[Tensor]:
    weights, width = shape.weights, shape.width
    yield "token_embd.weight", (width, shape.vocabulary), weights
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", (width,), F32
        if shape.architecture == "mamba":
            yield from _first_mamba(shape, at)
        elif shape.architecture == "qwen35" and layer % 4 < 3:
            yield from _delta_net(shape, at)
        elif shape.architecture == "deepseek2":
            yield from _latent_attention(shape, at)
        elif shape.kv(layer):
            yield from _attention(shape, at, shape.kv(layer))
        elif shape.architecture == "lfm2":
            yield from _convolution(shape, at)
        if shape.architecture in ("falcon-h1", "mamba2") or (
                shape.architecture == "granitehybrid" and not shape.kv(layer)):
            yield from _second_mamba(shape, at)
        if shape.feed(layer):
            yield from _feed_forward(shape, at, shape.feed(layer))
    yield "token_embd_norm.weight" if shape.architecture == "lfm2" else "output_norm.weight", (width,), F32
    if not shape.tied:
        yield "output.weight", (width, shape.vocabulary), weights


def _attention(shape: Shape, at: str, kv_heads: int) -> Iterator[Tensor]:
    weights, width, head = shape.weights, shape.width, shape.head
    gated = shape.architecture == "qwen35"
    yield at + "attn_q.weight", (width, shape.heads * head * (2 if gated else 1)), weights
    yield at + "attn_k.weight", (width, kv_heads * head), weights
    yield at + "attn_v.weight", (width, kv_heads * head), weights
    yield at + "attn_output.weight", (shape.heads * head, width), weights
    if shape.architecture == "gemma2":
        yield at + "post_attention_norm.weight", (width,), F32
        yield at + "post_ffw_norm.weight", (width,), F32
    if gated:
        yield at + "post_attention_norm.weight", (width,), F32
    if shape.architecture in ("qwen3moe", "lfm2", "qwen35"):
        yield at + "attn_q_norm.weight", (head,), F32
        yield at + "attn_k_norm.weight", (head,), F32


def _latent_attention(shape: Shape, at: str) -> Iterator[Tensor]:
    weights, width, more = shape.weights, shape.width, shape.more
    narrow, latent, turned = (more[key] for key in (
        "attention.q_lora_rank", "attention.kv_lora_rank", "rope.dimension_count"))
    keys, values = more["attention.key_length_mla"], more["attention.value_length_mla"]
    yield at + "attn_q_a_norm.weight", (narrow,), F32
    yield at + "attn_kv_a_norm.weight", (latent,), F32
    yield at + "attn_q_a.weight", (width, narrow), weights
    yield at + "attn_q_b.weight", (narrow, shape.heads * keys), weights
    yield at + "attn_kv_a_mqa.weight", (width, latent + turned), weights
    yield at + "attn_k_b.weight", (keys - turned, latent, shape.heads), weights
    yield at + "attn_v_b.weight", (latent, values, shape.heads), weights
    yield at + "attn_output.weight", (shape.heads * values, width), weights


def _delta_net(shape: Shape, at: str) -> Iterator[Tensor]:
    inner, state, heads, groups = (shape.more[f"ssm.{key}"] for key in (
        "inner_size", "state_size", "time_step_rank", "group_count"))
    weights, width, mixed = shape.weights, shape.width, inner + 2 * groups * state
    yield at + "post_attention_norm.weight", (width,), F32
    yield at + "attn_qkv.weight", (width, mixed), weights
    yield at + "attn_gate.weight", (width, inner), weights
    yield at + "ssm_conv1d.weight", (shape.more["ssm.conv_kernel"], mixed), F32
    yield at + "ssm_dt.bias", (heads,), F32
    yield at + "ssm_a", (heads,), F32
    yield at + "ssm_beta.weight", (width, heads), weights
    yield at + "ssm_alpha.weight", (width, heads), weights
    yield at + "ssm_norm.weight", (state,), F32
    yield at + "ssm_out.weight", (inner, width), weights


def _convolution(shape: Shape, at: str) -> Iterator[Tensor]:
    yield at + "shortconv.conv.weight", (shape.more["shortconv.l_cache"], shape.width), F32
    yield at + "shortconv.in_proj.weight", (shape.width, 3 * shape.width), shape.weights
    yield at + "shortconv.out_proj.weight", (shape.width, shape.width), shape.weights


def _feed_forward(shape: Shape, at: str, feed: int) -> Iterator[Tensor]:
    weights, width = shape.weights, shape.width
    if shape.architecture not in ("cohere2", "qwen35"):
        yield at + ("ffn_norm" if shape.architecture == "falcon-h1" else "ffn_norm.weight"), (width,), F32
    if experts := shape.more.get("expert_count"):
        feed = shape.more["expert_feed_forward_length"]
        yield at + "ffn_gate_inp.weight", (width, experts), F32
        yield at + "ffn_gate_exps.weight", (width, feed, experts), weights
        yield at + "ffn_up_exps.weight", (width, feed, experts), weights
        yield at + "ffn_down_exps.weight", (feed, width, experts), weights
        return
    yield at + "ffn_gate.weight", (width, feed), weights
    yield at + "ffn_up.weight", (width, feed), weights
    yield at + "ffn_down.weight", (feed, width), weights


def _first_mamba(shape: Shape, at: str) -> Iterator[Tensor]:
    inner, state, rank = (shape.more[f"ssm.{key}"] for key in ("inner_size", "state_size", "time_step_rank"))
    weights, width = shape.weights, shape.width
    yield at + "ssm_in.weight", (width, 2 * inner), weights
    yield at + "ssm_conv1d.weight", (shape.more["ssm.conv_kernel"], inner), F32
    yield at + "ssm_conv1d.bias", (inner,), F32
    yield at + "ssm_x.weight", (inner, rank + 2 * state), weights
    yield at + "ssm_dt.weight", (rank, inner), weights
    yield at + "ssm_dt.bias", (inner,), F32
    yield at + "ssm_a", (state, inner), F32
    yield at + "ssm_d", (inner,), F32
    yield at + "ssm_out.weight", (inner, width), weights


def _second_mamba(shape: Shape, at: str) -> Iterator[Tensor]:
    inner, state, heads, groups = (shape.more[f"ssm.{key}"] for key in (
        "inner_size", "state_size", "time_step_rank", "group_count"))
    weights, width = shape.weights, shape.width
    mixed = inner + 2 * groups * state
    yield at + "ssm_in.weight", (width, inner + mixed + heads), weights
    yield at + "ssm_conv1d.weight", (shape.more["ssm.conv_kernel"], mixed), F32
    yield at + "ssm_conv1d.bias", (mixed,), F32
    yield at + "ssm_dt.bias", (heads,), F32
    yield at + "ssm_a", (1, heads), F32
    yield at + "ssm_d", (1, heads), F32
    yield at + "ssm_norm.weight", (inner // groups, groups), F32
    yield at + "ssm_out.weight", (inner, width), weights
