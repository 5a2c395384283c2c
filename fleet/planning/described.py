"""A fleet that is only described: no machine is asked. For plans before anything is bought, and for tests.

    head: nas                        # default: chosen, all of them have the model
    nodes:
      desk:
        ram: 64GiB
        cpu: AMD Ryzen 7 7700
        devices: {CUDA0: {memory: 16GiB, name: NVIDIA GeForce RTX 4070 Ti Super}}   # or CUDA0: 16GiB
        link: {kind: wired, round_trip_ms: 0.3, mbit: 1000}                          # to the others
      mac: {ram: 16GiB, unified: true, devices: {MTL0: 11GiB}}
    models:
      big: {layers: 80, width: 8192, vocabulary: 128256, kv_heads: 8, head_size: 128, size: 40GiB, context: 131072}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fleet.config import marks
from fleet.config.fields import boolean, choice, integer, mapping, number, size, word
from fleet.config.form import Form, Notes, Section
from fleet.config.load import ConfigErrors
from fleet.config.schema import FleetConfig, ModelConfig, NodeConfig
from fleet.model import (
    Binary,
    Cpu,
    Device,
    DeviceKind,
    Link,
    LinkKind,
    Memory,
    ModelFile,
    Node,
    NodeReading,
    NodeState,
    Snapshot,
)
from fleet.models.gguf import MOST_LAYERS, GgufHeader, TensorInfo

ROOT_KEYS = ("head", "nodes", "models")
NODE_KEYS = ("ram", "free", "unified", "cpu", "cores", "devices", "link")
DEVICE_KEYS = ("memory", "free", "name", "unified", "integrated")
LINK_KEYS = ("kind", "round_trip_ms", "mbit")
MODEL_KEYS = ("layers", "width", "vocabulary", "heads", "kv_heads", "head_size", "size", "context", "parameters",
              "experts", "experts_used", "tied")
EXPERTS_PART = 0.95            # of a layer's bytes in a mixture of experts: the rest is attention
ASSUMED_BITS = 4.9             # a weight, where `parameters` is not given: Q4_K_M
_KINDS = {"CUDA": DeviceKind.CUDA, "ROCm": DeviceKind.ROCM, "MTL": DeviceKind.METAL, "Vulkan": DeviceKind.VULKAN}
_PROGRAMS = tuple(Binary(f"/described/{program}", program, commit="described")
                  for program in ("llama-server", "ggml-rpc-server"))
_SIZE, _COUNT = "a size such as 16GiB", "a whole number"


@dataclass(frozen=True, slots=True)
class DescribedFleet:
    """What a file describes."""

    snapshot: Snapshot
    config: FleetConfig
    headers: dict[str, GgufHeader]        # by model


def load_described(path: Path, model: str = "", header: GgufHeader | None = None) -> DescribedFleet:
    """The fleet of a file, with one model more if `header` is given.

    Raises:
        ConfigErrors: the file cannot be read, or says something that cannot be.
    """
    try:
        with path.open("rb") as file:
            text = marks.decode(file.read(marks.SIZE_LIMIT + 1))
        return described(text, path.name, model, header)
    except OSError as error:
        raise ConfigErrors(str(path), (f"{path} cannot be read: {error.strerror or 'no usable path'}",),
                           "Name a file that describes a fleet; `quarterdeck plan --help` says how.") from None
    except marks.NotReadable as error:
        raise ConfigErrors(str(path), (f"{path.name}:{error.line}: {error.sentence}",)) from None


def described(text: str, name: str = "fleet", model: str = "", header: GgufHeader | None = None) -> DescribedFleet:
    """The fleet that a text describes.

    Raises:
        ConfigErrors: it says something that cannot be.
        NotReadable: it is no YAML.
    """
    root_value, notes = marks.read(text), Notes(name)
    root = Section(Form(notes, "", root_value.line, root_value), ROOT_KEYS, "a mapping with nodes and models",
                   ignore="x-")
    found = mapping(root["nodes"], _node, "node names with what they have")
    headers = mapping(root["models"], _model, "model names with their figures")
    if header is not None:
        headers[model] = header
    head = word(root["head"], "", "the name of a node")
    if head and head not in found:
        root["head"].wrong(f"no node is called {head!r}", f"one of {', '.join(found) or 'the nodes'}")
    if not found and not notes.found:
        root["nodes"].wrong("no node is described", "node names with what they have")
    if notes.found:
        raise ConfigErrors(name, notes.lines())
    models = {key: ModelConfig(key, f"/described/{key}.gguf", head=head) for key in headers}
    files = tuple(ModelFile(models[key].file, max(1, value.file_size)) for key, value in headers.items())
    nodes = {key: replace(node, reading=replace(node.reading, models=files))
             for key, (node, _) in found.items() if node.reading}
    links = tuple(replace(link, head=one, worker=other) for one in found for other in found if one != other
                  if (link := _between(found[one][1], found[other][1])) is not None)
    return DescribedFleet(
        Snapshot(fleet=name, nodes=nodes, links=links),
        FleetConfig(fleet=name, nodes={key: NodeConfig(key) for key in nodes}, models=models,
                    model=next(iter(models)) if len(models) == 1 else ""), headers)


def _node(form: Form) -> tuple[Node, Link | None]:
    section = Section(form, NODE_KEYS, "a mapping with keys such as ram and devices")
    ram = size(section["ram"], None, 1 << 20)
    unified = boolean(section["unified"], False)
    devices = mapping(section["devices"], lambda part: _device(part, unified), "device names with their memory, for "
                      "example {CUDA0: 24GiB}")
    cpu = Cpu(word(section["cpu"], "", "the processor's name"), cores=integer(section["cores"], 0, 1, 4096, _COUNT))
    reading = NodeReading(os="Linux", cpu=cpu, memory=Memory(ram, size(section["free"], ram, 1 << 20), unified),
                          devices=tuple(devices.values()), binaries=_PROGRAMS)
    return Node(form.name, NodeState.UP, configured=True, reading=reading), _link(section["link"])


def _device(form: Form, unified: bool) -> Device:
    kind = next((kind for start, kind in _KINDS.items() if form.name.startswith(start)), None)
    if kind is None:
        form.wrong(f"{form.name!r} is no device of llama.cpp", "names such as CUDA0, ROCm0, MTL0, Vulkan0")
        kind = DeviceKind.VULKAN
    if not isinstance(form.value, marks.Mapping):
        memory = size(form, None, 1 << 20)
        return Device(form.name, kind, "", memory, memory, unified)
    section = Section(form, DEVICE_KEYS, "a size, or a mapping with memory and name")
    memory = size(section["memory"], None, 1 << 20)
    if memory is None and not section["memory"].written:
        form.wrong("'memory' is missing", _SIZE)
    return Device(form.name, kind, word(section["name"], "", "the device's name"), memory,
                  size(section["free"], memory, 1 << 20), boolean(section["unified"], unified),
                  integrated=boolean(section["integrated"], False))


def _link(form: Form) -> Link | None:
    if not form.written:
        return None
    section = Section(form, LINK_KEYS, "a mapping with round_trip_ms and mbit")
    trip = number(section["round_trip_ms"], 0.5, 0.0, 10_000.0, "milliseconds")
    bits = number(section["mbit"], 1000.0, 0.1, 1e6, "megabits a second")
    return Link(trip / 1000, bits * 1e6 / 8 * 0.9, choice(section["kind"], LinkKind, LinkKind.WIRED))


def _between(one: Link | None, other: Link | None) -> Link | None:
    """The way between two nodes: as bad as the worse of both ends; None where neither was described."""
    ends = [end for end in (one, other) if end is not None]
    if not ends:
        return None
    order = tuple(LinkKind)
    return Link(max(end.round_trip for end in ends), min(end.bytes_per_second for end in ends),
                max((end.kind for end in ends), key=order.index))


def _model(form: Form) -> GgufHeader:
    section = Section(form, MODEL_KEYS, "a mapping with keys such as layers, width and size")
    for key in ("layers", "width", "size"):
        if not section[key].written:
            form.wrong(f"'{key}' is missing", "at least layers, width and size")
    width = integer(section["width"], 64, 1, 1 << 20, _COUNT)
    head_size = integer(section["head_size"], 128, 1, 1 << 16, _COUNT)
    heads = integer(section["heads"], max(1, width // head_size), 1, 1 << 16, _COUNT)
    total = size(section["size"], 1, 1 << 20)
    return _header(
        form.name, layers=integer(section["layers"], 1, 1, MOST_LAYERS, _COUNT), width=width, heads=heads,
        head_size=head_size, kv_heads=integer(section["kv_heads"], heads, 1, 1 << 16, _COUNT),
        vocabulary=integer(section["vocabulary"], 128_256, 1, 1 << 24, _COUNT), total=total,
        context=integer(section["context"], 8192, 1, 1 << 30, _COUNT),
        parameters=number(section["parameters"], 0.0, 0.0, 1e5, "billions of parameters") * 1e9,
        experts=(integer(section["experts"], 0, 0, 65_536, _COUNT),
                 integer(section["experts_used"], 0, 0, 65_536, _COUNT)),
        tied=boolean(section["tied"], False))


def _header(name: str, *, layers: int, width: int, heads: int, head_size: int, kv_heads: int, vocabulary: int,
            total: int, context: int, parameters: float, experts: tuple[int, int], tied: bool) -> GgufHeader:
    """A header with these figures: embedding and output by their shapes, the rest even over the layers."""
    bits = 8 * total / parameters if parameters else ASSUMED_BITS
    matrix = min(round(vocabulary * width * bits / 8), total // 4)
    layer = max(0, total - matrix * (1 if tied else 2)) // layers
    routed = round(layer * EXPERTS_PART) if 0 < experts[1] < experts[0] else 0
    values = max(1, round(layer * 8 / bits))
    pieces = [("token_embd.weight", (vocabulary, width), matrix)]
    for number_ in range(layers):
        pieces.append((f"blk.{number_}.attn_q.weight", (max(1, round(values * (layer - routed) / max(1, layer))),),
                       layer - routed))
        if routed:
            pieces.append((f"blk.{number_}.ffn_down_exps.weight", (max(1, round(values * routed / layer)),), routed))
    if not tied:
        pieces.append(("output.weight", (vocabulary, width), matrix))
    figures: dict[str, int | float | bool | str | tuple] = {
        "general.architecture": "llama", "general.name": name, "llama.block_count": layers,
        "llama.embedding_length": width, "llama.context_length": context, "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads, "llama.attention.key_length": head_size,
        "llama.attention.value_length": head_size, "llama.vocab_size": vocabulary,
        "llama.feed_forward_length": 4 * width}
    if experts[0]:
        figures |= {"llama.expert_count": experts[0], "llama.expert_used_count": experts[1]}
    return GgufHeader(3, figures, {}, tuple(TensorInfo(name, shape, "Q4_K", 0, count) for name, shape, count in pieces),
                      0, total)
