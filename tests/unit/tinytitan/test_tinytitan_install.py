"""Manifests and layouts of TinyTitan's installs, and hostile ones, which are refused with a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import ModelFileError
from fleet.tinytitan.install import MAGICS, is_inside, read_layout, read_manifest

from .made_install import STRIDE, layout, manifest, payload

HASH = "0" * 64


def made(**changes: object) -> bytes:
    return json.dumps(manifest(payload(), **changes)).encode()


@pytest.mark.parametrize("magic", MAGICS)
def test_an_install_of_either_magic_tells_its_experts_and_what_a_cache_takes(magic: str) -> None:
    install = read_manifest(made(magic=magic))
    assert (install.magic, install.model, install.version) == (magic, "tiny-moe-4bit", (1, 0))
    assert (install.layers, install.experts, install.used, install.stride, install.expert_bits) == (2, 4, 2, STRIDE, 4)
    assert install.expert_bytes == 8 * STRIDE and install.token_cycle == 4 * STRIDE
    assert install.cache_bytes(3) == 6 * STRIDE and install.cache_bytes(99) == install.expert_bytes
    assert install.total_bytes == sum(map(len, payload().values()))


def test_a_dense_model_has_no_experts_and_no_files_of_them() -> None:
    install = read_manifest(json.dumps(manifest(payload(experts=0), experts=0)).encode())
    assert (install.experts, install.used, install.stride, install.token_cycle) == (0, 0, 0, 0)


def test_a_layout_says_where_each_expert_is_and_is_held_against_the_manifest() -> None:
    install = read_manifest(made())
    layers = read_layout(json.dumps(layout()).encode(), install)
    assert [(layer.layer, layer.file) for layer in layers] == [(0, "layer_00.bin"), (1, "layer_01.bin")]
    assert layers[1].offsets == (0, STRIDE, 2 * STRIDE, 3 * STRIDE)


@pytest.mark.parametrize(("changes", "said"), [
    ({"magic": "GGUF"}, "magic"), ({"versionMajor": 2}, "version 2"), ({"numLayers": 0}, "no layers"),
    ({"numLayers": 10**9}, "numLayers"), ({"numLayers": True}, "numLayers"), ({"expertStride": 16_385}, "experts of"),
    ({"expertStride": -1}, "expertStride"), ({"arch": {"topKExperts": 5}}, "topKExperts"),
    ({"arch": []}, "topKExperts"),
    ({"files": {}}, "no files"), ({"files": {"../../etc/passwd": {"size": 1, "sha256": HASH}}}, "inside"),
    ({"files": {"/etc/passwd": {"size": 1, "sha256": HASH}}}, "inside"),
    ({"files": {"a\x1b[2J": {"size": 1, "sha256": HASH}}}, "inside"),
    ({"files": {"a": {"size": -1, "sha256": HASH}}}, "make no sense"),
    ({"files": {"a": {"size": 1, "sha256": "x"}}}, "make no sense"),
    ({"files": {"a": {"size": 1, "sha256": HASH}}}, "0 files of experts"),
    ({"expertStride": 1 << 30}, "too short"),
])
def test_a_manifest_that_makes_no_sense_is_refused_with_its_reason(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_manifest(made(**changes))
    assert said in caught.value.what and caught.value.remedy and "\x1b" not in caught.value.what


@pytest.mark.parametrize("content", [b"", b"[]", b"<html>", b"[" * 100_000, b"\xff\xfe", b'{"magic": "SSDAI"}'])
def test_what_is_no_manifest_at_all_is_refused(content: bytes) -> None:
    with pytest.raises(ModelFileError):
        read_manifest(content)


@pytest.mark.parametrize("change", [
    lambda told: told.update(numLayers=3), lambda told: told["layers"].pop(),
    lambda told: told["layers"].reverse(), lambda told: told["layers"][0]["experts"].pop(),
    lambda told: told["layers"][0]["experts"][1].update(offset=5),
    lambda told: told["layers"][0]["experts"][1].update(size=STRIDE + 1),
    lambda told: told["layers"][0].update(file="../x"), lambda told: told["layers"].__setitem__(0, 3),
])
def test_a_layout_of_another_model_or_with_wrong_places_is_refused(change: object) -> None:
    told = layout()
    change(told)  # type: ignore[operator]
    with pytest.raises(ModelFileError):
        read_layout(json.dumps(told).encode(), read_manifest(made()))


@given(st.text(max_size=40))
def test_no_path_that_counts_as_inside_leaves_the_folder(path: str) -> None:
    if is_inside(path):
        assert not path.startswith(("/", "~")) and ".." not in path.split("/") and "\0" not in path
