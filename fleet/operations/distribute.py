"""The Plan that brings a model to other machines: it is found, everybody is looked at, and what cannot work is refused.

Order: the program on every node, the manifest, the hub's hash, a seeder at the source, pullers that seed on the
targets, and at the end everything is stopped and the token is taken away. What arrived stays whatever happens: the
same command goes on from there.

The services are detached like all of ours. A cockpit that dies leaves them pulling; the same command finds them by
the manifest's id, takes the token from the source's file and follows them again. One that is closed or told to cancel
ends them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.errors import NO_SUCH, PlanRefused
from fleet.events import Distribute
from fleet.model import Node, NodeState
from fleet.models.inventory import Model, Place, PlaceState, find_models, inventory
from fleet.operations.distribute_look import look_at_source, look_at_targets, refuse_full
from fleet.operations.distribute_steps import CheckHashes, CleanUp, MakeManifest, PushProgram, StartSource
from fleet.operations.hands import Hands, Known
from fleet.operations.plan import Plan
from fleet.operations.spreading import Spread
from fleet.planning.planned import size
from fleet.swarm.deal import Deal, Party, missing_bytes
from fleet.swarm.push import Ground
from fleet.text import visible

ALL = "all"
SHOWN = 6            # nodes that a title names


async def plan_distribute(hands: Hands, known: Known, command: Distribute, number: int = 0) -> Plan:
    """The Plan of `command`; `number` is the operation's.

    Raises:
        PlanRefused: no such model or node, no room, or the source cannot give it. Nothing was started.
        FleetError: a node does not answer.
    """
    nodes = hands.snapshot().nodes
    source, path, known_as = find_source(hands, command)
    targets, remarks = _targets(hands, command, source)
    ground, paths, sizes = await look_at_source(hands, source, path)
    if not ground.python:
        raise PlanRefused(f"{source.name} has no python3 of version 3.9 or newer, so it cannot seed {known_as}.",
                          f"Install python3 on {source.name}, or copy the model to a node that has it first.",
                          code="no-python")
    hashes = _hashes(command, paths)
    deal = Deal(paths[0].rpartition("/")[2], paths, sizes, Party(source.name, ground), (), hashes, command.limit,
                number)
    present = [node for node in targets if node.state is NodeState.UP and node.reading is not None]
    if not present:
        raise PlanRefused(f"None of {_names(targets)} can be reached.", "`quarterdeck nodes` says why.")
    grounds = await look_at_targets(hands, deal, present, command.folder)
    refuse_full(deal, grounds)
    parties = []
    for node in targets:
        party = Party(node.name, grounds.get(node.name, Ground()), late=node.name not in grounds)
        parties.append(party)
        remarks += _remarks(nodes[node.name], party, deal)
    deal.targets = tuple(parties)
    title = f"Distribute {visible(deal.name)} ({size(deal.size)}) from {source.name} to {_names(targets)}"
    steps = (PushProgram(hands, deal), MakeManifest(hands, known, deal), *_check_steps(deal),
             StartSource(hands, deal), Spread(hands, deal), CleanUp(hands, deal))
    return Plan("distribute", title, steps, source.name, tuple(remarks))


def _check_steps(deal: Deal) -> tuple[CheckHashes, ...]:
    return (CheckHashes(deal),) if deal.sha256 else ()


# ---------------------------------------------------------------------------------------------
# Who


def find_source(hands: Hands, command: Distribute) -> tuple[Node, str, str]:
    """Node, path of the first file, and what the model is called.

    `model` is NODE:PATH, a name of fleet.yaml, a name or path of a model that a node has, or a path on this machine.

    Raises:
        PlanRefused: there is none, or it is not clear which one is meant.
    """
    wanted, nodes = command.model or hands.config.model, hands.snapshot().nodes
    if not wanted:
        raise PlanRefused("Which model to distribute was not said.", "Say its name or the path of its file.")
    name, colon, path = wanted.partition(":")
    if colon and name in nodes and path:
        return _reachable(nodes[name]), path, path.rpartition("/")[2]
    if wanted in hands.config.models:
        wanted = hands.config.models[wanted].file
    low = wanted.removeprefix("~/") if wanted.startswith("~/") else wanted
    models = [model for model in inventory(nodes) if _goes_by(model, wanted, low)]
    if len(models) > 1:
        raise PlanRefused(f"{wanted} is the name of {len(models)} different models.",
                          "Say NODE:PATH of the one that is meant.", code="ambiguous")
    if models:
        place = _best_place(models[0], nodes, command.to, wanted)
        return nodes[place.node], place.path, models[0].name
    if wanted.startswith("/") and (here := next((node for node in nodes.values() if node.local), None)):
        return _reachable(here), wanted, wanted.rpartition("/")[2]
    raise PlanRefused(f"No model is called {wanted}.",
                      "Say the name of one that `quarterdeck inspect` knows, its path on this machine, or NODE:PATH.",
                      code=NO_SUCH)


def _goes_by(model: Model, wanted: str, low: str) -> bool:
    return bool(find_models((model,), wanted)) or (any(
        path.endswith(f"/{low}") for place in model.places for path in place.paths) and low != wanted)


def _best_place(model: Model, nodes: Mapping[str, Node], to: Sequence[str], wanted: str) -> Place:
    """A complete copy on a node that is up: this machine's first, and rather one that is no target."""
    usable = [place for place in model.places if place.state is PlaceState.COMPLETE
              and nodes[place.node].state is NodeState.UP]
    if not usable:
        raise PlanRefused(f"No node that is up has a complete copy of {model.name}.",
                          "`quarterdeck nodes` says what cannot be reached.")
    exact = [place for place in usable if wanted in place.paths]
    return min(exact or usable, key=lambda place: (place.node in to, not nodes[place.node].local, place.node))


