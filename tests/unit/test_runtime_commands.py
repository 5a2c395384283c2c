"""Command lines of workers and heads, made from the binary's own help."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config.schema import WorkerConfig
from fleet.errors import PlanRefused
from fleet.model import Binary
from fleet.runtimes.binaries import Flags
from fleet.runtimes.command import Command
from fleet.runtimes.llama_server import HeadRequest, head_command, plain_number, remote_devices
from fleet.runtimes.rpc_server import worker_command

DATA = Path(__file__).parents[1] / "data"
SERVER = Binary("/opt/llama/llama-server", "llama-server", commit="571d0d5")
WORKER = Binary("/opt/llama/ggml-rpc-server", "ggml-rpc-server")
SERVER_FLAGS = Flags.parse((DATA / "server/help_b10068_llama_server.txt").read_text())
WORKER_FLAGS = Flags.parse((DATA / "rpc/help_b10068_rpc_server.txt").read_text())
OLD_SERVER_FLAGS = Flags.parse("""
-fa,   --flash-attn                     enable Flash Attention
-m,    --model FNAME                    model path
-ngl,  --gpu-layers N                   layers
--host HOST                             address
--port PORT                             port
-c,    --ctx-size N                     context
""")


def worker(
    config: WorkerConfig | None = None,
    *,
    flags: Flags = WORKER_FLAGS,
    bind: str = "10.0.0.3",
    cores: int = 16,
    workers: int = 1,
    os: str = "Linux",
) -> Command:
    return worker_command(
        WORKER, flags, config or WorkerConfig(), bind=bind, cores=cores, workers_on_node=workers, os=os
    )


def head(request: HeadRequest, flags: Flags = SERVER_FLAGS) -> tuple[str, ...]:
    return head_command(SERVER, flags, request).argv


def value(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


# --- workers


def test_a_worker_binds_one_address_and_uses_all_cores():
    assert worker().argv == (WORKER.path, "-H", "10.0.0.3", "-p", "50052", "-t", "16")


def test_workers_of_one_node_share_its_cores():
    assert value(worker(workers=3).argv, "-t") == "5"
    assert value(worker(cores=1, workers=3).argv, "-t") == "1"
    assert value(worker(WorkerConfig(threads=2), workers=3).argv, "-t") == "2"
    assert "-t" not in worker(cores=0).argv


def test_a_mac_worker_offers_metal_alone():
    assert value(worker(os="Darwin").argv, "-d") == "MTL0"
    assert value(worker(WorkerConfig(devices=("CPU",)), os="Darwin").argv, "-d") == "CPU"
    assert "-d" not in worker().argv


def test_cache_devices_environment_and_extra_arguments_come_from_the_config():
    command = worker(WorkerConfig(port=50060, devices=("CUDA0", "CUDA1"), cache=True, env={"GGML_RPC_DEBUG": "1"}))
    assert command.argv[1:] == ("-H", "10.0.0.3", "-p", "50060", "-d", "CUDA0,CUDA1", "-t", "16", "-c")
    assert command.env == {"GGML_RPC_DEBUG": "1"}


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "atlas.local",
        "::1",
        "fe80::1%eth0",
        "10.0.0",
        "",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "10.0.0.3; reboot",
    ],
)
def test_an_address_that_a_worker_cannot_or_should_not_bind_is_refused(address: str):
    with pytest.raises(PlanRefused) as refused:
        worker(bind=address)
    assert refused.value.code == "bad-bind" and "rpc" in refused.value.remedy


def test_what_the_user_asked_for_and_the_worker_cannot_do_is_refused():
    flags = Flags.parse("  -H, --host HOST   host\n  -p, --port PORT   port\n")
    assert worker(flags=flags).argv == (WORKER.path, "-H", "10.0.0.3", "-p", "50052")
    assert worker(flags=flags, os="Darwin").argv == (WORKER.path, "-H", "10.0.0.3", "-p", "50052")
    with pytest.raises(PlanRefused, match="keep tensors"):
        worker(WorkerConfig(cache=True), flags=flags)
    with pytest.raises(PlanRefused, match="restricted to devices"):
        worker(WorkerConfig(devices=("CPU",)), flags=flags)


@pytest.mark.parametrize(
    "config",
    [
        WorkerConfig(port=0),
        WorkerConfig(port=70000),
        WorkerConfig(devices=("CPU,CUDA0",)),
        WorkerConfig(devices=("A/B",)),
        WorkerConfig(devices=("CPU", "CPU")),
        WorkerConfig(env={"A=B": "1"}),
        WorkerConfig(env={"A": "x\0y"}),
        WorkerConfig(extra_args=("--verbose",)),
        WorkerConfig(extra_args=("-H", "0.0.0.0")),
        WorkerConfig(extra_args=("x\0",)),
    ],
)
def test_values_that_no_worker_takes_are_refused(config: WorkerConfig):
    with pytest.raises(PlanRefused):
        worker(config)


def test_nothing_is_started_without_the_help_of_the_binary():
    with pytest.raises(PlanRefused, match="--help was not read"):
        worker(flags=Flags())


# --- heads


def test_the_workers_come_before_the_devices():
    argv = head(
        HeadRequest(
            "/m.gguf",
            endpoints=("10.0.0.3:50052", "bolt:50053"),
            devices=("RPC0", "RPC1"),
            tensor_split=(7, 12),
            context=4096,
        )
    )
    assert argv.index("--rpc") < argv.index("--device")
    assert value(argv, "--rpc") == "10.0.0.3:50052,bolt:50053"
    assert value(argv, "--device") == "RPC0,RPC1"
    assert value(argv, "-ts") == "7,12"
    assert value(argv, "-c") == "4096"
    assert value(argv, "-fit") == "off"
    assert value(argv, "-cram") == "0"


def test_a_head_always_logs_its_placement_and_offloads():
    argv = head(HeadRequest("/m.gguf"))
    assert value(argv, "-lv") == "4"
    assert value(argv, "-ngl") == "999"
    assert "--metrics" in argv and "--slots" in argv
    assert "-fit" not in argv and "-cram" not in argv and "--rpc" not in argv
    assert head_command(SERVER, SERVER_FLAGS, HeadRequest("/m.gguf")).env == {"GGML_NO_BACKTRACE": "1"}


def test_the_users_environment_wins():
    env = head_command(SERVER, SERVER_FLAGS, HeadRequest("/m.gguf", env={"GGML_NO_BACKTRACE": "0"})).env
    assert env == {"GGML_NO_BACKTRACE": "0"}


def test_every_wish_becomes_its_flag():
    argv = head(
        HeadRequest(
            "/m.gguf",
            alias="a,b",
            port=8090,
            gpu_layers=10,
            slots=2,
            kv_type_k="q8_0",
            kv_type_v="f16",
            flash_attention="on",
            threads=3,
            metrics=False,
            api_key_file="/k",
            extra_args=("--swa-full",),
        )
    )
    assert value(argv, "-a") == "a b"
    assert [value(argv, flag) for flag in ("--port", "-ngl", "-np", "-ctk", "-ctv", "-fa", "-t", "--api-key-file")] == [
        "8090",
        "10",
        "2",
        "q8_0",
        "f16",
        "on",
        "3",
        "/k",
    ]
    assert "--metrics" not in argv
    assert argv[-1] == "--swa-full"


def test_an_older_build_gets_what_it_knows():
    argv = head(HeadRequest("/m.gguf", context=2048, flash_attention="on", alias="a"), OLD_SERVER_FLAGS)
    assert argv == (
        SERVER.path,
        "-m",
        "/m.gguf",
        "--host",
        "127.0.0.1",
        "--port",
        "8080",
        "-ngl",
        "999",
        "-c",
        "2048",
        "-fa",
    )
    assert "-fa" not in head(HeadRequest("/m.gguf", flash_attention="auto"), OLD_SERVER_FLAGS)
    with pytest.raises(PlanRefused, match="built without RPC"):
        head(HeadRequest("/m.gguf", endpoints=("h:1",)), OLD_SERVER_FLAGS)


@pytest.mark.parametrize(
    "request_",
    [
        HeadRequest("/m", endpoints=("[::1]:50052",)),
        HeadRequest("/m", endpoints=("h",)),
        HeadRequest("/m", endpoints=("h:1,h:2",)),
        HeadRequest("/m", endpoints=("h:1", "h:1")),
        HeadRequest("/m", endpoints=tuple(f"h:{n}" for n in range(1, 17))),
        HeadRequest("/m", tensor_split=(1.0,) * 16),
        HeadRequest("/m", devices=("RPC0",), tensor_split=(1, 2)),
        HeadRequest("/m", tensor_split=(0, 0)),
        HeadRequest("/m", tensor_split=(float("nan"),)),
        HeadRequest("/m", tensor_split=(-1, 2)),
        HeadRequest("/m", gpu_layers=-1),
        HeadRequest("/m", kv_type_k="q9"),
        HeadRequest("/m", flash_attention="yes"),
        HeadRequest("/m", extra_args=("--api-key", "secret")),
        HeadRequest("/m", extra_args=("--api-key=secret",)),
        HeadRequest("/m", extra_args=("-dev", "CPU")),
        HeadRequest("/m", extra_args=("--port", "1")),
    ],
)
def test_what_llama_server_would_choke_on_is_refused_in_a_sentence(request_: HeadRequest):
    with pytest.raises(PlanRefused) as refused:
        head(request_)
    assert refused.value.what.endswith(".") and refused.value.remedy.endswith((".", "?"))
    assert "secret" not in str(refused.value)


def test_a_removed_or_misspelt_option_says_what_to_write_instead():
    with pytest.raises(PlanRefused, match="spec-draft-n-max"):
        head(HeadRequest("/m", extra_args=("--draft-max", "8")))
    with pytest.raises(PlanRefused, match="Did you mean --metrics"):
        head(HeadRequest("/m", extra_args=("--metrix",)))


def test_negative_values_of_extra_arguments_are_no_options():
    assert head(HeadRequest("/m", extra_args=("--keep", "-1")))[-2:] == ("--keep", "-1")


@given(st.floats(min_value=0, max_value=1e15, allow_nan=False))
def test_shares_never_have_an_exponent(share: float):
    text = plain_number(share)
    assert set(text) <= set("0123456789.")
    assert abs(float(text) - share) <= 1e-9 + share * 1e-12


def test_remote_devices_are_numbered_through_over_all_workers():
    assert remote_devices([2, 1, 0, 1]) == (("RPC0", "RPC1"), ("RPC2",), (), ("RPC3",))
