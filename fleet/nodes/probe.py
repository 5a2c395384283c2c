"""One look at a node: one POSIX sh script, one round trip, one `NodeReading`.

The full probe reads everything; the quick one (every few seconds) reads what changes: load, memory,
GPU figures, processes, sockets, services. What a probe did not read is carried over from the reading
before. `read_output` is pure: it takes the script's output as text, whatever that is.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from importlib.resources import files

from fleet.errors import ShellUnusable
from fleet.model import DeviceKind, Disk, Memory, NodeReading, Problem, Severity
from fleet.nodes import programs, sections
from fleet.nodes.hardware import amd, apple, disks, memory, network, processor, vulkan
from fleet.nodes.hardware.devices import Told, assemble, problems_of
from fleet.nodes.hardware.figures import MIB, key_values, label, whole
from fleet.nodes.hardware.vendors import vendors_of
from fleet.nodes.processes import read_processes
from fleet.nodes.records import STATE_SH, read_listing
from fleet.nodes.sections import Sections
from fleet.nodes.sockets import read_netstat, read_ss, read_table, with_owners
from fleet.nodes.transport import Transport
from fleet.runtimes.devices import parse_device_list

_MOST_FOLDERS = 64
_MOST_PORTS = 128
_TEXT_READ = 200                       # characters of a host name, a user, a release
_TIMES = re.compile(r"([0-9]{1,9})m([0-9]{1,9}(?:\.[0-9]{1,9})?)s")
_FULL_ONLY = frozenset({"no-python", "no-llama", "disk-full", "folder-stuck", "many-models", "program-hangs"})
_LIMIT = 4 * MIB


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """What to look for on a node. Paths are the node's; "~" is expanded there."""

    model_dirs: tuple[str, ...] = ()
    llama_dirs: tuple[str, ...] = ()           # searched before all others
    extra_llama_dirs: tuple[str, ...] = ()     # searched last: the engine extra on this machine
    state_dir: str = ""
    ports: tuple[int, ...] = ()                # TCP ports whose sockets are wanted, whoever has them
    log_limit: int = 0                         # bytes; logs are cut by their own writers, not by a probe


def _piece(name: str) -> str:
    """A piece of the script without its comments: it crosses the wire with every probe."""
    text = files("fleet.nodes").joinpath(name).read_text(encoding="utf-8")
    return _without_comments(text)


def _without_comments(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))


_CALL = 'qd_probe "$@" </dev/null\n'
_SHARED = _without_comments(STATE_SH)
_QUICK = _SHARED + _piece("probe.sh") + _piece("probe_processes.sh")
QUICK_SCRIPT = _QUICK + _CALL
FULL_SCRIPT = _QUICK + _piece("probe_full.sh") + _CALL


def arguments(settings: ProbeSettings, previous: NodeReading | None, *, full: bool, token: str) -> list[str]:
    """The script's positional parameters: token, kind of probe, then key=value."""
    ports = dict.fromkeys([*settings.ports, *(service.port for service in previous.services)] if previous
                          else settings.ports)
    given = [token, "full" if full else "quick", f"state={settings.state_dir}"]
    if previous is not None:
        engines = {process.pid for process in previous.processes}
        listeners = [s for s in previous.sockets if s.listening and s.pid in engines]
        ports.update(dict.fromkeys(s.local_port for s in listeners))
        given += [f"seen={process.pid}" for process in previous.processes if process.user]
        given += [f"settled={pid}" for pid in sorted({s.pid or 0 for s in listeners})]
        owners = dict.fromkeys(s.pid for s in previous.sockets if s.listening and s.pid and s.pid not in engines)
        owners.update(dict.fromkeys(service.pid for service in previous.services if service.alive))
        given += [f"owner={pid}" for pid in list(owners)[:64]]
    given += [f"port={port}" for port in list(ports)[:_MOST_PORTS] if 0 < port < 65536]
    if full:
        given += [f"first={'yes' if previous is None else 'no'}",
                  f"python={'yes' if previous is not None and previous.python else 'no'}",
                  f"amd-names={'no' if previous is not None and _knows_amd_names(previous) else 'yes'}"]
        for key, folders in (("model", settings.model_dirs), ("llama", settings.llama_dirs),
                             ("extra", settings.extra_llama_dirs)):
            given += [f"{key}={folder}" for folder in folders[:_MOST_FOLDERS] if folder]
        given += programs.known_arguments(previous.binaries if previous else ())
    return [text for text in given if "\0" not in text]


def _knows_amd_names(previous: NodeReading) -> bool:
    return all(device.label != amd.NAMELESS for device in previous.devices if device.kind is DeviceKind.ROCM)


async def probe(transport: Transport, settings: ProbeSettings, previous: NodeReading | None, *, full: bool,
                timeout: float = 10.0) -> NodeReading:
    """Read a node. Without `previous` the probe is a full one, whatever `full` says.

    Raises:
        NodeError: the node does not answer in `timeout` seconds, or (`ShellUnusable`) not with a reading.
    """
    full = full or previous is None
    token = secrets.token_hex(8)
    given = arguments(settings, previous, full=full, token=token)
    done = await transport.run(FULL_SCRIPT if full else QUICK_SCRIPT, given, timeout=timeout, limit=_LIMIT)
    try:
        return read_output(done.text, previous, settings, token=token)
    except ShellUnusable as error:
        said = label(done.error_text) or label(done.text)
        what = f"{transport.name}: {error.what}" + (f" It said: {said}" if said else "")
        raise ShellUnusable(what, error.remedy) from error


