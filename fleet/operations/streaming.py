"""A head whose experts are read from disk inside a budget: everything about it that is decided before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.config.schema import ExpertsConfig, ModelConfig, NodeConfig
from fleet.errors import PlanRefused
from fleet.experts.bound import (
    READAHEAD,
    Bound,
    Ground,
    bound_for,
    bound_of,
    bounded_command,
    bounded_environment,
    choose_way,
    look,
)
from fleet.experts.budget import Needs, judge_budget, needs_of
from fleet.experts.conditions import check_arguments, check_owner, check_readahead
from fleet.experts.layout import Layout, layout_of
from fleet.experts.shim import AHEAD, ASKED, PRELOAD, TRACE, NoShim, Shim, environment
from fleet.model import Node
from fleet.models.header import GgufHeader
from fleet.models.memory import Ask
from fleet.models.shards import shard_paths
from fleet.nodes.services import ServiceSpec
from fleet.operations.hands import Hands
from fleet.planning.choose import Choice
from fleet.runtimes.binaries import Flags, build_label

CONTEXT = 4096             # tokens, where fleet.yaml says none: every one more takes room from experts
MIB = 1 << 20


@dataclass
class Streaming:
    """What the steps of such a bring-up share."""

    config: ExpertsConfig
    program: str                       # path of its llama-server
    paths: tuple[str, ...]             # of the model's files on the head
    layout: Layout
    ask: Ask
    needs: Needs
    ground: Ground
    bound: Bound
    arguments: tuple[str, ...]         # of llama-server, that keep the limit
    wants_shim: bool
    needs_shim: bool                   # without it the readahead of the disk makes it useless
    remarks: tuple[str, ...]
    drafted: int = 0                   # tokens that a pass may verify beside one of each request
    shim: Shim | NoShim | None = None  # once it is known

    def around(self, spec: ServiceSpec) -> ServiceSpec:
        """The head inside its limit, with the shim where there is one."""
        env, argv = {**spec.env, **bounded_environment(self.bound, self.ground)}, spec.argv
        if isinstance(self.shim, Shim):
            ahead = min(AHEAD, max(MIB, self.needs.room(self.bound.limit) // 4))
            given = environment(self.shim, slots=self.ask.slots, drafted=self.drafted, ahead=ahead, trace=TRACE,
                                asked=ASKED)
            # Not into what makes the limit: it would take itself out of the environment there, as for every child.
            argv = ("env", f"{PRELOAD}={given.pop(PRELOAD)}", *argv)
            env |= given
        return replace(spec, argv=bounded_command(self.bound, argv, spec.id), env=env,
                       facts={**spec.facts, "bound": self.bound.to_json(),
                              "shim": self.shim.path if isinstance(self.shim, Shim) else ""})


async def prepare_streaming(hands: Hands, choice: Choice, head: NodeConfig, header: GgufHeader,
                            flags: Flags) -> Streaming:
    """Decide it, and refuse what would break the budget.

    Raises:
        PlanRefused: it cannot work, or the budget would not be kept.
    """
    model, node, config = choice.model, choice.head, choice.model.experts
    assert config is not None
    layout = layout_of(header)
    if layout is None:
        raise PlanRefused(f"{model.name} is no mixture of experts: every token needs all of it, so none of it can stay "
                          "on disk.", "Take `experts:` from it.", code="dense")
    program = f"llama-server {build_label(choice.head_binary)} on {node.name}"
    arguments = check_arguments(flags, program, (*head.head.extra_args, *model.extra_args), head.head.env)
    ask = ask_of(model, header)
    needs = needs_of(header, layout, ask, prompts=arguments.prompts)
    remarks = list(judge_budget(needs, config.budget, model.name))
    _check_memory(node, config.budget)
    if model.context is None:
        remarks.append(f"The context is {ask.context} tokens; `context:` of the model sets another.")
    paths = shard_paths(model.file, header.split_count) if header.split_count > 1 else (model.file,)
    service = f"coordinator-{head.head.port}"
    ground = _as_it_was(await look(hands.transport(node.name), paths), node, service)
    way = choose_way(ground, node.name)
    check_owner(ground, paths, node.name)
    wants_shim = config.shim and needs.room(config.budget) < needs.experts
    readahead = check_readahead(ground, paths, node.name, shim=wants_shim)
    remarks += readahead.remarks
    remarks += [f"The readahead of its disk is set from {was} to {READAHEAD} KB as long as it runs ({setting})."
                for setting, was in readahead.lower]
    bound = replace(bound_for(ground, way, config.budget, service),
                    readahead=tuple((setting, READAHEAD, was) for setting, was in readahead.lower), files=paths)
    return Streaming(config, choice.head_binary.path, paths, layout, ask, needs, ground, bound, arguments.argv,
                     wants_shim, any("should be" in remark for remark in readahead.remarks), tuple(remarks),
                     model.draft.length if model.draft else 0)


def ask_of(model: ModelConfig, header: GgufHeader) -> Ask:
    """What a head of this model with a budget is told: fleet.yaml's words, else those that leave room for experts."""
    trained = header.context_length
    context = model.context or (trained if model.context == 0 else None) or min(CONTEXT, trained or CONTEXT)
    return Ask(context, model.slots or 1, model.kv_type_k or "f16", model.kv_type_v or "f16",
               model.flash_attention != "off")


def _check_memory(node: Node, budget: int) -> None:
    memory = node.reading.memory.total if node.reading else 0
    if memory and budget > memory:
        raise PlanRefused(f"{node.name} has {memory // MIB} MiB of main memory, less than the budget of "
                          f"{budget // MIB} MiB.", "Give a smaller `budget:`.", code="budget")


def _as_it_was(ground: Ground, node: Node, service: str) -> Ground:
    """The ground with the readahead that it will have when the bounded heads that run now have ended."""
    before: dict[str, int] = {}
    records: Sequence = node.reading.services if node.reading else ()
    for record in records:
        if (bound := bound_of(record.facts)) is not None:
            before |= {setting: was for setting, _, was in bound.readahead}
    return replace(ground, files=tuple(
        replace(file, readahead=max(file.readahead or 0, before[file.setting])) if file.setting in before else file
        for file in ground.files))
