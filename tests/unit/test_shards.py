"""What the names of files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import ModelFileError
from fleet.models.shards import (
    FileKind,
    Shard,
    file_kind,
    is_oddly_numbered,
    model_name,
    shard_of,
    shard_paths,
)

NAMES = [line.split(" | ")[0] for line in
         (Path(__file__).parents[1] / "data/gguf/split_names.txt").read_text().splitlines() if not line.startswith("#")]


def test_every_name_of_the_list_is_told_apart():
    assert {name: (shard_of(name), file_kind(name)) for name in NAMES} == {
        "demo-70b-Q4_K_M-00001-of-00003.gguf": (Shard("demo-70b-Q4_K_M", 1, 3), FileKind.MODEL),
        "demo-70b-Q4_K_M-00002-of-00003.gguf": (Shard("demo-70b-Q4_K_M", 2, 3), FileKind.MODEL),
        "demo-70b-Q4_K_M-00003-of-00003.gguf": (Shard("demo-70b-Q4_K_M", 3, 3), FileKind.MODEL),
        "Demo-70B-Q4_K_M-00001-of-00004.gguf": (Shard("Demo-70B-Q4_K_M", 1, 4), FileKind.MODEL),
        "UD-Q4_K_XL/demo-moe-UD-Q4_K_XL-00001-of-00012.gguf":
            (Shard("UD-Q4_K_XL/demo-moe-UD-Q4_K_XL", 1, 12), FileKind.MODEL),
        "demo-00001-of-00001.gguf": (Shard("demo", 1, 1), FileKind.MODEL),
        "demo-1-of-3.gguf": (None, FileKind.MODEL),
        "demo-8b-Q4_K_M.gguf.part1of2": (None, FileKind.CUT),
        "demo-8b-Q4_K_M.gguf.incomplete": (None, FileKind.UNFINISHED),
        "mmproj-demo-8b-f16.gguf": (None, FileKind.PROJECTOR),
        "demo-8b-Q4_K_M.gguf": (None, FileKind.MODEL),
        "model-00001-of-00002.safetensors": (None, FileKind.OTHER),
        "ggml-vocab-demo.gguf": (None, FileKind.VOCABULARY),
    }


@pytest.mark.parametrize("name", ["a-00000-of-00003.gguf", "a-00004-of-00003.gguf", "a-00001-of-99999.gguf",
                                  "a-1-of-3.gguf", "-00001-of-00002.gguf", "a-00001-of-00002.gguf.part"])
def test_impossible_numbers_make_no_part(name: str):
    assert shard_of(name) is None


def test_a_number_that_llama_cpp_would_not_look_for_is_odd():
    assert is_oddly_numbered("demo-1-of-3.gguf")
    assert not is_oddly_numbered("demo-00001-of-00003.gguf") and not is_oddly_numbered("demo.gguf")


def test_parts_count_from_one_and_keep_their_folder():
    assert shard_paths("/m/a b-00001-of-00002.GGUF", 2) == ("/m/a b-00001-of-00002.GGUF", "/m/a b-00002-of-00002.GGUF")


@pytest.mark.parametrize(("path", "count"), [("/m/a.gguf", 2), ("/m/a-00002-of-00002.gguf", 2),
                                             ("/m/a-00001-of-00002.gguf", 3), ("/m/a-00001-of-00002.gguf", 10**9)])
def test_a_first_part_with_another_name_is_refused(path: str, count: int):
    with pytest.raises(ModelFileError, match="parts") as wrong:
        shard_paths(path, count)
    assert wrong.value.code == "shards" and wrong.value.remedy


def test_a_model_is_called_by_its_file():
    assert model_name("/m/x/demo-Q4_K_M-00002-of-00003.gguf") == "demo-Q4_K_M"
    assert model_name("demo.GGUF") == "demo" and model_name("/m/odd") == "odd"
