"""Why a process of vLLM or Ray ended, by what its log complains of. Phrases as vLLM 0.33.0 and PyTorch print them."""

from __future__ import annotations

import re

from fleet.model import Problem, ServiceKind

_SPEAKS = re.compile(r"\bvllm\b|\bEngineCore\b|\btorch\.|\bray(?:\.|::)|\bVLLM")
_ARGUMENT = re.compile(r"unrecognized arguments: (.{1,200})|error: argument (.{1,200})")
_UNREACHED = re.compile(r"NCCL error|nccl(System|Remote)Error|connectFullMesh|Dist(Network|Store)Error")
_REASON = re.compile(r"^(?:\(.{1,80}?\) )?(?:ValueError|RuntimeError|NotImplementedError|AssertionError): (.{1,300})")


def is_vllm(kind: ServiceKind, log_tail: str) -> bool:
    """Whether a log is vLLM's or Ray's: a head can be one of either runtime."""
    return kind is ServiceKind.STAGE or (kind is ServiceKind.COORDINATOR and _SPEAKS.search(log_tail) is not None)


def vllm_cause(log_tail: str) -> Problem | None:
    """The likely cause and what to do; None when the log does not tell."""
    if "out of memory" in log_tail or "No available memory for the cache blocks" in log_tail:
        return Problem("memory", "vLLM found no memory for the model or its cache.",
                       "Give the model a smaller `context:`, fewer `slots:`, or more nodes.")
    if match := _ARGUMENT.search(log_tail):
        return Problem("flag", f"vLLM does not take what it was given: {match[1] or match[2]}.",
                       "Correct `extra_args:`; options differ between versions.")
    if "Address already in use" in log_tail or "EADDRINUSE" in log_tail:
        return Problem("port-taken", "A port that vLLM wanted is taken on that machine.",
                       "End what listens there, or set another port.")
    if _UNREACHED.search(log_tail):
        return Problem("network", "The processes of vLLM did not reach each other.",
                       "See that the nodes reach each other's addresses on all ports, and that `rpc_address:` is on "
                       "the interface that is meant.")
    if "SupportsPP" in log_tail:
        return Problem("no-pipeline", "vLLM cannot cut this model into a pipeline.", "Run it on one machine.")
    reasons = [match[1] for line in log_tail.splitlines() if (match := _REASON.match(line))]
    if reasons:
        return Problem("vllm", f"vLLM gave up: {reasons[-1].rstrip('.')}.", "Its log says more.")
    return None
