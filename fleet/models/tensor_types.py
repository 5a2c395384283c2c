"""ggml's tensor types (how many bytes so many values take) and the names of quantisations."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

_SIZES = {"S": "Small", "M": "Medium", "L": "Large"}


@dataclass(frozen=True, slots=True)
class TensorType:
    """One storage format: values come in blocks of so many, of so many bytes."""

    name: str                 # "Q4_K", "F16"
    values: int               # a block
    bytes: int                # a block


@lru_cache(maxsize=1)
def tensor_types() -> dict[int, TensorType]:
    """All types that the gguf package knows, by their number in a file."""
    return {int(kind): TensorType(kind.name, values, size)
            for kind, (values, size) in _constants().GGML_QUANT_SIZES.items()}


@lru_cache(maxsize=1)
def file_types() -> dict[int, str]:
    """Names of quantisations by `general.file_type`, written as llama.cpp prints them: "Q4_K - Medium", "Q8_0"."""
    return {int(kind): _written(kind.name) for kind in _constants().LlamaFileType if kind.name != "GUESSED"}


def _written(name: str) -> str:
    """ "MOSTLY_Q4_K_M" -> "Q4_K - Medium". Only the K types come in sizes that llama.cpp writes out."""
    name = name.removeprefix("MOSTLY_").removeprefix("ALL_")
    stem, _, last = name.rpartition("_")
    return f"{stem} - {_SIZES[last]}" if last in _SIZES and stem.endswith("_K") else name.replace("_MOE", " MoE")


@lru_cache(maxsize=1)
def _constants() -> ModuleType:
    """Of the gguf package the constants alone are run: the package itself imports numpy, which takes 150 ms
    and 20 MB that nothing here needs."""
    package = importlib.util.find_spec("gguf")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("the gguf package is not installed")
    path = Path(package.submodule_search_locations[0]) / "constants.py"
    name = "fleet.models._gguf_constants"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{path} cannot be loaded")
    constants = importlib.util.module_from_spec(spec)
    sys.modules[name] = constants       # its enums look their module up
    spec.loader.exec_module(constants)
    return constants
