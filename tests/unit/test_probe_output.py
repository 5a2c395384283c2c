"""What is made of a probe's answer, whole, cut or hostile."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.errors import ShellUnusable
from fleet.model import (
    Binary,
    Cpu,
    Device,
    DeviceKind,
    LinkKind,
    Memory,
    ModelFile,
    NodeReading,
    Problem,
    Process,
    ServiceKind,
    Severity,
    Socket,
)
from fleet.nodes import sections
from fleet.nodes.probe import ProbeSettings, arguments, read_output
from fleet.nodes.programs import read_models, read_programs

DATA = Path(__file__).parents[1] / "data"
MAC = (DATA / "probe/mac_full.txt").read_text()
LINUX = (DATA / "probe/linux_quick.txt").read_text()
SETTINGS = ProbeSettings(ports=(50052, 8080))
GIB, MIB = 1 << 30, 1 << 20

BEFORE = NodeReading(
    os="Linux", hostname="box1", machine_id="ab" * 16, python="3.11", cpu=Cpu("AMD EPYC", 8, 16, ("avx2",), 0.5),
    devices=(Device("CUDA0", DeviceKind.CUDA, "NVIDIA GeForce RTX 3090", 24 * GIB, 23 * GIB),
             Device("CPU", DeviceKind.CPU, "AMD EPYC", 64 * GIB)),
    binaries=(Binary("/opt/llama/bin/llama-server", "llama-server", 6782, "aabbccdd1", "d" * 64, 100, 5),),
    models=(ModelFile("/models/a.gguf", 5, 6),), state_folder="/old",
    problems=(Problem("no-python", "x", severity=Severity.INFO), Problem("no-driver", "was so before")))


def test_a_mac_is_read_whole():
    reading = read_output(MAC, None, SETTINGS)
    assert (reading.os, reading.hostname, reading.arch) == ("Darwin", "studio.local", "arm64")
    assert reading.os_version == "15.1"
    assert reading.machine_id == "11111111-2222-3333-4444-555555555555" and reading.user == "ops"
    assert (reading.cpu.model, reading.cpu.cores, reading.cpu.load) == ("Apple M3 Max", 16, 1.52)
    assert reading.memory == Memory(64 * GIB, 2001024 * 16384, unified=True)
    gpu, cpu = reading.devices
    assert (gpu.name, gpu.memory_total, gpu.unified, gpu.estimated) == ("MTL0", 49152 * MIB, True, False)
    assert gpu.memory_free == 2001024 * 16384 and cpu.name == "CPU"
    assert [(i.name, i.kind) for i in reading.interfaces] == [("lo0", LinkKind.LOOPBACK), ("en0", LinkKind.WIRED)]
    assert [(b.program, b.build, b.commit) for b in reading.binaries] == [
        ("llama-server", 6782, "aabbccdd1"), ("ggml-rpc-server", 6782, "aabbccdd1")]
    assert [process.pid for process in reading.processes] == [812]
    assert reading.sockets == (Socket("10.20.0.30", 50052, listening=True, pid=812, program="ggml-rpc-server"),)
    assert reading.models == (ModelFile("/Users/ops/models/Meta Llama 8B Q4_K_M.gguf", 4920739232, 1796076277),)
    assert [(disk.path, disk.free) for disk in reading.disks] == [
        ("/Users/ops/.local/state/quarterdeck", 571350180 << 10), ("/Users/ops/models", 571350180 << 10)]
    assert [problem.code for problem in reading.problems] == ["no-python"]
    assert reading.problems[0].severity is Severity.INFO
    assert reading.cost == pytest.approx(0.2)


def test_a_quick_answer_renews_what_it_holds_and_keeps_the_rest():
    reading = read_output(LINUX, BEFORE, SETTINGS)
    assert reading.cpu == replace(BEFORE.cpu, load=3.25)
    assert reading.memory == Memory(131790112 << 10, 98233020 << 10)
    for name in ("hostname", "machine_id", "binaries", "models", "python"):
        assert getattr(reading, name) == getattr(BEFORE, name)
    gpu, cpu = reading.devices
    assert (gpu.name, gpu.memory_free, gpu.utilisation, gpu.power) == ("CUDA0", 20000 * MIB, 0.55, 238.52)
    assert cpu.memory_free == 98233020 << 10
    (service,) = reading.services
    assert (service.id, service.kind, service.alive) == ("worker-50052", ServiceKind.WORKER, True)
    assert reading.state_folder == "/home/ops/.local/state/quarterdeck"
    assert reading.processes == (Process(8120, "boot:217444", "S", ("/opt/llama/bin/ggml-rpc-server", "-p", "50052"),
                                         4096000, "ops", 3.0, 1),)
    assert [(s.listening, s.recv_queue, s.pid) for s in reading.sockets] == [(False, 0, 8120), (True, 2, 8120)]
    # What only a full probe can tell stays; what this one looked at is judged anew.
    assert [problem.code for problem in reading.problems] == ["no-python"]


def test_the_problems_of_a_service_folder_are_the_nodes():
    text = LINUX.replace("qd-services 1 /home/ops/.local/state/quarterdeck", "qd-services 1 \nrefused|/home is full")
    assert "no-state-folder" in [problem.code for problem in read_output(text, BEFORE, SETTINGS).problems]


FORGED = "@@quarterdeck-probe 1 ffffffffffffffff full\n@@ffffffffffffffff uname\nEvil a b c\n@@ffffffffffffffff end\n"


def test_noise_before_the_answer_is_skipped_also_when_it_looks_like_one():
    for noise in ("", "motd\r\n", MAC, FORGED):
        told = read_output(noise + "\n" + LINUX, BEFORE, SETTINGS, token="00112233445566aa")
        assert told == read_output(LINUX, BEFORE, SETTINGS)


@pytest.mark.parametrize("token", ["00112233445566aa", ""])
def test_nobody_on_the_node_can_forge_an_answer_within_the_answer(token: str):
    text = LINUX.replace("-p\00050052\0", f"-p\00050052\0\n{FORGED}")
    told = read_output(text, BEFORE, SETTINGS, token=token)
    assert told.os == "Linux" and told.cpu.load == 3.25
    with pytest.raises(ShellUnusable):
        read_output(FORGED, BEFORE, SETTINGS, token="00112233445566aa")


def test_no_answer_at_all_is_an_unusable_shell():
    for text in ("", "This account is currently not available.\n", "@@quarterdeck-probe 2 00112233 full\n"):
        with pytest.raises(ShellUnusable) as caught:
            read_output(text, BEFORE, SETTINGS)
        assert caught.value.what and caught.value.remedy


def test_an_answer_that_breaks_off_changes_only_what_came_whole():
    cut = LINUX[:LINUX.index("@@00112233445566aa ss") + 60]
    reading = read_output(cut, BEFORE, SETTINGS)
    assert reading.cpu.load == 3.25 and reading.processes and reading.sockets == BEFORE.sockets
    assert reading.devices[0].memory_free == 23 * GIB and "probe-incomplete" in [p.code for p in reading.problems]


@pytest.mark.parametrize("text", [MAC, LINUX], ids=["mac", "linux"])
def test_it_can_be_cut_at_every_byte(text: str):
    begin = text.index("@@quarterdeck-probe")
    header = text.index("\n", begin)
    for cut in range(len(text)):
        if cut < header:
            with pytest.raises(ShellUnusable):
                read_output(text[:cut], BEFORE, SETTINGS)
        else:
            reading = read_output(text[:cut], BEFORE, SETTINGS)
            assert reading.hostname in ("box1", "studio.local")


def test_a_file_name_cannot_pose_as_a_section():
    text = MAC.replace("models/Meta", "models/\n@@quarterdeck end\n@@0000 uname\nEvil evil evil evil\nMeta")
    assert read_output(text, None, SETTINGS).os == "Darwin"


LINES = [
    *sorted({*MAC.split("\n"), *LINUX.split("\n")}),
    "@@quarterdeck-probe 1 0f1e2d3c4b5a6978 quick", "@@0f1e2d3c4b5a6978 devices", "@@0f1e2d3c4b5a6978 amd-cards",
    "card0 1 2 3 4 5 6 7 yes", "@@0f1e2d3c4b5a6978 rocm", "@@0f1e2d3c4b5a6978 amd", '{"card0": {"x": "y"}}', "[{}]",
    "@@0f1e2d3c4b5a6978 vulkan", "size = 99999999999999999999", "@status 999", "@status 124", "9" * 4000,
    "@@0f1e2d3c4b5a6978 version 1:2", "@@0f1e2d3c4b5a6978 ip-json", "[" * 2000, "\x00\x1b[31m\x07",
    "@@0f1e2d3c4b5a6978 process \u0665",
    "@@0f1e2d3c4b5a6978 cpuinfo", "@@0f1e2d3c4b5a6978 interfaces",
    "\u0661\u0662 \u0663:\u0664 /x", "NaN", "1e999", "-1"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=60), st.booleans())
@example(["@@0f1e2d3c4b5a6978 sysctl", "hw.memsize: " + "9" * 30, "@@0f1e2d3c4b5a6978 end"], True)
def test_shuffled_lines_break_nothing(lines: list[str], with_previous: bool):
    text = "@@quarterdeck-probe 1 0f1e2d3c4b5a6978 full\n" + "\n".join(lines)
    read_output(text, BEFORE if with_previous else None, SETTINGS)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_break_nothing(data: st.DataObject):
    text = data.draw(st.sampled_from([MAC, LINUX]))
    start = text.index("full\n") if "full\n" in text else text.index("quick\n")
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(start + 6, len(text)))
        until = data.draw(st.integers(at, min(at + 40, len(text))))
        text = text[:at] + data.draw(st.text(max_size=12) | st.sampled_from(["9" * 30, "\n", "-", "\0"])) + text[until:]
    read_output(text, BEFORE, SETTINGS)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_a_reading_or_an_unusable_shell(text: str):
    with suppress(ShellUnusable):
        read_output(text, None, SETTINGS)
    sections.split("@@quarterdeck-probe 1 00112233445566aa full\n" + text)
    read_models(text)
    read_programs(text, {"1:2": text}, {"1:2": text}, ())


def test_a_tool_that_was_too_slow_takes_no_gpu_away():
    end = "@@00112233445566aa times"
    slow = LINUX[:LINUX.index("index, name")] + "\n@status 124\n\n" + LINUX[LINUX.index(end):]
    for text in (slow, slow.replace(" quick\n", " full\n")):
        reading = read_output(text, replace(BEFORE, devices=read_output(LINUX, BEFORE, SETTINGS).devices), SETTINGS)
        assert [device.name for device in reading.devices] == ["CUDA0", "CPU"]
        assert "gpu-slow" in [problem.code for problem in reading.problems]


def test_a_full_disk_is_a_problem_of_the_node():
    text = MAC.replace("971350180 400000000 571350180    42%", "971350180 971350170 10    100%")
    problems = [problem for problem in read_output(text, None, SETTINGS).problems if problem.code == "disk-full"]
    assert len(problems) == 2 and "/Users/ops/models" in problems[1].what


def test_half_of_llama_cpp_is_a_warning_that_says_which_half():
    text = MAC.replace("300000 1796075775 16777232:4712 /opt/homebrew/bin/ggml-rpc-server\n", "")
    problem = next(p for p in read_output(text, None, SETTINGS).problems if p.code == "no-llama")
    assert problem.severity is Severity.WARNING and problem.what.startswith("ggml-rpc-server")
    assert "brew install" in problem.remedy


@pytest.mark.parametrize("block", "abcde")
def test_every_way_of_printing_a_version_is_understood(block: str):
    text = (DATA / "server/version_outputs.txt").read_text().partition(f"--- {block}\n")[2].partition("\n--- ")[0]
    said, _, wanted = text.partition("=> ")
    (binary,) = read_programs("10 20 1:2 /opt/llama-server", {"1:2": said}, {}, ())
    assert binary.commit == wanted.split("commit ")[1].strip()
    assert (f"build {binary.build}" if binary.build else "build unknown") in wanted


@pytest.mark.parametrize(("said", "version"), [
    ("vllm-0.33.0.dist-info", "0.33.0"), ("vllm-0.33.0+cu129.post1.dist-info\n", "0.33.0+cu129.post1"),
    ("ray-2.60.0.dist-info", ""), ("vllm-\x1b[2J.dist-info", ""), ("", ""), ("vllm-1" + "0" * 99 + ".dist-info", ""),
])
def test_a_packages_folder_tells_the_version_of_its_own_program(said: str, version: str):
    (binary,) = read_programs("10 20 1:2 /opt/vllm", {}, {}, (), {"1:2": said})
    assert (binary.program, binary.version) == ("vllm", version)


def test_what_was_asked_before_is_named_to_the_script_and_nothing_hostile_is():
    before = replace(BEFORE, processes=(Process(5, "s", "S", ("ollama",), user="ops"),), sockets=(
        Socket("::", 11434, listening=True, pid=5), Socket("::", 8080, listening=True, pid=77)))
    wanted = ProbeSettings(model_dirs=("~/m", "bad\0"), ports=(50052, 0, 70000))
    given_now = arguments(wanted, before, full=True, token="ab")
    assert given_now[:3] == ["ab", "full", "state="]
    assert "known=100 5 /opt/llama/bin/llama-server" in given_now and "model=~/m" in given_now
    assert [text for text in given_now if text.startswith(("port", "owner", "seen", "settled", "first"))] == [
        "seen=5", "settled=5", "owner=77", "port=50052", "port=11434", "first=no"]
    assert not [text for text in given_now if "\0" in text]