def read_output(text: str, previous: NodeReading | None, settings: ProbeSettings, *, token: str = "") -> NodeReading:
    """A reading from the script's output; what is not in it comes from `previous`.

    `token` is the one that the script was given: nothing else in the text can begin an answer then.

    Raises:
        ShellUnusable: the text holds no probe's output at all. Nothing else is ever raised.
    """
    given = sections.split(text, token)
    before = previous or NodeReading()
    reading = _with_load(_with_identity(before, given), given)
    reading = _with_services(reading, given)
    reading = _with_processes(reading, given, settings)
    reading, search_problems = _with_search(reading, given)
    reading, device_problems = _with_devices(reading, given, before)
    problems = [*_own_problems(given, before), *search_problems, *device_problems]
    return replace(reading, problems=tuple(dict.fromkeys(problems)), cost=_cost(given))


def _line(given: Sections, name: str, before: str) -> str:
    """The last line of a one-line section."""
    if name not in given.texts:
        return before
    said = [line.strip() for line in given.get(name).split("\n") if line.strip()]
    return said[-1][:_TEXT_READ] if said else ""


def _with_identity(reading: NodeReading, given: Sections) -> NodeReading:
    if "uname" in given.texts:
        words = _line(given, "uname", "").split()
        if len(words) >= 4:
            reading = replace(reading, os=words[0], hostname=words[1], os_version=words[2], arch=words[-1])
    release = _line(given, "release", "").removeprefix("PRETTY_NAME=").strip("\"'")
    if release:
        reading = replace(reading, os_version=release)
    if "machine-id" in given.texts:
        said = re.findall(r"[0-9A-Fa-f-]{16,64}", given.get("machine-id"))
        reading = replace(reading, machine_id=said[-1].lower() if said else "")
    if "python" in given.texts:
        match = re.search(r"Python (3\.[0-9]{1,3})", given.get("python"))
        reading = replace(reading, python=match[1] if match else "")
    if "cpuinfo" in given.texts:
        reading = replace(reading, cpu=processor.read_cpuinfo(
            given.get("cpuinfo"), given.get("siblings"), given.get("nproc")))
    if {"ip-json", "ip-lines", "ifconfig"} & given.texts.keys():
        reading = replace(reading, interfaces=network.read_interfaces(
            given.get("ip-json"), given.get("ip-lines"), given.get("ifconfig"),
            network.read_links(given.get("interfaces")), network.read_hardware_ports(given.get("hardware-ports"))))
    return replace(reading, user=_line(given, "user", reading.user))


def _with_load(reading: NodeReading, given: Sections) -> NodeReading:
    """Load and memory of the moment."""
    if "loadavg" in given.texts:
        reading = replace(reading, cpu=replace(reading.cpu, load=processor.read_loadavg(given.get("loadavg"))))
    if "meminfo" in given.texts:
        told = memory.read_meminfo(given.get("meminfo"))
        return replace(reading, memory=memory.with_limits(told, given.get("cgroups")))
    if "sysctl" in given.texts:
        values = key_values(given.get("sysctl"))
        cpu = processor.read_sysctl(values)
        told = memory.read_vm_stat(given.get("vm_stat"), whole(values.get("hw.memsize", "")))
        return replace(reading, cpu=cpu if cpu.threads else replace(reading.cpu, load=cpu.load), memory=told)
    return reading


def _with_services(reading: NodeReading, given: Sections) -> NodeReading:
    if "services" not in given.texts:
        return reading
    listing = read_listing(given.get("services"))
    return replace(reading, services=listing.records, state_folder=listing.folder)


def _with_processes(reading: NodeReading, given: Sections, settings: ProbeSettings) -> NodeReading:
    linux = "meminfo" in given.texts
    if "processes" in given.texts:
        reading = replace(reading, processes=read_processes(
            given.numbered("process"), given.get("processes"), reading.processes, linux=linux))
    ports = frozenset(settings.ports) | {service.port for service in reading.services}
    if "descriptors" in given.texts:
        rows = read_ss(given.get("ss")) or read_table(given.get("sockets"))
        return replace(reading, sockets=with_owners(rows, given.get("descriptors"), reading.processes, ports))
    if "netstat" in given.texts and "lsof" in given.texts:
        return replace(reading, sockets=read_netstat(
            given.get("netstat"), given.get("lsof"), reading.processes, ports))
    return reading


