"""Everything known about a node, what is wrong with it first."""

from __future__ import annotations

from collections.abc import Mapping

from app.present.nodes import kind_of, short_label
from app.present.services import doing, holders
from app.present.units import (
    UNKNOWN,
    age,
    count,
    fraction,
    gib,
    is_live,
    milliseconds,
    percent,
    size,
    span,
    speed,
    used_of,
)
from app.present.words import (
    FOREIGN,
    LINK_WORDS,
    NODE_SIGNS,
    SERVICE_SIGNS,
    SEVERITY_SIGNS,
    problem_entries,
    program_of,
)
from fleet.model import Address, Device, DeviceKind, Node, NodeReading, NodeState, Severity, Snapshot
from widgets.entries import Cut, Entry, Fact, Gauge, Heading, Paragraph
from widgets.meters import Meter
from widgets.spans import Keep, Line, Span, Tone, joined, line, plain

NOTICES = 6                    # of this node, newest last
FILES = 12                     # models listed


def detail(snapshot: Snapshot, node: Node, now: float) -> tuple[Entry, ...]:
    """The pane for a node."""
    out: list[Entry] = [Heading(node.name, NODE_SIGNS[node.state].line)]
    out += _troubles(node, now)
    out += _connection(snapshot, node, now)
    if node.reading is not None:
        live = is_live(now, node.read_at, snapshot.refresh)
        old = "" if live else f"as read {age(now, node.read_at, snapshot.refresh)} ago"
        out += _machine(node, node.reading, old)
        out += _running(node, holders(snapshot))
        out += _software(node.reading)
    out += _history(snapshot, node, now)
    return tuple(out)


def _troubles(node: Node, now: float) -> list[Entry]:
    out: list[Entry] = []
    if node.problem is not None:
        out += problem_entries(node.problem)
    if node.state is NodeState.GONE and node.problem is None:
        out.append(Paragraph(line(Span("It said goodbye on the network. It comes back by itself.", Tone.MUTED))))
    if node.next_try is not None and node.next_try > now and node.state is not NodeState.UP:
        out.append(Paragraph(line(Span(
            f"{count(node.attempts, 'try', 'tries')} so far, the next in {span(node.next_try - now)}.", Tone.MUTED))))
    for problem in node.reading.problems if node.reading else ():
        out += problem_entries(problem)
    for device in node.reading.devices if node.reading else ():
        for problem in device.problems:
            out += problem_entries(problem)
    if out:
        out.append(Paragraph())
    return out


def _connection(snapshot: Snapshot, node: Node, now: float) -> list[Entry]:
    sign = NODE_SIGNS[node.state]
    lasted = f" for {span(now - node.since)}" if node.since else ""
    out: list[Entry] = [Fact("is", line(Span(f"{kind_of(node)}, " if kind_of(node) != UNKNOWN else ""),
                                        f"{sign.word}{lasted}"))]
    if node.local:
        out.append(Fact("reached", line("this very machine, no SSH")))
    elif node.address is not None:
        trip = f"  {milliseconds(node.round_trip)}" if node.round_trip is not None else ""
        out.append(Fact("reached at", line(*_address(node.address), Span(trip, Tone.MUTED))))
    else:
        out.append(Fact("reached at", line(Span("no address yet", Tone.WARN))))
    used = (node.address.host, node.address.port) if node.address is not None else None
    others = [_address(address) for address in node.addresses if (address.host, address.port) != used]
    if others:
        out.append(Fact("also at", joined(others, ", ")))
    if node.aliases:
        out.append(Fact("also named", line(", ".join(node.aliases))))
    # What the demo gives its engine comes the same way, and there is no file to look for.
    sources = [source for source in node.sources if source != "fleet.yaml" or snapshot.config_path]
    if sources:
        out.append(Fact("known from", line(", ".join(sources))))
    if node.host_key:
        out.append(Fact("host key", line(Span(node.host_key)), Keep.BOTH))
    return out


def _address(address: Address) -> Line:
    word = LINK_WORDS[address.kind]
    port = f":{address.port}" if address.port != 22 else ""
    about = ", ".join(part for part in (word, "pinned" if address.pinned else "") if part)
    return line(f"{address.host}{port}", Span(f" {about}" if about else "", Tone.MUTED))


