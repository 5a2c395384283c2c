"""Arguments that would put a secret on a command line, or open what fleet.yaml keeps closed, and names like options."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from app.verbs.chat import given_prompt
from fleet.config.schema import WorkerConfig
from fleet.errors import PlanRefused
from fleet.model import Binary
from fleet.runtimes.binaries import Flags
from fleet.runtimes.llama_server import HeadRequest, head_command
from fleet.runtimes.rpc_server import worker_command

DATA = Path(__file__).parents[1] / "data"
SERVER = Binary("/opt/llama/llama-server", "llama-server", commit="571d0d5")
WORKER = Binary("/opt/llama/ggml-rpc-server", "ggml-rpc-server")
SERVER_FLAGS = Flags.parse((DATA / "server/help_b10068_llama_server.txt").read_text())
WORKER_FLAGS = Flags.parse((DATA / "rpc/help_b10068_rpc_server.txt").read_text())


@pytest.mark.parametrize("argument", [
    "--api-key", "--api-key=s3cret", "--api_key", "--hf-token", "-hft", "--hf-token=s3cret", "--host", "--host=0.0.0.0",
    "--port", "-m", "--model", "--rpc", "--rpc=10.0.0.9:1", "-dev", "--device", "-ts", "--tensor-split",
    "--api-key-file"])
def test_a_head_takes_none_of_these_by_extra_arguments(argument: str) -> None:
    with pytest.raises(PlanRefused) as refused:
        head_command(SERVER, SERVER_FLAGS, HeadRequest("/m/a.gguf", extra_args=(argument, "x")))
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("argument", ["-H", "--host", "--host=0.0.0.0", "-p", "--port", "-d", "--device", "-t", "-c"])
def test_a_worker_takes_none_of_these_by_extra_arguments(argument: str) -> None:
    with pytest.raises(PlanRefused):
        worker_command(WORKER, WORKER_FLAGS, WorkerConfig(extra_args=(argument, "0.0.0.0")), bind="10.0.0.3", cores=4,
                       workers_on_node=1, os="Linux")


@pytest.mark.parametrize("name", ["-m", "--host=0.0.0.0", "a,b", "a b", "$(x)", "'"])
def test_a_model_or_alias_that_looks_like_an_option_stays_the_value_of_one(name: str) -> None:
    argv = head_command(SERVER, SERVER_FLAGS, HeadRequest(f"/m/{name}.gguf", alias=name)).argv
    assert argv[argv.index("--model" if "--model" in argv else "-m") + 1] == f"/m/{name}.gguf"
    alias = next(flag for flag in ("--alias", "-a") if flag in argv)
    assert argv[argv.index(alias) + 1] == name.replace(",", " ") and argv.count("--host") == 1


@pytest.mark.parametrize("endpoint", [
    "10.0.0.3:50052,10.0.0.9:1", "10.0.0.3", "-x:1", "a b:1", "10.0.0.3:50052\n", ":1"])
def test_an_endpoint_is_one_address_and_one_port(endpoint: str) -> None:
    with pytest.raises(PlanRefused):
        head_command(SERVER, SERVER_FLAGS, HeadRequest("/m/a.gguf", endpoints=(endpoint,)))


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"A B": "x"}, {"A": "x\0y"}, {"": "x"}, {"qd\n": "x"}])
def test_an_environment_that_cannot_be_one_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(PlanRefused):
        head_command(SERVER, SERVER_FLAGS, HeadRequest("/m/a.gguf", env=env))


def test_a_prompt_that_is_no_text_can_be_sent_all_the_same() -> None:
    prompt = given_prompt(Namespace(prompt=["caf\udcff", "\udcc3\udca9"]))
    assert prompt == "caf\ufffd é"


def test_a_pipe_that_brings_no_text_is_no_fault(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import sys; from app.cli import main; sys.exit(main())", "chat"],
                          input=b"\xff\xfe", capture_output=True, cwd=tmp_path, check=False, timeout=60,
                          env={**os.environ, "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict",
                               "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)})
    assert b"a fault of its own" not in done.stderr and b"Traceback" not in done.stderr
    assert not list(tmp_path.rglob("crash-*"))