def _reachable(node: Node) -> Node:
    if node.state is not NodeState.UP:
        why = f" {node.problem.what}" if node.problem else ""
        raise PlanRefused(f"{node.name} is {node.state.value}, and the model would come from there.{why}",
                          node.problem.remedy if node.problem else "Wait until it is up.")
    return node


def _targets(hands: Hands, command: Distribute, source: Node) -> tuple[list[Node], list[str]]:
    nodes, remarks = hands.snapshot().nodes, []
    if not command.to:
        raise PlanRefused("Where to distribute it was not said.", "Name nodes, or say `all`.")
    if ALL in command.to and ALL not in nodes:
        members = [node for node in nodes.values() if node.name != source.name
                   and (node.configured or not hands.config.nodes)]
        remarks += [f"{node.name} is left out: it is {node.state.value}." for node in members
                    if node.state is not NodeState.UP]
        targets = [node for node in members if node.state is NodeState.UP]
        if not targets:
            raise PlanRefused(f"There is no other node than {source.name} that is up.", "`quarterdeck nodes` says why.")
        return targets, remarks
    unknown = [name for name in command.to if name not in nodes]
    if unknown:
        raise PlanRefused(f"No node is called {', '.join(unknown)}.", f"Nodes: {', '.join(nodes) or 'none'}.",
                          code=NO_SUCH)
    targets = [nodes[name] for name in dict.fromkeys(command.to) if name != source.name]
    if not targets:
        raise PlanRefused(f"{source.name} is where the model is.", "Name another node.")
    if source.name in command.to:
        remarks.append(f"{source.name} has it already: it is the source.")
    return targets, remarks


def _remarks(node: Node, party: Party, deal: Deal) -> list[str]:
    if party.late:
        return [f"{node.name} is {node.state.value}: it joins when it comes while others are still served."]
    if party.by_hand:
        return [f"{node.name} has no python3 of version 3.9 or newer: it is written to by SFTP and gives nothing on."]
    if not missing_bytes(party.ground, deal.names, deal.sizes):
        return [f"{node.name} has a file of this name in {visible(party.ground.folder)}: its hash is checked."]
    return []


def _hashes(command: Distribute, paths: Sequence[str]) -> tuple[str, ...]:
    given = tuple(text.strip().lower().removeprefix("sha256:") for text in command.sha256)
    if given and (len(given) != len(paths) or any(len(text) != 64 or set(text) - set("0123456789abcdef")
                                                  for text in given)):
        raise PlanRefused(f"The model is in {len(paths)} file{'s' if len(paths) > 1 else ''}, and what was given is no "
                          "list of as many SHA-256 hashes.",
                          "Give the 64 hexadecimal digits for each file, in order, as the hub shows them.",
                          code="bad-hash")
    return given


def _names(nodes: Sequence[Node]) -> str:
    names = [node.name for node in nodes]
    return ", ".join(names) if len(names) <= SHOWN else f"{len(names)} nodes"
