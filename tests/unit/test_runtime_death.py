"""Why processes end: real ends of b10068, and what the exit status alone tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import ServiceKind
from fleet.runtimes.death import cause_of_death
from fleet.runtimes.worker_log import read_banner

DATA = Path(__file__).parents[1] / "data"
HEAD, WORKER = ServiceKind.COORDINATOR, ServiceKind.WORKER


@pytest.mark.parametrize(
    ("name", "status", "code", "part"),
    [
        ("baddev", 1, "unknown-device", "RPC7"),
        ("badflag", 1, "unknown-flag", "--np"),
        ("dead2dev", 1, "worker-unreachable", "127.0.0.1:31990"),
        ("death", 134, "worker-crashed", "worker died"),
        ("mismatchdev", 1, "protocol-mismatch", "7.0.0"),
        ("nomodel", 1, "no-model", "/models/nope.gguf"),
        ("notgguf", 1, "not-gguf", "'vers'"),
        ("oomkv", 139, "out-of-memory", "device 0 of the worker at 127.0.0.1:31953"),
        ("oommodel", 1, "out-of-memory", "device 0 of the worker at 127.0.0.1:31956"),
        ("oomlocal", 139, "out-of-memory", "CPU"),
        ("portconf", 1, "port-taken", "127.0.0.1:31955"),
        ("sixteen", 134, "too-many-devices", "15"),
        ("ts16", 1, "too-many-devices", "15"),
    ],
)
def test_a_heads_own_words_tell_more_than_its_status(name: str, status: int, code: str, part: str):
    problem = cause_of_death(HEAD, status, (DATA / f"server/deaths/{name}.log").read_text())
    assert (problem.code, part in problem.what) == (code, True), problem.what
    assert problem.remedy


@pytest.mark.parametrize(
    ("name", "code", "part"),
    [
        ("conf", "port-taken", "127.0.0.1:31951"),
        ("badaddr", "port-taken", "10.99.99.99:31954"),
        ("badhost", "bad-host", "localhost"),
        ("baddev", "unknown-device", "CUDA0"),
        ("badarg", "unknown-flag", "--nope"),
    ],
)
def test_a_worker_that_ends_with_0_is_not_believed(name: str, code: str, part: str):
    problem = cause_of_death(WORKER, 0, (DATA / f"rpc/deaths/{name}.log").read_text())
    assert (problem.code, part in problem.what) == (code, True), problem.what


def test_a_worker_killed_by_a_probe_is_told_by_its_signal():
    log = "\n".join(
        line
        for line in (DATA / "rpc/rpc_server_proto7_probe_death.log").read_text().splitlines()
        if not line.startswith("#")
    )
    problem = cause_of_death(WORKER, 141, log)
    assert problem.code == "broken-pipe" and "SIGPIPE" in problem.what


def test_an_abort_text_names_the_worker_as_the_cause():
    assert cause_of_death(HEAD, 134, (DATA / "server/worker_died_abort.log").read_text()).code == "worker-crashed"


def test_the_abort_of_newer_heads_at_a_dead_or_foreign_worker_is_told():
    dead = "/src/ggml/src/ggml-rpc/ggml-rpc.cpp:547: Failed to connect to 10.0.0.3:50052\n"
    foreign = (
        "E RPC server version mismatch: 4.0.3\n"
        "/src/ggml/src/ggml-rpc/ggml-rpc.cpp:550: RPC handshake failed for 10.0.0.3:50052\n"
    )
    assert cause_of_death(HEAD, 134, dead).code == "worker-unreachable"
    problem = cause_of_death(HEAD, 134, foreign)
    assert problem.code == "protocol-mismatch" and "10.0.0.3:50052" in problem.what


def test_a_worker_missing_at_the_start_does_not_hide_what_happened_later():
    crashed = "/src/ggml-rpc.cpp:498: Remote RPC server crashed or returned malformed response\n"
    log = f"E Failed to connect to h:1\nx\n{crashed}"
    assert cause_of_death(HEAD, 134, log).code == "worker-crashed"


def test_removed_options_are_told():
    for line in (DATA / "server/removed_flags.txt").read_text().splitlines()[1:]:
        assert cause_of_death(HEAD, 1, line).code in ("bad-argument", "unknown-flag")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory",
            "out-of-memory",
        ),
        ("CUDA error: out of memory", "out-of-memory"),
        ("CUDA error: an illegal memory access was encountered", "gpu-error"),
        (
            "./llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared object file",
            "library-missing",
        ),
        (
            "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'x'",
            "model-refused",
        ),
        ("/src/ggml.c:12: GGML_ASSERT(a == b) failed", "aborted"),
    ],
)
def test_lines_of_other_builds_are_understood(line: str, code: str):
    assert cause_of_death(HEAD, 1, line).code == code


@pytest.mark.parametrize(
    ("kind", "status", "code", "part"),
    [
        (HEAD, 134, "aborted", "workers"),
        (WORKER, 134, "aborted", "check"),
        (HEAD, 137, "killed", "memory ran out"),
        (HEAD, 132, "illegal-instruction", "processor"),
        (WORKER, 139, "crashed", "crashed"),
        (HEAD, 141, "ended", "signal 13 (SIGPIPE)"),
        (HEAD, 143, "ended-by-signal", "SIGTERM"),
        (HEAD, 127, "not-run", "library"),
        (WORKER, 0, "ended", "cannot listen"),
        (HEAD, 0, "ended", "without an error"),
        (HEAD, 77, "ended", "status 77"),
        (HEAD, 160, "ended", "signal 32"),
        (HEAD, None, "ended", "nobody saw how"),
    ],
)
def test_the_status_speaks_where_the_log_is_silent(kind: ServiceKind, status: int | None, code: str, part: str):
    problem = cause_of_death(kind, status, "all slots are idle\n")
    assert (problem.code, part in problem.what) == (code, True), problem.what
    assert problem.remedy


@given(st.sampled_from([HEAD, WORKER]), st.none() | st.integers(0, 255), st.text(max_size=300))
def test_every_end_has_a_cause(kind: ServiceKind, status: int | None, log: str):
    problem = cause_of_death(kind, status, log)
    assert problem.what.strip() and problem.code


# --- a worker's banner


def test_a_banner_tells_protocol_address_and_devices():
    banner = read_banner((DATA / "rpc/rpc_server_proto4.log").read_text())
    assert banner is not None and banner.problem is None
    assert (banner.version, banner.endpoint, banner.cache) == ((4, 0, 3), "0.0.0.0:50052", "")
    assert [(d.name, d.memory_total >> 20, d.memory_free >> 20) for d in banner.devices] == [
        ("Vulkan0", 98304, 97011),
        ("CPU", 64102, 64102),
    ]


def test_a_worker_of_before_is_too_old():
    banner = read_banner((DATA / "rpc/rpc_server_proto2_old.log").read_text())
    assert banner is not None and banner.version == (2, 0, 0)
    assert banner.cache == "/home/ops/.cache/llama.cpp/rpc/"
    assert [d.memory_total >> 20 for d in banner.devices] == [11910]
    assert banner.problem is not None and banner.problem.code == "too-old"


def test_a_banner_that_is_still_in_a_buffer_is_none():
    assert read_banner("") is None
    assert read_banner("Accepted client connection\n") is None


@given(st.text(max_size=300))
def test_any_text_after_a_banner_is_read_without_an_error(text: str):
    read_banner(f"Starting RPC server v7.0.0\n{text}")
