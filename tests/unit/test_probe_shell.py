"""The probe's script in every sh that there is here, on this very machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from fleet.errors import ShellUnusable
from fleet.model import DeviceKind, NodeReading, ServiceKind, Severity
from fleet.nodes import probe as probe_module
from fleet.nodes.local import LocalTransport
from fleet.nodes.probe import FULL_SCRIPT, QUICK_SCRIPT, ProbeSettings, probe
from fleet.nodes.services import ServiceSpec
from fleet.nodes.supervisor import Supervisor
from fleet.nodes.transport import Completed, with_arguments

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="checks against /proc")

SHELLS = [shell for shell in (("dash",), ("bash", "--posix"), ("busybox", "sh")) if shutil.which(shell[0])]
BINARY_SCRIPT = "#!/bin/sh\necho load_backend: noise\necho 'version: 6782 (aabbccdd1)' >&2\necho asked >>\"$0.asked\"\n"


INTERPRETER = os.path.realpath(sys.executable)
LISTENS = """\
import signal, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
signal.pause()
"""


class ShellTransport:
    """`run` of a transport, through one given shell and environment."""

    name = "here"
    is_local = True

    def __init__(self, shell: Sequence[str], **environment: str) -> None:
        self.shell = shell
        self.environment = environment
        self.stderr = ""
        self.edit = lambda script: script

    async def run(self, script: str, arguments: Sequence[str] = (), *, stdin: bytes = b"", timeout: float = 10.0,
                  limit: int = 1 << 22) -> Completed:
        process = await asyncio.create_subprocess_exec(
            *self.shell, "-s", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **self.environment})
        out, err = await process.communicate(with_arguments(self.edit(script), arguments).encode())
        self.stderr = err.decode()
        return Completed(process.returncode, out, err, 0.0)


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return request.param


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def program(folder: Path, name: str = "llama-server", text: str = BINARY_SCRIPT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


async def test_a_full_probe_reads_the_machine(shell: tuple[str, ...], home: Path):
    transport = ShellTransport(shell, HOME=str(home))
    reading = await probe(transport, ProbeSettings(), None, full=True)
    assert transport.stderr == ""
    assert (reading.os, reading.hostname, reading.arch) == (os.uname().sysname, os.uname().nodename, os.uname().machine)
    assert reading.memory.total and reading.memory.available
    assert reading.cpu.threads == len(os.sched_getaffinity(0)) and reading.cpu.load is not None
    assert reading.devices[-1].kind is DeviceKind.CPU and reading.devices[-1].memory_total == reading.memory.total
    assert any("127.0.0.1/8" in interface.addresses for interface in reading.interfaces)
    assert reading.state_folder == f"{home}/.local/state/quarterdeck" and reading.disks[0].path == reading.state_folder
    assert reading.disks[0].free and reading.disks[0].writable
    assert reading.cost is not None
    assert not [problem for problem in reading.problems if problem.code == "probe-incomplete"]


async def test_a_quick_probe_keeps_what_it_does_not_read(shell: tuple[str, ...], home: Path):
    program(home / ".local/bin")
    transport = ShellTransport(shell, HOME=str(home))
    first = await probe(transport, ProbeSettings(), None, full=True)
    second = await probe(transport, ProbeSettings(), first, full=False)
    assert transport.stderr == ""
    for name in ("os", "hostname", "machine_id", "python", "disks", "interfaces", "binaries", "models", "problems"):
        assert getattr(second, name) == getattr(first, name)
    assert second.cpu.model == first.cpu.model and second.memory.total == first.memory.total


async def test_programs_are_found_in_the_usual_places_and_asked_once(shell: tuple[str, ...], home: Path):
    path = program(home / "llama.cpp/build/bin")
    worker = program(home / "llama.cpp/build/bin", "rpc-server")
    transport = ShellTransport(shell, HOME=str(home))
    first = await probe(transport, ProbeSettings(), None, full=True)
    found = {binary.path: binary for binary in first.binaries}
    server = found[str(path)]
    assert (server.program, server.build, server.commit) == ("llama-server", 6782, "aabbccdd1")
    assert len(server.digest) == 64 and server.size == path.stat().st_size and server.mtime == int(path.stat().st_mtime)
    assert (found[str(worker)].program, found[str(worker)].build) == ("ggml-rpc-server", 6782)
    asked = path.with_name("llama-server.asked")
    times = len(asked.read_text().splitlines())
    second = await probe(transport, ProbeSettings(), first, full=True)
    assert second.binaries == first.binaries and len(asked.read_text().splitlines()) == times
    path.write_text(BINARY_SCRIPT.replace("6782", "6790"))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    third = await probe(transport, ProbeSettings(), second, full=True)
    assert {binary.build for binary in third.binaries if binary.folder == str(path.parent)} == {6790}


async def test_vllm_and_ray_are_found_with_their_versions_and_never_run(shell: tuple[str, ...], home: Path):
    vllm, ray = (program(home / "vllm-env/bin", name) for name in ("vllm", "ray"))
    packages = home / "vllm-env/lib/python3.12/site-packages"
    for name in ("vllm-0.33.0.dist-info", "ray-2.60.0.dist-info", "vllm_extra-9.dist-info"):
        (packages / name).mkdir(parents=True)
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/bin/vllm").symlink_to(vllm)
    transport = ShellTransport(shell, HOME=str(home))
    first = await probe(transport, ProbeSettings(), None, full=True)
    assert transport.stderr == ""
    found = {binary.path: (binary.program, binary.version) for binary in first.binaries if str(home) in binary.path}
    assert found == {str(vllm): ("vllm", "0.33.0"), str(ray): ("ray", "2.60.0"),
                     str(home / ".local/bin/vllm"): ("vllm", "0.33.0")}
    assert not vllm.with_name("vllm.asked").exists() and not ray.with_name("ray.asked").exists()
    assert (await probe(transport, ProbeSettings(), first, full=True)).binaries == first.binaries


async def test_a_vllm_whose_package_does_not_lie_beside_it_has_no_version(shell: tuple[str, ...], home: Path):
    path = program(home / ".local/bin", "vllm")
    reading = await probe(ShellTransport(shell, HOME=str(home)), ProbeSettings(), None, full=True)
    assert [binary.version for binary in reading.binaries if binary.path == str(path)] == [""]


async def test_folders_that_are_asked_for_come_first_and_extra_ones_last(
        shell: tuple[str, ...], home: Path, tmp_path: Path):
    last = program(tmp_path / "the extra")
    usual = program(home / ".local/bin")
    first = program(tmp_path / "my build/$(touch oops) [x]*")
    settings = ProbeSettings(llama_dirs=(str(first.parent) + "/",), extra_llama_dirs=(str(last.parent),))
    reading = await probe(ShellTransport(shell, HOME=str(home)), settings, None, full=True)
    paths = [binary.path for binary in reading.binaries if binary.program == "llama-server"]
    assert paths[0] == str(first) and paths[-1] == str(last) and str(usual) in paths[1:-1]


async def test_one_folder_under_two_names_is_one_folder(shell: tuple[str, ...], home: Path):
    path = program(home / "llama.cpp/build/bin")
    (home / "llama").symlink_to(home / "llama.cpp")
    reading = await probe(ShellTransport(shell, HOME=str(home)), ProbeSettings(), None, full=True)
    same = {str(path), str(home / "llama/build/bin/llama-server")}
    assert len([binary for binary in reading.binaries if binary.path in same]) == 1


async def test_a_program_that_only_the_login_shell_finds_is_found(home: Path, tmp_path: Path):
    noise = (Path(__file__).parents[1] / "data/misc/nonlogin_path.txt").read_text().splitlines()
    hidden = program(tmp_path / "deep/below/bin")
    login = program(tmp_path, "loginshell", "#!/bin/sh\ncat <<'END'\n" + "\n".join(noise[:-1]) + f"\n{hidden}\nEND\n")
    transport = ShellTransport(("dash",) if shutil.which("dash") else ("sh",), HOME=str(home), SHELL=str(login))
    transport.edit = lambda script: script.replace('qd_look_in "$qd_path"; done\n', ":; done\n", 1)  # an empty PATH
    first = await probe(transport, ProbeSettings(), None, full=True)
    if [binary for binary in first.binaries if binary.path != str(hidden)]:
        pytest.skip("llama.cpp is installed on this machine")
    assert [binary.path for binary in first.binaries] == [str(hidden)]
    login.unlink()
    second = await probe(transport, ProbeSettings(), first, full=True)
    assert second.binaries == first.binaries


async def test_a_program_that_dies_or_hangs_is_listed_with_what_is_wrong(home: Path, tmp_path: Path):
    program(home / "bin", text="#!/bin/sh\nkill -ILL $$\n")
    transport = ShellTransport(SHELLS[0], HOME=str(home))
    reading = await probe(transport, ProbeSettings(), None, full=True)
    binary = next(binary for binary in reading.binaries if binary.folder == str(home / "bin"))
    assert binary.build is None and binary.digest
    problem = next(problem for problem in reading.problems if problem.code == "program-dies")
    assert binary.path in problem.what and "132" in problem.what


async def test_nothing_is_found_where_nothing_is(home: Path):
    transport = ShellTransport(SHELLS[0], HOME=str(home), SHELL="/bin/false")
    transport.edit = lambda script: script.replace("llama-server ggml-rpc-server rpc-server", "no-such-program")
    reading = await probe(transport, ProbeSettings(), None, full=True)
    problem = next(problem for problem in reading.problems if problem.code == "no-llama")
    assert problem.severity is Severity.ERROR and "llama-server and ggml-rpc-server" in problem.what
    assert reading.binaries == ()


async def test_model_files_are_found_through_links_and_unfinished_ones_are_not(shell: tuple[str, ...], home: Path):
    models = home / "my models"
    snapshot = models / "models--x/snapshots/abc"
    snapshot.mkdir(parents=True)
    (models / "blobs").mkdir()
    (models / "blobs/5ha").write_bytes(b"GGUF" * 100)
    (snapshot / "small.gguf").symlink_to("../../../blobs/5ha")
    (models / "UPPER.GGUF").write_bytes(b"1234")
    for name in ("a.gguf.part", "b.gguf.incomplete", "c.tmp", "._d.gguf", "notes.txt"):
        (models / name).write_bytes(b"1")
    (models / "e.gguf").write_bytes(b"1")
    (models / "e.gguf.aria2").write_bytes(b"1")
    (models / "empty.gguf").touch()
    (models / "trap\n99 99 " / "etc").mkdir(parents=True)
    (models / "trap\n99 99 " / "etc/trap.gguf").write_bytes(b"1")
    (models / "loop").symlink_to(models)
    settings = ProbeSettings(model_dirs=("~/my models/", "~/nowhere", str(models)))
    transport = ShellTransport(shell, HOME=str(home))
    reading = await probe(transport, settings, None, full=True)
    own = [model for model in reading.models if "/loop/" not in model.path]
    assert [(model.path, model.size) for model in own] == [
        (str(models / "UPPER.GGUF"), 4), (str(snapshot / "small.gguf"), 400)]
    assert own[0].mtime == int((models / "UPPER.GGUF").stat().st_mtime)
    assert [disk.path for disk in reading.disks] == [reading.state_folder, str(models)]


async def test_no_more_than_five_hundred_model_files_are_listed(home: Path):
    (home / "models").mkdir()
    for place in range(510):
        (home / "models" / f"{place}.gguf").write_bytes(b"1")
    reading = await probe(ShellTransport(SHELLS[0], HOME=str(home)), ProbeSettings(("~/models",)), None, full=True)
    assert len(reading.models) == 500
    assert "many-models" in [problem.code for problem in reading.problems]


async def test_a_home_without_a_place_to_write_says_so(tmp_path: Path):
    transport = ShellTransport(SHELLS[0], HOME="/proc/1/nowhere")
    transport.edit = lambda script: script.replace('"/tmp/quarterdeck-$qd_uid"; do', "; do")
    reading = await probe(transport, ProbeSettings(), None, full=True)
    assert reading.state_folder == "" and "no-state-folder" in [problem.code for problem in reading.problems]
    assert reading.disks == ()


# Tools that are not here: stood in for by scripts in PATH ----------------------------------------

NVIDIA = r"""#!/bin/sh
case "$*" in
*mig*) echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2 ;;
*--query-gpu=*)
  echo 'index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], \
temperature.gpu, power.draw [W]'
  echo '0, NVIDIA GeForce RTX 3090, 24576, 1532, 23044, 7, 41, 38.52' ;;
