"""One list of models over a fleet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.model import ModelFile, Node, NodeReading
from fleet.models.inventory import Model, PlaceState, find_models, inventory
from fleet.models.reader import FileKey
from fleet.models.shards import FileKind
from fleet.nodes.programs import read_models

GIB = 1024 ** 3


def node(name: str, *files: tuple[str, int], unfinished: tuple[tuple[str, int], ...] = ()) -> Node:
    return Node(name, reading=NodeReading(models=tuple(ModelFile(path, size, 7) for path, size in files),
                                          unfinished=tuple(ModelFile(path, size, 7) for path, size in unfinished)))


def listed(*nodes: Node, fingerprints: dict[FileKey, str] | None = None) -> tuple[Model, ...]:
    return inventory({each.name: each for each in nodes}, fingerprints)


def test_the_same_file_on_two_nodes_is_one_model():
    (model,) = listed(node("nas", ("/pool/demo.gguf", GIB)), node("desk", ("/home/me/models/demo.gguf", GIB)))
    assert (model.name, model.size, model.shards, model.complete) == ("demo", GIB, 1, True)
    assert dict(model.paths) == {"desk": "/home/me/models/demo.gguf", "nas": "/pool/demo.gguf"}


def test_another_size_is_another_model():
    assert [m.size for m in listed(node("a", ("/m/demo.gguf", GIB)), node("b", ("/m/demo.gguf", 2 * GIB)))] == [
        GIB, 2 * GIB]


def test_headers_that_differ_make_two_models_of_one_name_and_size():
    nodes = [node(name, ("/m/demo.gguf", GIB)) for name in ("a", "b", "c")]
    keys = [FileKey(name, "/m/demo.gguf", GIB, 7) for name in "abc"]
    apart = listed(*nodes, fingerprints={keys[0]: "11", keys[1]: "22"})
    assert [(m.fingerprint, tuple(m.paths)) for m in apart] == [("11", ("a",)), ("22", ("b",)), ("", ("c",))]
    (one,) = listed(*nodes, fingerprints={keys[0]: "11", keys[1]: "11"})
    assert set(one.paths) == {"a", "b", "c"} and one.fingerprint == "11"
    changed = FileKey("a", "/m/demo.gguf", GIB, 6)
    assert listed(nodes[0], fingerprints={changed: "11"})[0].fingerprint == ""


def test_parts_are_grouped_by_folder_and_started_with_the_first():
    parts = [(f"/m/UD/demo-0000{n}-of-00003.gguf", GIB) for n in (3, 1, 2)]
    (model,) = listed(node("nas", *parts))
    assert (model.name, model.size, model.shards) == ("demo", 3 * GIB, 3)
    assert model.paths == {"nas": "/m/UD/demo-00001-of-00003.gguf"}
    assert len(model.places[0].paths) == 3


def test_missing_parts_are_named_and_the_copy_is_not_served():
    (model,) = listed(node("nas", ("/m/demo-00001-of-00004.gguf", GIB)))
    (place,) = model.places
    assert not model.complete and not model.paths
    assert (place.state, place.missing) == (PlaceState.PARTS_MISSING, (2, 3, 4))
    assert place.note == "3 of its 4 parts are missing."
    whole = [(f"/m/demo-0000{n}-of-00004.gguf", GIB) for n in range(1, 5)]
    (model,) = listed(node("nas", whole[0]), node("big", *whole))
    assert model.complete and set(model.paths) == {"big"} and model.size == 4 * GIB
    assert [(p.node, p.state) for p in model.places] == [("big", "complete"), ("nas", "parts missing")]


def test_parts_of_two_folders_do_not_complete_each_other():
    models = listed(node("nas", ("/a/demo-00001-of-00002.gguf", GIB), ("/b/demo-00002-of-00002.gguf", GIB)))
    assert not any(model.complete for model in models)


def test_a_pointer_is_no_model():
    (model,) = listed(node("nas", ("/m/demo.gguf", 135)))
    assert not model.complete and model.places[0].state is PlaceState.TOO_SMALL
    (model,) = listed(node("nas", ("/m/demo-00001-of-00002.gguf", GIB), ("/m/demo-00002-of-00002.gguf", 135)))
    assert model.places[0].missing == (2,)


def test_a_copy_that_is_being_fetched_stands_beside_the_whole_one():
    (model,) = listed(node("nas", ("/m/demo.gguf", GIB)),
                      node("desk", unfinished=(("/m/demo.gguf.part", GIB // 2), )))
    assert [(p.node, p.state) for p in model.places] == [("nas", "complete"), ("desk", "unfinished")]
    assert model.size == GIB and dict(model.paths) == {"nas": "/m/demo.gguf"}
    (cut,) = listed(node("desk", unfinished=(("/m/old.gguf.part1of2", GIB),)))
    assert cut.places[0].state is PlaceState.CUT and "cat" in cut.places[0].note and not cut.complete


def test_projectors_go_with_the_models_beside_them():
    models = listed(node("nas", ("/m/demo-8b-Q4_K_M.gguf", GIB), ("/m/mmproj-demo-8b-f16.gguf", GIB // 8),
                         ("/m/other-Q4_K_M.gguf", GIB), ("/v/vision-Q8_0.gguf", GIB), ("/v/mmproj-F16.gguf", GIB // 4)))
    by_name = {model.name: model for model in models}
    assert by_name["mmproj-F16"].kind is FileKind.PROJECTOR
    assert [p.path for p in by_name["demo-8b-Q4_K_M"].projectors] == ["/m/mmproj-demo-8b-f16.gguf"]
    assert [p.path for p in by_name["vision-Q8_0"].projectors] == ["/v/mmproj-F16.gguf"]
    assert by_name["other-Q4_K_M"].projectors == ()


def test_an_odd_number_is_remarked_on():
    (model,) = listed(node("nas", ("/m/demo-1-of-3.gguf", GIB)))
    assert model.complete and "-00001-of-" in model.places[0].note


def test_models_are_found_by_name_file_and_path():
    models = listed(node("nas", ("/m/Demo.gguf", GIB), ("/m/demo.gguf", 2 * GIB), ("/m/x-00001-of-00001.gguf", GIB)))
    assert len(find_models(models, "demo")) == 2
    assert [m.size for m in find_models(models, "/m/demo.gguf")] == [2 * GIB]
    assert [m.name for m in find_models(models, "x-00001-of-00001.gguf")] == ["x"]
    assert find_models(models, "nothing") == ()


def test_a_node_that_was_never_read_has_nothing():
    assert listed(Node("dark")) == ()


def test_the_probe_lists_what_is_unfinished_apart():
    rows = "\n".join(("9000 5 /m/a.gguf", "9000 5 /m/b.gguf", "10 5 /m/b.gguf.aria2", "9000 5 /m/c.gguf.part",
                      "9000 5 /m/d.gguf.part1of2", "0 5 /m/e.gguf", "9000 5 /m/._f.gguf", "9000 5 /m/g.gguf.sha256",
                      "9000 5 /m/h.gguf.incomplete"))
    listing = read_models(rows)
    assert [file.path for file in listing.models] == ["/m/a.gguf"]
    assert [file.path for file in listing.unfinished] == ["/m/b.gguf", "/m/c.gguf.part", "/m/d.gguf.part1of2",
                                                          "/m/h.gguf.incomplete"]


NAMES = st.sampled_from(["a.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj-a.gguf", "A.gguf",
                         "a-1-of-2.gguf", "ggml-vocab-a.gguf", "b/a.gguf", "b/a-00001-of-00002.gguf", "x\n.gguf"])
FILES = st.lists(st.tuples(NAMES.map("/m/".__add__), st.sampled_from([1, 135, 9000, GIB])), max_size=8,
                 unique_by=lambda file: file[0])


@given(st.lists(FILES, max_size=4), st.dictionaries(st.integers(0, 3), st.sampled_from(["1", "2"])))
def test_every_file_is_listed_once_and_the_order_of_nodes_does_not_matter(fleet, prints):
    nodes = [node(f"n{number}", *files) for number, files in enumerate(fleet)]
    known = {FileKey(f"n{number}", path, size, 7): mark for number, mark in prints.items() if number < len(fleet)
             for path, size in fleet[number]}
    models = listed(*nodes, fingerprints=known)
    paths = sorted((place.node, path) for model in models for place in model.places for path in place.paths)
    shown = sorted((each.name, file.path) for each in nodes for file in each.reading.models)
    small = {(each.name, file.path) for each in nodes for file in each.reading.models if file.size < 1024}
    assert set(shown) - small <= set(paths) <= set(shown) and len(paths) == len(set(paths))
    assert models == listed(*reversed(nodes), fingerprints=known)