def _with_search(reading: NodeReading, given: Sections) -> tuple[NodeReading, list[Problem]]:
    """Disks, model files, programs: of the full probe alone."""
    problems: list[Problem] = []
    folders = given.tool("folders")
    if folders is not None and {"disks", "disk-folders"} <= given.texts.keys():
        writable = frozenset(line[2:] for line in folders.text.split("\n") if line.startswith("w "))
        named = [line for line in given.get("disk-folders").split("\n") if line.startswith("/")][:_MOST_FOLDERS]
        if reading.state_folder and named:     # its disk comes first, and state.sh has seen that we may write there
            named[0] = reading.state_folder
            writable |= {named[0]}
        reading = replace(reading, disks=disks.read_disks(given.get("disks"), named, writable))
        problems += [_disk_full(disk) for disk in reading.disks if disk.free is not None and disk.free < disks.FULL]
        if folders.timed_out:
            problems.append(Problem(
                "folder-stuck", "A model folder does not answer: its file system hangs.",
                "Look for a network mount that is gone, or take the folder out of model_dirs.", Severity.WARNING))
    if "models" in given.texts:
        found = programs.read_models(given.get("models"))
        reading = replace(reading, models=found.models, unfinished=found.unfinished)
        if found.more:
            problems.append(Problem(
                "many-models", f"There are more than {programs.MODELS_LISTED} GGUF files; the others are not listed.",
                "Name narrower folders in model_dirs.", Severity.INFO))
    if "programs" in given.texts:
        versions = given.numbered("version")
        reading = replace(reading, binaries=programs.read_programs(
            given.get("programs"), versions, given.numbered("digest"), reading.binaries, given.numbered("package")))
        problems += _program_problems(reading, given, versions)
    if "python" in given.texts and not reading.python:
        problems.append(Problem(
            "no-python", "There is no python3 on this machine.",
            "All works but moving model pieces and page-cache maps; install python3 (3.9 or newer) for those.",
            Severity.INFO))
    return reading, problems


def _disk_full(disk: Disk) -> Problem:
    free = (disk.free or 0) // MIB
    return Problem("disk-full", f"The disk of {disk.path} is full ({free} MiB free).",
                   "Delete what is not needed there; logs, pid files and models need room.")


def _program_problems(reading: NodeReading, given: Sections, versions: dict[str, str]) -> list[Problem]:
    problems = []
    have = {binary.program for binary in reading.binaries}
    if missing := [name for name in ("llama-server", "ggml-rpc-server") if name not in have]:
        source = "llama.cpp with `brew install llama.cpp`" if reading.os == "Darwin" else (
            "a release of llama.cpp or your distribution's package")
        problems.append(Problem(
            "no-llama", f"{' and '.join(missing)} not found on this machine.",
            f"Install {source}, or set nodes.<name>.llama to the folder that they are in (built with -DGGML_RPC=ON).",
            Severity.ERROR if len(missing) == 2 and "vllm" not in have else Severity.WARNING))
    for inode in versions:
        told = given.tool(f"version {inode}")
        path = next((line.split(" ", 3)[3] for line in given.get("programs").split("\n")
                     if line.count(" ") >= 3 and line.split(" ")[2] == inode), "llama-server")[:_TEXT_READ]
        if told is not None and told.timed_out:
            problems.append(Problem("program-hangs", f"{path} --version gave no answer in 5 s.",
                                    "Run it by hand on that machine.", Severity.WARNING))
        elif told is not None and told.status in (132, 134, 139):
            problems.append(Problem(
                "program-dies", f"{path} --version dies (exit status {told.status}).",
                "It was built for another processor (status 132 is an illegal instruction): use a build for this one.",
                Severity.WARNING))
    return problems


def _own_problems(given: Sections, before: NodeReading) -> list[Problem]:
    """Those of the state folder, those that a quick probe keeps, and that the answer broke off."""
    problems: list[Problem] = []
    if "services" in given.texts:
        problems += read_listing(given.get("services")).problems
    if not given.full or not given.whole:
        problems += [problem for problem in before.problems if problem.code in _KEPT]
    if not given.whole:
        problems.append(Problem("probe-incomplete", "The probe's answer broke off; some of this is older.",
                                "It is asked again at the next poll.", Severity.WARNING))
    return problems


_KEPT = _FULL_ONLY | {"program-dies", "gpu-note"}


def _with_devices(reading: NodeReading, given: Sections, before: NodeReading) -> tuple[NodeReading, list[Problem]]:
    vendors, problems = vendors_of(given, before.devices)
    listed = given.tool("devices")
    heaps = given.tool("vulkan")
    devices = assemble(
        Told(vendors, None if listed is None else apple.unified(parse_device_list(listed.text)),
             None if heaps is None else vulkan.read_vulkaninfo(heaps.text), given.full and given.whole),
        before.devices, reading.cpu, reading.memory)
    unified = any(device.unified for device in devices) if given.full else reading.memory.unified or any(
        device.unified for device in devices)
    told = replace(reading.memory, unified=unified) if reading.memory != Memory() or unified else reading.memory
    return replace(reading, devices=devices, memory=told), [*problems, *problems_of(devices)]


def _cost(given: Sections) -> float | None:
    """CPU seconds that the script and its children used, from `times`."""
    parts = _TIMES.findall(given.get("times"))
    return sum(int(minutes) * 60 + float(seconds) for minutes, seconds in parts) if parts else None