esac
"""


async def test_a_gpu_is_read_by_both_probes(shell: tuple[str, ...], home: Path, tmp_path: Path):
    tool = program(tmp_path / "tools", "nvidia-smi", NVIDIA)
    transport = ShellTransport(shell, HOME=str(home), PATH=f"{tool.parent}:{os.environ['PATH']}")
    first = await probe(transport, ProbeSettings(), None, full=True)
    assert [device.name for device in first.devices] == ["CUDA0", "CPU"]
    tool.write_text(NVIDIA.replace("23044, 7", "20000, 99"))
    second = await probe(transport, ProbeSettings(), first, full=False)
    assert second.devices[0].memory_free == 20000 << 20 and second.devices[0].utilisation == 0.99


async def test_a_driver_that_does_not_run_is_a_problem_and_the_cpu_stays(home: Path, tmp_path: Path):
    tool = program(tmp_path / "tools", "nvidia-smi", "#!/bin/sh\necho NVIDIA-SMI has failed because it couldn\\'t "
                   "communicate with the NVIDIA driver.\nexit 9\n")
    transport = ShellTransport(SHELLS[0], HOME=str(home), PATH=f"{tool.parent}:{os.environ['PATH']}")
    first = await probe(transport, ProbeSettings(), None, full=True)
    assert [device.name for device in first.devices] == ["CPU"]
    assert "no-driver" in [problem.code for problem in first.problems]
    second = await probe(transport, ProbeSettings(), first, full=False)
    assert [problem.code for problem in second.problems].count("no-driver") == 1


async def test_a_tool_that_hangs_is_ended_with_what_it_started(shell: tuple[str, ...], home: Path, tmp_path: Path):
    tool = program(tmp_path / "tools", "nvidia-smi", "#!/bin/sh\nsleep 60\n")
    transport = ShellTransport(shell, HOME=str(home), PATH=f"{tool.parent}:{os.environ['PATH']}")
    transport.edit = lambda script: script.replace("qd_tool nvidia 4 ", "qd_tool nvidia 1 ")
    reading = await asyncio.wait_for(probe(transport, ProbeSettings(), None, full=True), 30)
    assert "gpu-slow" in [problem.code for problem in reading.problems]


async def test_a_tool_that_hangs_is_ended_where_there_is_no_timeout(shell: tuple[str, ...], home: Path, tmp_path: Path):
    tool = program(tmp_path / "tools", "nvidia-smi", "#!/bin/sh\nexec sleep 60\n")
    transport = ShellTransport(shell, HOME=str(home), PATH=f"{tool.parent}:{os.environ['PATH']}")
    transport.edit = lambda script: script.replace("if timeout -k 1 5 true", "if false").replace(
        "qd_tool nvidia 4 ", "qd_tool nvidia 1 ")
    reading = await asyncio.wait_for(probe(transport, ProbeSettings(), None, full=True), 30)
    assert "gpu-slow" in [problem.code for problem in reading.problems]
    assert [problem.code for problem in reading.problems if problem.code == "probe-incomplete"] == []


async def test_noise_of_a_tool_is_cut(home: Path, tmp_path: Path):
    tool = program(tmp_path / "tools", "nvidia-smi", "#!/bin/sh\nyes @@0123456789abcdef end | head -n 99999\n")
    transport = ShellTransport(SHELLS[0], HOME=str(home), PATH=f"{tool.parent}:{os.environ['PATH']}")
    reading = await probe(transport, ProbeSettings(), None, full=True)
    assert reading.hostname == os.uname().nodename and reading.devices[-1].name == "CPU"


@pytest.mark.skipif(any(Path("/sys/class/drm").glob("card*/device/mem_info_vram_total")), reason="has an AMD GPU")
async def test_rocm_smi_is_asked_where_the_kernel_says_nothing(home: Path, tmp_path: Path):
    answer = '{"card0": {"Card Series": "Radeon RX 7900 XT", "VRAM Total Memory (B)": "21458059264"}}'
    tool = program(tmp_path / "tools", "rocm-smi", f"#!/bin/sh\necho WARNING: low-power\necho '{answer}'\n")
    transport = ShellTransport(SHELLS[0], HOME=str(home), PATH=f"{tool.parent}:{os.environ['PATH']}")
    reading = await probe(transport, ProbeSettings(), None, full=True)
    assert [(device.name, device.label) for device in reading.devices[:-1]] == [("ROCm0", "Radeon RX 7900 XT")]


async def test_what_llama_cpp_lists_is_asked_where_no_tool_tells(home: Path, tmp_path: Path):
    path = program(tmp_path / "bin", text=BINARY_SCRIPT + "case $1 in --list-devices) echo 'Available devices:'; echo "
                   "'  Vulkan0: Intel Arc B580 (12000 MiB, 11000 MiB free)' ;; esac\n")
    settings = ProbeSettings(llama_dirs=(str(path.parent),))
    transport = ShellTransport(SHELLS[0], HOME=str(home))
    first = await probe(transport, settings, None, full=True)
    assert [device.name for device in first.devices] == ["Vulkan0", "CPU"]
    path.with_name("llama-server.asked").unlink()
    second = await probe(transport, settings, first, full=True)      # not asked again, and not forgotten
    assert [device.name for device in second.devices] == ["Vulkan0", "CPU"]
    assert not path.with_name("llama-server.asked").exists()


# Processes and sockets ---------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A process that is called llama-server, with a listening port of its own and an argument of two lines."""
    path = tmp_path / "engine" / "llama-server"
    path.parent.mkdir()
    shutil.copy(INTERPRETER, path)
    process = await asyncio.create_subprocess_exec(
        str(path), "-c", "import socket, sys\ns = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True)\nsys.stdin.read()", "two\nlines",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONHOME": sys.base_prefix})
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    yield process, port
    if process.returncode is None:
        process.kill()
    await process.wait()


@pytest.mark.parametrize("with_ss", [True, False])
async def test_an_engine_is_seen_with_its_port_and_who_is_connected(
        shell: tuple[str, ...], home: Path, engine: tuple[asyncio.subprocess.Process, int], with_ss: bool):
    process, port = engine
    transport = ShellTransport(shell, HOME=str(home))
    if not with_ss:
        transport.edit = lambda script: script.replace("qd_have ss &&", "false &&")
    reading: NodeReading | None = None
    with socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(3):      # a full probe, a quick one that does not know its port, one that does
            reading = await probe(transport, ProbeSettings(), reading, full=False)
            found = next(p for p in reading.processes if p.pid == process.pid)
            assert found.argv[0].endswith("/llama-server") and found.argv[-1] == "two\nlines"
            assert found.parent == os.getpid() and found.rss > 0 and found.user and not found.is_zombie
            sockets = [s for s in reading.sockets if s.local_port == port]
            assert [(s.listening, s.peer_port, s.pid) for s in sorted(sockets, key=lambda s: s.listening)] == [
                (False, client.getsockname()[1], None), (True, 0, process.pid)]
    assert transport.stderr == ""


async def test_a_stopped_engine_and_a_dead_one_are_seen_as_such(
        home: Path, engine: tuple[asyncio.subprocess.Process, int]):
    process, _ = engine
    os.kill(process.pid, signal.SIGSTOP)
    reading = await probe(ShellTransport(SHELLS[0], HOME=str(home)), ProbeSettings(), None, full=True)
    assert next(p for p in reading.processes if p.pid == process.pid).state == "T"
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    reading = await probe(ShellTransport(SHELLS[0], HOME=str(home)), ProbeSettings(), reading, full=False)
    assert process.pid not in [p.pid for p in reading.processes]


async def test_somebody_elses_listener_on_a_wanted_port_has_a_name(
        shell: tuple[str, ...], home: Path, listener: socket.socket):
    port = listener.getsockname()[1]
    transport = ShellTransport(shell, HOME=str(home))
    settings = ProbeSettings(ports=(port,))
    first = await probe(transport, settings, None, full=True)
    second = await probe(transport, settings, first, full=False)
    for reading in (first, second):
        (found,) = [s for s in reading.sockets if s.local_port == port]
        assert (found.pid, found.listening) == (os.getpid(), True) and found.program


@pytest.mark.parametrize("with_ss", [True, False])
@pytest.mark.parametrize("known", [False, True])
async def test_a_service_is_seen_with_its_port_at_the_first_look(
        shell: tuple[str, ...], home: Path, tmp_path: Path, with_ss: bool, known: bool):
    """One look is all that `quarterdeck status` has. `known`: the node was looked at before the service was there."""
    transport = ShellTransport(shell, HOME=str(home))
    if not with_ss:
        transport.edit = lambda script: script.replace("qd_have ss &&", "false &&")
    settings = ProbeSettings(state_dir=str(tmp_path / "state"))
    before = await probe(transport, settings, None, full=True) if known else None
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    supervisor = Supervisor(LocalTransport("here"), str(tmp_path / "state"), settle=5.0)
    record = await supervisor.start(ServiceSpec(
        id=f"seeder-{port}", kind=ServiceKind.SEEDER, argv=(INTERPRETER, "-c", LISTENS, str(port)), port=port,
        bind="127.0.0.1", env={"PYTHONHOME": sys.base_prefix}))
    try:
        reading = await probe(transport, settings, before, full=False)
    finally:
        await supervisor.stop(record.id)
    assert [service.id for service in reading.services] == [record.id]
    (found,) = [s for s in reading.sockets if s.local_port == port]
    assert (found.pid, found.listening) == (record.pid, True)


async def test_the_probes_own_shell_is_never_listed(home: Path):
    settings = ProbeSettings(llama_dirs=("/x/llama-server",))
    reading = await probe(ShellTransport(SHELLS[0], HOME=str(home)), settings, None, full=True)
    assert not [process for process in reading.processes if "/x/llama-server" in " ".join(process.argv)]


# A Mac: its tools stood in for, the ways without /proc taken ---------------------------------------

MAC_TOOLS = {
    "sysctl": "case \"$*\" in *bootsession*) echo 11111111-2222 ;; *) printf 'hw.memsize: 68719476736\n"
              "hw.logicalcpu: 16\nhw.physicalcpu: 16\nvm.loadavg: { 1.52 1.60 1.70 }\n"
              "machdep.cpu.brand_string: Apple M3 Max\n' ;; esac",
    "vm_stat": "printf 'Mach (page size of 16384 bytes)\nPages free: 1000000.\nPages inactive: 1000000.\n'",
    "ioreg": "echo '  \"IOPlatformUUID\" = \"11111111-2222-3333-4444-555555555555\"'",
    "sw_vers": "echo 15.1",
    "ifconfig": "printf 'en0: flags=1<UP>\n\tinet 10.20.0.30 netmask 0xffffff00\n'",
    "networksetup": "printf '\nHardware Port: Wi-Fi\nDevice: en0\n'",
    "netstat": "printf 'tcp4 0 0 127.0.0.1.%s *.* LISTEN\n' 50052",
    "lsof": "printf 'p77\ncnginx\nn127.0.0.1:50052\n'",
    "system_profiler": "echo '{\"SPDisplaysDataType\": [{\"_name\": \"Apple M3 Max\"}]}'",
    "xcode-select": "exit 2",
    "stat": "[ \"$1\" != -c ] || exit 1\n[ \"$2\" = -f ] || exit 1\n"
            "case $3 in *%i*) f='%s %Y %d:%i %n' ;; *) f='%s %Y %n' ;; esac\nshift 3\n"
            "exec /usr/bin/stat -L -c \"$f\" \"$@\"",
}


async def test_a_mac_is_read_by_its_own_tools(
        shell: tuple[str, ...], home: Path, tmp_path: Path, engine: tuple[asyncio.subprocess.Process, int]):
    for name, text in MAC_TOOLS.items():
        program(tmp_path / "tools", name, f"#!/bin/sh\n{text}\n")
    path = program(home / "bin")
    (home / "models").mkdir()
    (home / "models/a b.gguf").write_bytes(b"GGUF")
    transport = ShellTransport(shell, HOME=str(home), PATH=f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    transport.edit = lambda script: script.replace("[ -r /proc/self/stat ]", "false").replace("/etc/", "/nowhere/")
    settings = ProbeSettings(model_dirs=("~/models",), ports=(50052,))
    first = await probe(transport, settings, None, full=True)
    second = await probe(transport, settings, first, full=False)
    assert transport.stderr == ""
    assert (first.os_version, first.machine_id) == ("15.1", "11111111-2222-3333-4444-555555555555")
    assert [(i.name, i.kind.value, i.addresses) for i in first.interfaces] == [("en0", "wifi", ("10.20.0.30/24",))]
    assert [(model.path, model.size) for model in first.models] == [(str(home / "models/a b.gguf"), 4)]
    binary = next(binary for binary in first.binaries if binary.path == str(path))
    assert binary.build == 6782 and binary.mtime == int(path.stat().st_mtime)
    for reading in (first, second):
        assert (reading.cpu.model, reading.cpu.cores, reading.cpu.load) == ("Apple M3 Max", 16, 1.52)
        assert reading.memory.total == 64 << 30 and reading.memory.unified
        assert (reading.devices[0].name, reading.devices[0].memory_total) == ("MTL0", 48 << 30)
        assert reading.devices[0].memory_free == 2_000_000 * 16384
        process = next(process for process in reading.processes if process.pid == engine[0].pid)
        assert process.argv[0].endswith("/llama-server") and process.parent == os.getpid()
        assert process.rss and process.user
        assert process.start_time.startswith("11111111-2222:")
        assert [(s.local_port, s.pid, s.program) for s in reading.sockets] == [(50052, 77, "nginx")]


# The answer as a whole ---------------------------------------------------------------------------


async def test_it_runs_through_the_local_transport():
    first = await probe(LocalTransport("here"), ProbeSettings(), None, full=True)
    second = await probe(LocalTransport("here"), ProbeSettings(), first, full=False)
    assert first.hostname == second.hostname == os.uname().nodename


async def test_a_shell_that_says_something_else_is_unusable_and_is_quoted(tmp_path: Path):
    fake = program(tmp_path, "sh", "#!/bin/sh\necho This account is currently not available.\n")
    with pytest.raises(ShellUnusable) as caught:
        await probe(ShellTransport((str(fake),)), ProbeSettings(), None, full=True)
    assert "here" in caught.value.what and "not available" in caught.value.what and caught.value.remedy


def test_hostile_settings_are_values_and_never_script(tmp_path: Path):
    settings = ProbeSettings(model_dirs=(f"$(touch {tmp_path}/oops)", f"'; touch {tmp_path}/oops; '", "-exec", "`id`"),
                             llama_dirs=(f"$(touch {tmp_path}/oops)",), state_dir=f"$(touch {tmp_path}/oops)")
    reading = asyncio.run(probe(ShellTransport(SHELLS[0]), settings, None, full=True))
    assert reading.models == () and not (tmp_path / "oops").exists()


def test_comments_do_not_travel():
    for script in (QUICK_SCRIPT, FULL_SCRIPT):
        assert "\n#" not in script and "\n    #" not in script
    assert len(QUICK_SCRIPT) < 24_000 and len(FULL_SCRIPT) < 40_000
    assert probe_module.ProbeSettings().ports == ()


@pytest.fixture
def zombie(tmp_path: Path) -> Iterator[int]:
    """The pid of a llama-server that has ended, and nobody has asked how."""
    path = tmp_path / "llama-server"
    shutil.copy(shutil.which("true") or "/bin/true", path)
    child = os.posix_spawn(path, [str(path), "-m", "x"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    yield child
    os.waitpid(child, 0)


async def test_a_zombie_engine_is_listed_as_one(home: Path, zombie: int):
    reading = await probe(ShellTransport(SHELLS[0], HOME=str(home)), ProbeSettings(), None, full=True)
    found = next(process for process in reading.processes if process.pid == zombie)
    assert found.is_zombie and found.argv == ("llama-server",)
