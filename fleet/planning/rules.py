"""The compatibility rules: what goes together over several machines, in one table, each row with its source.

`judge` asks every row about a Situation. A row that finds nothing against it answers OK. Nothing here looks at a
machine: what is not known is None or "" in the Situation, and a rule never refuses for what is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fleet.planning import rules_builds, rules_memory, rules_network, rules_speculation, rules_split
from fleet.planning.situation import Level, Runtime, Situation, Verdict

_FACTS = "llama.cpp b10068, b11434"
BOTH = (Runtime.LLAMA, Runtime.VLLM)
LLAMA = (Runtime.LLAMA,)
VLLM = (Runtime.VLLM,)
Finding = tuple[Level, str, str]           # level, sentence, remedy


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: its id, for which runtimes, what it demands, where that comes from, and how it is looked at."""

    id: str
    runtimes: tuple[Runtime, ...]
    demand: str
    source: str
    look: Callable[[Situation], Iterable[Finding]]


RULES = (
    # Builds
    Rule("build-mismatch", BOTH, "Head and workers are of one build.",
         "run: 4 builds against each other; llama.cpp#11552, #12465, #26392; Ray demands one Python and one Ray",
         rules_builds.one_build),
    Rule("protocol-mismatch", LLAMA, "Head and workers speak RPC protocols that understand each other.",
         f"{_FACTS} ggml-rpc.cpp, negotiate_hello: same major, the worker's minor not above the head's; "
         "b10068 goes on without the worker, b11434 aborts", rules_builds.one_protocol),
    Rule("patch-mismatch", LLAMA, "RPC protocols agree in the patch number, which nobody else compares.",
         f"{_FACTS} ggml-rpc.h: it counts changes of the list of operations", rules_builds.one_patch),
    Rule("worker-first", LLAMA, "A worker of another build is started anew before the head.",
         "run: a head that meets an old worker aborts or leaves it out", rules_builds.worker_first),
    # Speculation
    Rule("speculation-mode", LLAMA, "The head's build knows the way to speculate.",
         f"{_FACTS} --help: draft-dspark came after b10068", rules_speculation.known_mode),
    Rule("speculation-needs", LLAMA, "What the way to speculate drafts with is there.",
         "llama.cpp docs/speculative.md, b11434", rules_speculation.has_drafter),
    Rule("speculation-silent", LLAMA, "A draft model is used.",
         f"run: {_FACTS} draft nothing with -md alone and say nothing", rules_speculation.draft_is_used),
    Rule("speculation-rpc", LLAMA, "The way to speculate works with layers on workers.",
         "the table in speculation_modes.py, each row with its own source", rules_speculation.works_over_rpc),
    Rule("speculation-streamed", LLAMA, "Experts that are read from disk are asked for by one token at a time.",
         "fleet/experts/passes.py: 12.68 of 256 experts for two tokens of 8 are 1.585 times one's; misses a "
         "token 1.3 to 1.5 times those without drafts in simulated caches", rules_speculation.one_at_a_time),
    Rule("speculation-pipeline", VLLM, "A pipeline over machines does not speculate.",
         "vLLM up to 0.15 refuses it; 0.33.0 v1/worker/gpu/spec_decode/eagle/eagle3_utils.py refuses it by model, "
         "v1/worker/gpu_model_runner.py asserts one token a request; vllm#49355, #52069, #57755",
         rules_speculation.none_in_a_pipeline),
    # Devices and the split
    Rule("one-vendor", BOTH, "The GPUs of one machine that share a process are of one vendor.",
         "a build of llama.cpp or PyTorch carries one vendor's kernels; NCCL and RCCL do not meet",
         rules_split.one_vendor),
    Rule("split-mode", LLAMA, "Layers are dealt whole to machines: no row or tensor split over RPC.",
         f"{_FACTS}: ggml-rpc has no split buffers; -sm tensor sums over devices at every layer; llama.cpp#28506",
         rules_split.layers_only),
    Rule("too-many-devices", LLAMA, "At most 15 devices beside the CPU.",
         f"run: {_FACTS} serve with 15 workers and abort with 16 (GGML_SCHED_MAX_BACKENDS)", rules_split.few_devices),
    Rule("too-many-shares", LLAMA, "A tensor split has at most 15 values.",
         f"run: {_FACTS} reject the 16th (common/arg.cpp)", rules_split.few_shares),
    Rule("states-apart", LLAMA, "States of mamba's kind are with one worker at the most.",
         "run: b10068 with mamba, mamba2 and granite-hybrid: one worker serves, with two the load ends in \"Remote RPC "
         "server crashed or returned malformed response\"", rules_split.states_together),
    Rule("pipeline-bubble", BOTH, "Several requests at once keep every machine at work.",
         "each machine waits while the others work on the only request; llama.cpp#8832, #10654, #15463",
         rules_split.no_bubble),
    # KV cache
    Rule("kv-needs-flash-attention", LLAMA, "A quantised V cache has flash attention.",
         f"{_FACTS} llama-context.cpp refuses it without", rules_memory.flash_attention_for_v),
    Rule("kv-block-size", LLAMA, "A quantised cache's block divides the size of an attention head.",
         f"{_FACTS} llama-context.cpp refuses it otherwise", rules_memory.whole_blocks),
    Rule("kv-one-type", LLAMA, "Latent attention has one type for K and V.",
         f"{_FACTS} llama-context.cpp refuses two", rules_memory.one_type_for_latent),
    # The network
    Rule("rdma-address", LLAMA, "RDMA: both builds have it and the worker's RDMA address is the one that is dialled.",
         "llama.cpp tools/rpc/README.md, b11434; GGML_RPC_NO_RDMA on either side keeps TCP (transport.cpp)",
         rules_network.rdma_is_used),
    Rule("wireless", BOTH, "Machines of one model are joined by cable.",
         "run: 38 to 17 tokens a second at 10 ms; each token is a round trip for each worker",
         rules_network.by_cable),
    Rule("workers-open", LLAMA, "Only the head reaches a worker.",
         "ggml-rpc-server has no authentication; CVE-2024-42477, -42478, -42479; llama.cpp#13061",
         rules_network.workers_closed),
    Rule("stages-open", VLLM, "Only the stages of a pipeline reach each other.",
         "vLLM docs/usage/security.md: traffic between nodes is neither signed nor encrypted",
         rules_network.stages_closed),
    Rule("head-open", BOTH, "Whoever reaches the head needs a key, or is on its machine.",
         "llama-server and vLLM serve everybody when no key was given", rules_network.head_closed),
)


def judge(situation: Situation) -> tuple[Verdict, ...]:
    """What every rule says: one verdict OK, or one for each thing that it finds. In the order of the table."""
    return tuple(verdict for rule in RULES if situation.runtime in rule.runtimes
                 for verdict in _ask(rule, situation))


def _ask(rule: Rule, situation: Situation) -> Iterator[Verdict]:
    found = False
    for level, sentence, remedy in rule.look(situation):
        found = True
        yield Verdict(level, rule.id, sentence, remedy, rule.source)
    if not found:
        yield Verdict(Level.OK, rule.id, rule.demand, "", rule.source)


def refusals(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Those that stand against it."""
    return tuple(verdict for verdict in verdicts if verdict.level is Level.REFUSAL)


def warnings(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Those that a person should know before it starts."""
    return tuple(verdict for verdict in verdicts if verdict.level is Level.WARNING)
