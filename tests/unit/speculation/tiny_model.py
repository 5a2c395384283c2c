"""A language model of half a megabyte in F32 that stock llama.cpp runs, and worse ones that draft for it.

Its vocabulary is 256 bytes and some syllables. Which word may follow which is drawn from a seed and stands in its
output matrix, and what its two layers add decides among them, so that a token depends on all before it. Some words
bring an emoji, a byte a token; some bring the end. All in F32, because quantised kernels round differently for other
shapes of a batch: with this one (and a cache in F32, without flash attention) the same prefix gives the same token,
whatever is decoded beside it.

`drift` mixes other weights into the layers: a draft model that agrees with the true one more or less often.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

WIDTH, HEADS, FEED, LAYERS = 160, 4, 160, 2
EMOJI = "\N{GRINNING FACE}".encode()
BOS, EOS, FIRST_BYTE = 1, 2, 3


def vocabulary(count: int = 96, *, order: int = 7) -> list[str]:
    """Syllables, in an order of their own for each `order`: another one is another vocabulary of the same size."""
    syllables = [a + b + c for a in "bdgklmnprst" for b in "aeiou" for c in "klmnrst"]
    np.random.default_rng(order).shuffle(syllables)
    return syllables[:count]


def write(path: Path, *, drift: float = 0.0, order: int = 7, context: int = 4096) -> Path:
    """Write the model.

    Args:
        drift: 0 = the true one; the share of other weights in its layers otherwise.
        order: of the vocabulary, see `vocabulary`.
        context: tokens that it says it was trained on.
    """
    rng, other = np.random.default_rng(11), np.random.default_rng(12)
    words = vocabulary(order=order)
    parts = sorted({word[:2] for word in words} | {letter for word in words for letter in word})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *parts, *words]
    first = len(tokens)
    tokens += ["\u2581" + word for word in words]
    whole = len(tokens)

    embedding = rng.normal(0, 1, (whole, WIDTH)).astype(np.float32)
    embedding[:, :8] = 0
    for place, token in enumerate((first, first + 1, *(FIRST_BYTE + byte for byte in EMOJI))):
        embedding[token] = 0                         # apart from all others: what follows these is not left to chance
        embedding[token, place] = WIDTH ** 0.5
    output = _output(rng, embedding, first, whole)

    def weights(shape: tuple[int, int], size: float) -> np.ndarray:
        true, false = rng.normal(0, size, shape), other.normal(0, size, shape)
        return ((1 - drift) * true + drift * false).astype(np.float32)

    writer = GGUFWriter(path, "llama")
    writer.add_name(f"tiny {drift:g}")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(whole)
    writer.add_file_type(0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-10.0] * (1 + len(parts)) + [-8.0] * len(words) + [-1.0] * len(words))
    writer.add_token_types([TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256,
                            *[TokenType.NORMAL] * (whole - 259)])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        for name, shape, size in (("attn_q", (WIDTH, WIDTH), 0.2), ("attn_k", (WIDTH, WIDTH), 0.2),
                                  ("attn_v", (WIDTH, WIDTH), 0.09), ("attn_output", (WIDTH, WIDTH), 0.09),
                                  ("ffn_gate", (FEED, WIDTH), 0.09), ("ffn_up", (FEED, WIDTH), 0.09),
                                  ("ffn_down", (WIDTH, FEED), 0.075)):
            writer.add_tensor(f"{at}{name}.weight", weights(shape, size))
        writer.add_tensor(f"{at}attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{at}ffn_norm.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _output(rng: np.random.Generator, embedding: np.ndarray, first: int, whole: int) -> np.ndarray:
    """The output matrix: for each token, the tokens that may follow it, some more than others."""
    output = np.zeros((whole, WIDTH), np.float32)
    joy, last = first, first + 1                     # the words that bring an emoji and the end

    def follows(before: int, after: int, strength: float) -> None:
        output[after] += strength / 10 * embedding[before]

    for place, byte in enumerate(EMOJI):
        after = FIRST_BYTE + EMOJI[place + 1] if place < 3 else int(rng.integers(last + 1, whole))
        follows(FIRST_BYTE + byte, after, 1.6)
    follows(joy, FIRST_BYTE + EMOJI[0], 1.6)
    follows(last, EOS, 1.2)
    follows(last, int(rng.integers(last + 1, whole)), 1.2)
    for before in range(last + 1, whole):
        for strength in (1.1, 1.05, 1.0, 0.95):
            follows(before, int(rng.integers(last + 1, whole)), strength)
        if rng.random() < 0.12:
            follows(before, joy, 1.1)
        if rng.random() < 0.06:
            follows(before, last, 1.0)
    return output
