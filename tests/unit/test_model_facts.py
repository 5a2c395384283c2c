"""What a model is in short: quantisation, vocabulary, draft head, fingerprint."""

from __future__ import annotations

import asyncio

import pytest
from made_gguf import Maker, llama, number, string, strings

from fleet.models.facts import facts_of
from fleet.models.gguf import GgufHeader, read_header

WORDS = [f"word{n}" for n in range(400)]


def header_of(made: Maker) -> GgufHeader:
    data = made.bytes()

    async def read(offset: int, length: int) -> bytes:
        return data[offset:offset + length]

    return asyncio.run(read_header(read, len(data)))


def test_the_facts_of_a_small_model():
    facts = facts_of(header_of(llama(3, tokens=WORDS, name="Demo", general__file_type=15)))
    assert (facts.architecture, facts.name, facts.quantisation, facts.n_layers, facts.n_embd, facts.n_vocab,
            facts.context_length) == ("llama", "Demo", "Q4_K - Medium", 3, 64, 400, 4096)
    assert facts.parameters == facts.active_parameters == 64 * 32 * 2 + 3 * (64 * 64 + 64 * 128) + 64
    assert not facts.has_draft_head and not facts.chat_template and len(facts.tokenizer_fingerprint) == 32


@pytest.mark.parametrize(("number_of_type", "name"), [
    (0, "F32"), (7, "Q8_0"), (12, "Q3_K - Medium"), (15 | 1024, "Q4_K - Medium"), (28, "IQ2_S"), (38, "MXFP4 MoE"),
    (32, "BF16"), (999, "mostly F32")])
def test_a_quantisation_is_written_as_llama_cpp_does(number_of_type: int, name: str):
    assert facts_of(header_of(llama(general__file_type=number_of_type))).quantisation == name


def test_without_a_word_of_the_file_the_tensors_tell():
    made = llama().tensor("blk.0.ffn_down.weight", (1024, 1024), "Q6_K")
    assert facts_of(header_of(made)).quantisation == "mostly Q6_K"


def test_equal_vocabularies_have_equal_fingerprints_wherever_they_stand():
    first = facts_of(header_of(llama(tokens=WORDS)))
    moved = Maker(strings("tokenizer.ggml.tokens", WORDS), string("general.architecture", "gemma3"),
                  string("tokenizer.ggml.model", "gpt2"), strings("tokenizer.ggml.merges", ["a b"]))
    assert facts_of(header_of(moved)).tokenizer_fingerprint == first.tokenizer_fingerprint


@pytest.mark.parametrize("tokens", [WORDS[:-1], ["x", *WORDS[1:]], [WORDS[1], WORDS[0], *WORDS[2:]],
                                    ["word0word1", *WORDS[2:]], ["word", "0word1", *WORDS[2:]]])
def test_other_tokens_or_another_order_have_another(tokens: list[str]):
    assert (facts_of(header_of(llama(tokens=tokens))).tokenizer_fingerprint
            != facts_of(header_of(llama(tokens=WORDS))).tokenizer_fingerprint)


def test_another_kind_of_tokenizer_has_another():
    def made(kind: str) -> Maker:
        return Maker(string("tokenizer.ggml.model", kind), strings("tokenizer.ggml.tokens", WORDS))

    assert len({facts_of(header_of(made(kind))).tokenizer_fingerprint for kind in ("gpt2", "llama", "")}) == 3
    assert facts_of(header_of(llama())).tokenizer_fingerprint == ""


def test_a_small_vocabulary_has_one_too():
    assert facts_of(header_of(llama(tokens=["a", "b"]))).tokenizer_fingerprint


def test_tokens_longer_than_a_read_are_hashed_whole():
    long = "x" * 3_000_000
    one, other = (facts_of(header_of(llama(tokens=["a", f"{long}{end}", "b"]))) for end in "yz")
    assert one.n_vocab == 3 and one.tokenizer_fingerprint != other.tokenizer_fingerprint


def test_layers_that_guess_ahead_are_a_draft_head():
    made = llama(3, llama__nextn_predict_layers=1)
    assert not facts_of(header_of(made)).has_draft_head           # told, but cut off when it was converted
    facts = facts_of(header_of(made.tensor("blk.2.nextn.eh_proj.weight", (64, 64))))
    assert facts.has_draft_head and facts.draft_layers == 1
    alone = Maker(string("general.architecture", "eagle3"), number("eagle3.block_count", 1))
    assert facts_of(header_of(alone)).has_draft_head


def test_a_fingerprint_follows_what_the_header_says():
    one, same = header_of(llama(tokens=WORDS)), header_of(llama(tokens=WORDS))
    assert one.fingerprint == same.fingerprint
    others = [header_of(made) for made in (llama(3, tokens=WORDS), llama(tokens=WORDS[1:]),
                                           llama(tokens=WORDS, name="x"),
                                           llama(tokens=WORDS).tensor("output_extra", (4,)))]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 5
