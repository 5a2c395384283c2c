"""What vLLM died of, by its log; and llama.cpp's own causes stay what they were."""

from __future__ import annotations

import pytest

from fleet.model import ServiceKind
from fleet.runtimes.death import cause_of_death

STAGE, HEAD = ServiceKind.STAGE, ServiceKind.COORDINATOR


@pytest.mark.parametrize(("kind", "tail", "code"), [
    (STAGE, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "memory"),
    (HEAD, "(EngineCore pid=7) ValueError: No available memory for the cache blocks.", "memory"),
    (HEAD, "vllm: error: unrecognized arguments: --no-such 1", "flag"),
    (STAGE, "OSError: [Errno 98] Address already in use", "port-taken"),
    (STAGE, "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, ncclSystemError", "network"),
    (HEAD, "torch.distributed.DistStoreError: wait timeout after 600000ms", "network"),
    (HEAD, "vllm/config/model.py\nNotImplementedError: Supported models implement the `SupportsPP` interface.",
     "no-pipeline"),
    (HEAD, "File vllm/x.py\nValueError: Bfloat16 is only supported on newer GPUs.", "vllm"),
    (STAGE, "", "killed"),
])
def test_the_log_tells_what_vllm_died_of(kind: ServiceKind, tail: str, code: str) -> None:
    problem = cause_of_death(kind, 137 if not tail else 1, tail)
    assert problem.code == code and problem.what and problem.remedy


def test_a_stage_that_stopped_itself_is_no_llama_server() -> None:
    assert "llama" not in cause_of_death(STAGE, 134, "").what
    assert "llama-server" in cause_of_death(HEAD, 134, "").what
