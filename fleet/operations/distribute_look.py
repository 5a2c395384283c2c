"""What a distribution finds on its nodes: the model's files, folders, room, python3. Nothing is changed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fleet.errors import NO_SUCH, NodeError, PlanRefused
from fleet.model import Node
from fleet.models.shards import shard_of, shard_paths
from fleet.node.manifest import SUFFIX, TIGHTWAD_SUFFIX
from fleet.operations.hands import Hands
from fleet.planning.choose import node_config
from fleet.planning.planned import size
from fleet.swarm.deal import SPARE, Deal, missing_bytes
from fleet.swarm.push import Ground, look
from fleet.text import visible


async def look_at_source(hands: Hands, source: Node, path: str) -> tuple[Ground, tuple[str, ...], tuple[int, ...]]:
    """What runs there, the paths of the model's files and their sizes.

    Raises:
        PlanRefused: a file is not there.
        FleetError: the node does not answer.
    """
    shard = shard_of(path)
    paths = tuple(shard_paths(path, shard.count)) if shard else (path,)
    state_dir = node_config(hands.config, source).state_dir
    beside = [path + suffix for suffix in (SUFFIX, TIGHTWAD_SUFFIX)]
    found = await look(hands.transport(source.name), state_dir, (), (*paths, *beside))
    missing = [each for each in paths if each not in found.files]
    if missing:
        raise PlanRefused(f"{visible(missing[0])} is not on {source.name}, or cannot be read there"
                          f"{f' (and {len(missing) - 1} more of its files)' if len(missing) > 1 else ''}.",
                          "Check the path.", code=NO_SUCH)
    sizes = tuple(found.files[each].size for each in paths)
    if not all(sizes):
        raise PlanRefused(f"{visible(path)} on {source.name} is empty.", "Fetch the model again.")
    return _with_python(found, source), paths, sizes


def _with_python(ground: Ground, node: Node) -> Ground:
    """On this machine what runs us runs the swarm too."""
    return replace(ground, python=sys.executable) if node.local else ground


async def look_at_target(hands: Hands, deal: Deal, node: Node, wanted: str = "") -> Ground:
    """Folder, room and programs of one target. `wanted`: the folder that it has to be, "" = what there is.

    Raises:
        PlanRefused: there is no folder for models.
        FleetError: it does not answer.
    """
    wishes = node_config(hands.config, node)
    folders = list(wishes.model_dirs or hands.config.model_dirs)
    for file in node.reading.models if node.reading else ():    # where a copy of it lies already
        if file.path.rpartition("/")[2] == deal.name and file.size == deal.sizes[0]:
            folders.insert(0, file.path.rpartition("/")[0])
    folders = [wanted] if wanted else folders
    ground = _with_python(await look(hands.transport(node.name), wishes.state_dir, folders, deal.names), node)
    if not ground.folder:
        raise PlanRefused(f"No folder for models can be written on {node.name}: {', '.join(folders)}.",
                          f"Name one that {node.reading.user if node.reading and node.reading.user else 'the user'} "
                          f"can write, as `model_dirs:` of {node.name} in fleet.yaml.", code="no-folder")
    return ground


async def look_at_targets(hands: Hands, deal: Deal, nodes: Iterable[Node], folder: str = "") -> dict[str, Ground]:
    """Of each; one that was lost just now is left out: it may join later."""
    nodes = list(nodes)
    looks = (look_at_target(hands, deal, node, folder) for node in nodes)
    answers = await asyncio.gather(*looks, return_exceptions=True)
    grounds = {}
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, NodeError):
            continue
        if isinstance(answer, BaseException):
            raise answer
        grounds[node.name] = answer
    return grounds


def refuse_full(deal: Deal, grounds: Mapping[str, Ground]) -> None:
    """Refuse when the model does not fit on a target's disk: nothing has moved yet.

    Raises:
        PlanRefused: it does not, and where.
    """
    full = []
    for name, ground in grounds.items():
        needed = missing_bytes(ground, deal.names, deal.sizes)
        if needed and ground.free is not None and ground.free < needed + SPARE:
            full.append(f"{name} has {size(ground.free)} free for {visible(ground.folder)}")
    if full:
        raise PlanRefused(f"{visible(deal.name)} takes {size(deal.size)}, and {'; '.join(full)}.",
                          "Free some space there, name another folder (`model_dirs:`), or leave that node out.",
                          code="no-room")