def _machine(node: Node, reading: NodeReading, old: str) -> list[Entry]:
    note = (Span(old, Tone.WARN),) if old else ()
    out: list[Entry] = [Paragraph(), Heading("machine", note)]
    system = " ".join(part for part in (reading.os, reading.os_version, reading.arch) if part)
    out.append(Fact("system", line(system or UNKNOWN, Span(
        f"  {reading.user}@{reading.hostname}" if reading.user and reading.hostname else "", Tone.MUTED))))
    cpu = reading.cpu
    if cpu.model or cpu.cores:
        cores = f"{cpu.cores} cores" if cpu.cores else ""
        threads = f"{cpu.threads} threads" if cpu.threads and cpu.threads != cpu.cores else ""
        out.append(Fact("processor", line(", ".join(part for part in (cpu.model, cores, threads) if part))))
    if cpu.features:
        out.append(Fact("", line(Span(" ".join(cpu.features), Tone.MUTED))))
    if cpu.load is not None:
        out.append(Fact("load", line(f"{cpu.load:.0f}" if cpu.load >= 10 else f"{round(cpu.load * 2) / 2:g}")))
    memory = reading.memory
    used = used_of(memory.total, memory.available)
    out.append(Gauge("memory", _meter(used, memory.total, " unified" if memory.unified else "")))
    # The processor's memory is the machine's, which stands there already.
    out += [entry for device in reading.devices if device.kind is not DeviceKind.CPU for entry in _device(device)]
    for disk in reading.disks:
        # Models may lie where nobody can write; where it hurts (no state folder), a problem of the reading says so.
        name = "disk" if disk.writable else "disk, r/o"
        out.append(Fact(name, line(Span(f"{size(disk.free)} free  {disk.path}")), Keep.BOTH))
    for interface in reading.interfaces:
        if interface.addresses and LINK_WORDS[interface.kind] not in ("loopback", "container"):
            about = " ".join(part for part in (LINK_WORDS[interface.kind], speed(interface.speed),
                                               "" if interface.up else "down") if part)
            out.append(Fact("network", line(Span(f"{interface.name} {', '.join(interface.addresses)}  "),
                                            Span(about, Tone.MUTED))))
    return out


def _meter(used: int | None, total: int | None, note: str = "") -> Meter:
    if total is None:
        return Meter(None, (Span(f"not known{note}", Tone.MUTED),))
    figures = f"{gib(used)} of {gib(total).strip()} GiB" if used is not None else f"{gib(total).strip()} GiB"
    return Meter(fraction(used, total), line(figures, Span(note, Tone.MUTED)), longest=16)


def _device(device: Device) -> list[Entry]:
    """Its memory as a bar, then what it is and how it does, in a line below."""
    notes = [short_label(device)] if device.label else []
    if device.utilisation is not None:
        notes.append(f"{percent(round(device.utilisation * 20) / 20)} busy")
    if device.temperature is not None:
        notes.append(f"{round(device.temperature / 2) * 2}°C")
    if device.power is not None:
        notes.append(f"{round(device.power / 10) * 10} W")
    if device.vram_total is not None and device.gtt_total is not None:
        notes.append(f"VRAM {size(device.vram_total)} + GTT {size(device.gtt_total)}")
    if device.estimated:
        notes.append("estimated")
    if device.integrated:
        notes.append("integrated, not used for a split")
    meter = _meter(used_of(device.memory_total, device.memory_free), device.memory_total,
                   " unified" if device.unified else "")
    out: list[Entry] = [Gauge(device.name, meter)]
    if notes:
        out.append(Fact("", line(Span(", ".join(notes), Tone.MUTED))))
    return out


def _running(node: Node, names: Mapping[str, str]) -> list[Entry]:
    if not node.services and not node.foreign:
        return []
    out: list[Entry] = [Paragraph(), Heading("services")]
    for service in node.services:
        sign = SERVICE_SIGNS[service.state]
        cell = doing(service, names)
        words = plain(cell.figures if isinstance(cell, Meter) else cell)
        out.append(Cut(line(*sign.line, f"  {service.record.id}", Span(f"  {words}".rstrip(), Tone.MUTED))))
    for foreign in node.foreign:
        port = f", port {foreign.port}" if foreign.port else ""
        out.append(Cut(line(*FOREIGN.line, f"  {program_of(foreign)}", Span(
            f"  pid {foreign.process.pid}{port}", Tone.MUTED))))
    return out


def _software(reading: NodeReading) -> list[Entry]:
    out: list[Entry] = [Paragraph(), Heading("llama.cpp")]
    if not reading.binaries:
        out.append(Paragraph(line(Span("none found on this node", Tone.MUTED))))
    for binary in reading.binaries:
        build = binary.version or (f"b{binary.build}" if binary.build is not None else "build unknown")
        commit = f" ({binary.commit[:9]})" if binary.commit else ""
        out.append(Fact(binary.program, line(f"{build}{commit}"), room=16))
        out.append(Cut((Span("  "), Span(binary.path, Tone.MUTED)), Keep.END))
    if reading.state_folder:
        out.append(Fact("state", line(Span(reading.state_folder)), Keep.END))
    out.append(Fact("python", line(reading.python or "none (not needed to serve)")))
    if reading.models:
        out += [Paragraph(), Heading("models", (Span(count(len(reading.models), "file"), Tone.MUTED),))]
        for model in reading.models[:FILES]:
            out.append(Fact(f"{size(model.size):>8}", line(model.path), Keep.END, room=9))
        if len(reading.models) > FILES:
            out.append(Cut(line(Span(f"and {len(reading.models) - FILES} more", Tone.MUTED))))
    return out


def _history(snapshot: Snapshot, node: Node, now: float) -> list[Entry]:
    own = [notice for notice in snapshot.notices if notice.node == node.name][-NOTICES:]
    if not own:
        return []
    out: list[Entry] = [Paragraph(), Heading("lately")]
    for notice in reversed(own):
        sign = SEVERITY_SIGNS[notice.severity]
        tone = Tone.PLAIN if notice.severity is Severity.INFO else sign.tone
        out.append(Paragraph(line(Span(f"{sign.glyph} ", sign.tone), Span(notice.text, tone),
                                  Span(f"  {span(now - notice.at)} ago", Tone.MUTED)), 2))
    return out
