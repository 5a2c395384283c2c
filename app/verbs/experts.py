"""`quarterdeck experts inspect|plan|watch|trace|simulate`: mixtures of experts that are larger than memory."""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module

from app.engines import engine_maker
from app.exit_codes import BadUsage, NothingThere
from app.face import EngineFace
from app.output import put
from app.session import run_to_end, watching
from app.verbs.inspect import found_copy, node_and_model
from app.which_fleet import which_fleet
from fleet.config.fields import bytes_of
from fleet.config.schema import HeadConfig, ModelConfig
from fleet.experts.budget import Needs, needs_of
from fleet.experts.layout import Layout, layout_of
from fleet.model import Node, ServiceKind, ServiceRecord
from fleet.models.header import GgufHeader
from fleet.models.local import header_of_file
from fleet.models.memory import Ask
from fleet.models.shards import model_name, shard_paths
from fleet.nodes.local import LocalTransport
from fleet.nodes.transport import Transport
from fleet.operations.streaming import ask_of
from fleet.planning.choose import node_config
from fleet.text import visible

HERE = "this machine"


@dataclass(frozen=True, slots=True)
class Mixture:
    """A model with experts, where it lies."""

    name: str
    node: str                          # HERE for a file of this machine
    paths: tuple[str, ...]
    header: GgufHeader
    layout: Layout
    ask: Ask
    needs: Needs
    transport: Transport
    config: ModelConfig | None = None  # of fleet.yaml
    head: HeadConfig | None = None     # of its node
    memory: int = 0                    # bytes of main memory of its node; 0 = not known

    @property
    def layer_bytes(self) -> dict[int, int]:
        """Bytes of one expert, by layer."""
        return {layer.layer: layer.expert_bytes for layer in self.layout.experts.layers}


@dataclass(frozen=True, slots=True)
class StreamedHead:
    """A head whose experts are read from disk, as it runs."""

    node: Node
    record: ServiceRecord
    state_folder: str
    state_dir: str
    transport: Transport

    @property
    def counts(self) -> bool:
        """Whether the shim is in it."""
        return bool(self.record.facts.get("shim"))


def run(options: argparse.Namespace) -> int:
    """Do what was asked for."""
    name = {"plan": "inspect"}.get(options.action, options.action)
    return import_module(f"app.verbs.experts_{name}").run(options)


def on_mixture(options: argparse.Namespace, work: Callable[[Mixture], Awaitable[int]]) -> int:
    """Find the model that `options` name, read its header, and do something with it while its node is reached."""
    wanted = os.path.expanduser(options.model)
    if not options.node and (os.path.lexists(wanted) or wanted.startswith(("./", "../"))):
        here = _here(options, os.path.abspath(wanted))
        return run_to_end(lambda: work(here))
    which = which_fleet(options, demo_counts=True)

    async def ask() -> int:
        async with watching(engine_maker(which, options)) as engine:
            return await work(await _there(options, engine))

    return run_to_end(ask)


def _here(options: argparse.Namespace, path: str) -> Mixture:
    return _mixture(options, model_name(path), HERE, path, header_of_file(path), LocalTransport(HERE))


async def _there(options: argparse.Namespace, engine: EngineFace) -> Mixture:
    config = engine.config.models.get(options.model)
    if config and config.file.startswith("/") and (options.node or config.head) in engine.latest.nodes:
        node, path = options.node or config.head, config.file        # it may lie outside of the model folders
    else:
        node, path = await found_copy(engine, *node_and_model(options, engine.latest))
    header = await engine.model_header(node, path)
    there = engine.latest.nodes[node]
    memory = there.reading.memory.total if there.reading else 0
    return _mixture(options, config.name if config else model_name(path), node, path, header, engine.transport(node),
                    config, node_config(engine.config, there).head, memory)


def _mixture(options: argparse.Namespace, name: str, node: str, path: str, header: GgufHeader, transport: Transport,
             config: ModelConfig | None = None, head: HeadConfig | None = None, memory: int = 0) -> Mixture:
    layout = layout_of(header)
    if layout is None:
        raise NothingThere(f"{name} is no mixture of experts: every token needs all of it.",
                           "`quarterdeck inspect` shows what it is.")
    asked = ModelConfig(name, path) if config is None else config
    ask = ask_of(asked, header)
    if options.context:
        ask = replace(ask, context=options.context)
    paths = shard_paths(path, header.split_count) if header.split_count > 1 else (path,)
    return Mixture(name, node, tuple(paths), header, layout, ask, needs_of(header, layout, ask), transport, config,
                   head, memory)


def on_head(options: argparse.Namespace, work: Callable[[EngineFace, StreamedHead], Awaitable[int]]) -> int:
    """Find the head that is meant among those that read experts from disk."""
    which = which_fleet(options, demo_counts=True)

    async def ask() -> int:
        async with watching(engine_maker(which, options)) as engine:
            return await work(engine, streamed_head(engine, options.node))

    return run_to_end(ask)


def streamed_head(engine: EngineFace, wanted: str) -> StreamedHead:
    """The one on that node, or the only one.

    Raises:
        NothingThere: there is none.
        BadUsage: there are several.
    """
    found = []
    for name, node in engine.latest.nodes.items():
        records = node.reading.services if node.reading else ()
        found += [(node, record) for record in records if wanted in ("", name) and record.alive
                  and record.kind is ServiceKind.COORDINATOR and record.facts.get("bound")]
    if not found:
        raise NothingThere(f"No head{f' on {wanted}' if wanted else ''} reads experts from disk.",
                           "`experts: {budget: ...}` of a model in fleet.yaml, and `quarterdeck up`.")
    if len({node.name for node, _ in found}) > 1:
        raise BadUsage(f"Heads on {', '.join(sorted({node.name for node, _ in found}))} read experts from disk.",
                       "Say which: `quarterdeck experts watch NODE`.")
    node, record = found[0]
    return StreamedHead(node, record, node.reading.state_folder if node.reading else "",
                        node_config(engine.config, node).state_dir, engine.transport(node.name))


def show(lines: Iterable[str]) -> None:
    """Print lines that may name what a node or a file says."""
    put("\n".join(visible(line) for line in lines))


def size_of(text: str, option: str) -> int:
    """Bytes from what a person wrote.

    Raises:
        BadUsage: it is no size.
    """
    found = bytes_of(text)
    if found is None or found <= 0:
        raise BadUsage(f"{option} {text} is no size.", "Write it as 12GiB, 500MB or a number of bytes.")
    return found
