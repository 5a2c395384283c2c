"""What a GGUF file says of itself: metadata, the index of its tensors, and sums over these."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from fleet.errors import ModelFileError

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

AGAIN = "Fetch the file again."
_LAYER = re.compile(r"blk\.(\d{1,6})\.")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the index."""

    name: str
    shape: tuple[int, ...]
    type: str                  # "Q4_K"; "type 77" for one that nobody here knows
    offset: int                # bytes from the start of the file
    bytes: int
    file: int = 0              # which of the model's files it is in, from 0

    @property
    def layer(self) -> int | None:
        """The number of the block that it belongs to, None outside the blocks."""
        match = _LAYER.match(self.name)
        return int(match[1]) if match else None

    @property
    def is_output(self) -> bool:
        """Whether llama.cpp counts it to the output layer."""
        return self.layer is None and self.name.startswith(("output", "cls"))


@dataclass(frozen=True)
class GgufHeader:
    """The metadata and the tensor index of one file."""

    version: int
    # Not in the repr: asyncio.run makes one of its result (through signal.signal), which took longer than the reading.
    metadata: Mapping[str, Value] = field(default_factory=dict, repr=False)
    array_lengths: Mapping[str, int] = field(default_factory=dict, repr=False)   # of every array, kept or not
    tensors: tuple[TensorInfo, ...] = field(default=(), repr=False)
    data_offset: int = 0       # bytes from the start of the file
    file_size: int = 0         # bytes
    missing_bytes: int = 0     # that its tensors reach beyond its end: an incomplete download
    vocabulary: str = ""       # hash over the tokens as they stand in the file; see `fleet.models.tokenizer`

    def text(self, key: str) -> str:
        """A string of the metadata, "" when there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        """A whole number of 0 or more; "{arch}." stands for the architecture's prefix."""
        value = self.metadata.get(key.replace("{arch}", self.architecture))
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def numbers(self, key: str) -> tuple[int, ...]:
        """A value for each layer: some models give one for all, some an array; () = not given."""
        value = self.metadata.get(key.replace("{arch}", self.architecture))
        if isinstance(value, tuple):
            return tuple(number for number in value if isinstance(number, int) and not isinstance(number, bool))
        single = self.number(key)
        return () if single is None else (single,) * max(1, self.n_layers)

    @property
    def architecture(self) -> str:
        """"llama", "gemma3" ...; "" in a later shard."""
        return self.text("general.architecture")

    @property
    def name(self) -> str:
        """What its maker calls it."""
        return self.text("general.name")

    @property
    def context_length(self) -> int | None:
        """Tokens that it was trained for."""
        return self.number("{arch}.context_length")

    @property
    def n_vocab(self) -> int | None:
        """How many tokens it knows."""
        return self.array_lengths.get("tokenizer.ggml.tokens") or self.number("{arch}.vocab_size")

    @property
    def has_chat_template(self) -> bool:
        """Whether it was made to chat: a base model has no template, and llama-server lends it ChatML."""
        return any(key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template.")
                   for key in self.metadata)

    @property
    def split_count(self) -> int:
        """How many files the model is in."""
        return max(1, self.number("split.count") or 1)

    @property
    def split_number(self) -> int:
        """Which of them this is, from 0."""
        return self.number("split.no") or 0

    @cached_property
    def n_layers(self) -> int:
        """Blocks, the output layer not counted; 0 = none (a vocabulary, a projector)."""
        told = self.number("{arch}.block_count")
        if told is not None:
            return told
        return max((tensor.layer + 1 for tensor in self.tensors if tensor.layer is not None), default=0)

    @cached_property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of each block's tensors, in order. With several shards, those of this one."""
        sums = [0] * self.n_layers
        for tensor in self.tensors:
            if tensor.layer is not None and sums:
                sums[min(tensor.layer, len(sums) - 1)] += tensor.bytes
        return tuple(sums)

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of what precedes the blocks (the embedding): always on the head's processor."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.layer is None and not tensor.is_output)

    @cached_property
    def tied_output(self) -> bool:
        """Whether the embedding is the output matrix too. It is then loaded twice where these are apart."""
        names = {tensor.name for tensor in self.tensors}
        return "token_embd.weight" in names and "output.weight" not in names

    @cached_property
    def output_bytes(self) -> int:
        """Bytes of the output layer on its device, a tied embedding counted again."""
        own = sum(tensor.bytes for tensor in self.tensors if tensor.is_output)
        return own + (self._bytes_of("token_embd.weight") if self.tied_output else 0)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for files of one size that say the same of themselves and have the same tensors in the same places.

        Quick: it takes no byte beyond the header. So it tells two models apart, and two quantisations of one, but not
        a copy whose weights were damaged; for that there are the hashes of a manifest.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.file_size, self.version, sorted(self.metadata.items()), sorted(self.array_lengths.items()),
                     self.vocabulary, *((t.name, t.shape, t.type, t.file, t.offset) for t in self.tensors)):
            digest.update(repr(part).encode("utf-8", "replace"))
        return digest.hexdigest()

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)

    def _bytes_of(self, name: str) -> int:
        return sum(tensor.bytes for tensor in self.tensors if tensor.name == name)


def combined(headers: Sequence[GgufHeader]) -> GgufHeader:
    """The header of a model in several files, from all of theirs in order.

    Raises:
        ModelFileError: a shard is missing, in the wrong place, or holds a tensor that another has.
    """
    if not headers:
        raise ModelFileError("There is no file.", AGAIN)
    first = headers[0]
    if first.split_count != len(headers) or [header.split_number for header in headers] != list(range(len(headers))):
        raise ModelFileError(f"The model is in {first.split_count} files, and {len(headers)} of them fit together.",
                             "Put all parts in one folder and name the first.", code="shards")
    tensors = tuple(replace(tensor, file=number) if number else tensor
                    for number, header in enumerate(headers) for tensor in header.tensors)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ModelFileError("Two parts of the model hold the same tensor.", "Fetch the parts again.", code="shards")
    return replace(first, tensors=tensors, file_size=sum(header.file_size for header in headers),
                   missing_bytes=sum(header.missing_bytes for header in headers))
