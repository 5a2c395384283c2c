"""What is in a GGUF file, from its header alone: bounded, from any machine, without loading a value.

A header is untrusted: no length is believed before it was held against the size of the file, big
arrays (a vocabulary has 262 144 strings) are walked over and never kept.

Constants and types are the gguf package's (`fleet.models.tensor_types`). Its GGUFReader is not enough: it wants the
whole file on a local disk, to map it; it makes some numpy objects of each string of the vocabulary; it believes the
lengths that it reads; and it imports numpy. `tests/bench/gguf_header.py` measures both: for a 44 GB file with 262 144
tokens 21 s and 950 MB there, 60 to 85 ms and 15 MB here.
"""

from __future__ import annotations

import re
import struct

from fleet.errors import ModelFileError
from fleet.models.entries import Parser
from fleet.models.header import AGAIN, GgufHeader, TensorInfo, combined
from fleet.models.window import Read, Window

__all__ = ["GgufHeader", "Read", "TensorInfo", "combined", "read_header"]

MAGIC = b"GGUF"
MOST_ENTRIES = 65_536          # of metadata; real files have under 100
MOST_TENSORS = 262_144         # real files have under 10 000
MOST_LAYERS = 512              # LLAMA_MAX_LAYERS of src/llama-hparams.h: llama.cpp loads no model with more


async def read_header(read: Read, size: int, *, name: str = "the file") -> GgufHeader:
    """Read the header of a GGUF file.

    Args:
        read: gives bytes of the file by offset and length.
        size: bytes of the file.
        name: what to call it in sentences.

    Raises:
        ModelFileError: it is none, is damaged, or is of a kind that llama.cpp does not load.
        FleetError: whatever `read` raises.
    """
    window = Window(read, size, name)
    version, n_tensors, n_entries = await _preamble(window, read)
    parser = Parser(window)
    for _ in range(n_entries):
        await parser.entry()
    tensors, data_offset = await parser.index(n_tensors)
    end = max((tensor.offset + tensor.bytes for tensor in tensors), default=0)
    header = GgufHeader(version, parser.metadata, parser.array_lengths, tensors, data_offset, size, max(0, end - size),
                        parser.vocabulary)
    if header.n_layers > MOST_LAYERS:
        raise ModelFileError(f"{name} claims {header.n_layers} layers; llama.cpp loads {MOST_LAYERS} at the most.",
                             AGAIN)
    return header


async def _preamble(window: Window, read: Read) -> tuple[int, int, int]:
    """Version and counts, held against the size of the file."""
    size, name = window.size, window.name
    if size < 24:
        start = await read(0, size) if size else b""
        if start[:4] != MAGIC[:len(start[:4])] or not start:
            raise _no_gguf(name, start, size)
        raise window.ends_in("its first line")
    start = await window.take(24, "its first line")
    if start[:4] != MAGIC:
        raise _no_gguf(name, start + await read(24, min(1000, size - 24)), size)
    version, n_tensors, n_entries = struct.unpack("<IQQ", start[4:])
    if version & 0xFFFF == 0 and version:
        raise ModelFileError(f"{name} is a big-endian GGUF: this machine and llama.cpp's workers here read the other.",
                             "Fetch the little-endian file of the same model.", code="big-endian")
    if version not in (2, 3):
        age = "too old for today's llama.cpp" if version < 2 else "newer than anything known here"
        raise ModelFileError(f"{name} is GGUF version {version}, {age}.",
                             "Fetch a version 3 file of the same model.", code="version")
    for count, most, least, what in ((n_entries, MOST_ENTRIES, 13, "metadata entries"),
                                     (n_tensors, MOST_TENSORS, 24, "tensors")):
        if count > most or count * least > window.left:
            raise ModelFileError(f"{name} claims {count} {what}, which its {size} bytes cannot hold: it is damaged.",
                                 AGAIN, code="damaged")
    return version, n_tensors, n_entries


def _no_gguf(name: str, start: bytes, size: int) -> ModelFileError:
    """What the file is instead."""
    text = start.lstrip().lower()
    if size == 0:
        return ModelFileError(f"{name} is empty.", AGAIN, code="empty")
    if text.startswith(b"version https://git-lfs"):
        real = re.search(rb"size (\d{1,18})", text)
        of = f" of a file of {int(real[1])} bytes" if real else ""
        return ModelFileError(f"{name} is a Git LFS pointer{of}, not the file itself.",
                              "Run `git lfs pull` in that folder, or download the file.", code="lfs-pointer")
    if text.startswith((b"<!doctype html", b"<html")):
        return ModelFileError(f"{name} is a web page: the download ended at a login or an error.",
                              "Sign in where it comes from, or accept its licence, and fetch it again.", code="html")
    if text.startswith(b"pk\x03\x04"):
        return ModelFileError(f"{name} is a zip or PyTorch file, not a GGUF.", "Convert it with llama.cpp's "
                              "convert_hf_to_gguf.py, or fetch a GGUF.", code="not-gguf")
    if start[8:9] == b"{":
        return ModelFileError(f"{name} looks like a safetensors file, not a GGUF.", "Convert it with llama.cpp's "
                              "convert_hf_to_gguf.py, or fetch a GGUF.", code="not-gguf")
    return ModelFileError(f"{name} is not a GGUF file.", "Name a model file that ends in .gguf.", code="not-gguf")
