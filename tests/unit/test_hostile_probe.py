"""A node that answers a probe with whatever it likes, as much as it can: it is read, and costs nobody much."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest

from fleet.model import NodeReading
from fleet.nodes.probe import ProbeSettings, read_output
from fleet.nodes.sections import split

TOKEN = "0123456789abcdef"
SECTIONS = (
    "uname", "user", "release", "machine-id", "python", "cpuinfo", "siblings", "nproc", "interfaces", "ip-json",
    "ip-lines", "ifconfig", "hardware-ports", "loadavg", "meminfo", "cgroups", "sysctl", "vm_stat", "services",
    "processes", "descriptors", "ss", "sockets", "netstat", "lsof", "folders", "disks", "disk-folders", "models",
    "programs", "devices", "vulkan", "nvidia", "nvidia-list", "rocm", "amd", "amd-static", "amd-cards", "profiler",
    "times", "process 12", "version 1:1", "digest 1:1")
FILLS = {
    "lines": "x\n" * 1_900_000, "digits": "9" * 3_900_000, "brackets": "[" * 3_900_000, "braces": '{"a":' * 700_000,
    "nul": "\0" * 3_900_000, "spaces": " " * 3_900_000, "services": "service a\n" * 380_000,
    "escapes": "\x1b]0;x\x07\u202e[red]\n" * 250_000,
}


def output(**sections: str) -> str:
    body = "".join(f"@@{TOKEN} {name}\n{text}\n" for name, text in sections.items())
    return f"\n@@quarterdeck-probe 1 {TOKEN} full\n{body}@@{TOKEN} end\n"


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS.keys())
def test_four_megabytes_of_anything_in_any_section_leave_little(fill: str) -> None:
    for name in SECTIONS:
        reading = read_output(output(**{name: fill}), None, ProbeSettings(), token=TOKEN)
        assert weight(reading) < 2_000_000


@pytest.mark.parametrize("end", ["", "\n@status 0\n"])
def test_a_tool_is_not_heard_for_longer_than_the_script_lets_it_speak(end: str) -> None:
    """1.9 million lines of nvidia-smi took 5.8 s to read, and the next probe is due after 2 s."""
    told = split(output(nvidia="x\n" * 1_900_000 + end), TOKEN).tool("nvidia")
    assert told is not None and len(told.text) <= 72 * 1024 and told.status == (0 if end else None)


def weight(value: object) -> int:
    """Characters of all texts in a record."""
    if isinstance(value, str):
        return len(value)
    if is_dataclass(value):
        return sum(weight(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, dict):
        return sum(weight(item) for pair in value.items() for item in pair)
    return sum(map(weight, value)) if isinstance(value, (tuple, list)) else 0


def test_an_empty_answer_reads_as_an_empty_machine() -> None:
    assert isinstance(read_output(output(), None, ProbeSettings(), token=TOKEN), NodeReading)
