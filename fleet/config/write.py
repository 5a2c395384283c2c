"""A first fleet.yaml, from what was discovered: what can be found out again is a comment, not a setting."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fleet.config.fields import printable
from fleet.config.schema import FleetConfig
from fleet.config.yaml_text import comment, flow, scalar
from fleet.discovery.addresses import parse_ip, split_host_port
from fleet.errors import ConfigError
from fleet.model import Address, DeviceKind, ModelFile, Node, NodeState

NAME_LIMIT = 64
MODELS_WRITTEN = 12
NODES_WRITTEN = 200
USABLE_SHARE = 0.8           # of all device memory: what a model's file may take, the rest is context and buffers
_LATER_PART = re.compile(r"-\d{5}-of-\d{5}$")
_FIRST_PART = re.compile(r"-00001-of-\d{5}$")
_SAID = {"mdns": "found by mDNS", "ssh_config": "named in ssh_config", "by hand": "added by hand",
         "fleet.yaml": "named before"}


def render(fleet: str, nodes: Sequence[Node], config: FleetConfig) -> str:
    """The text of a fleet.yaml for these nodes; settings that `config` has already are kept.

    Machines that only announced themselves and let nobody in are written as comments, with the reason.
    """
    writer = _Writer(config)
    order = sorted(nodes, key=lambda node: (not node.local, node.name))[:NODES_WRITTEN]
    body = [line for node in order for line in writer.node(node)]
    lines = [
        "# The machines of this fleet, as `quarterdeck init` found them.",
        "# fleet.example.yaml explains every key. What is not said here is found out each time.",
        "",
        f"fleet: {scalar(_name(fleet, 'fleet'))}",
        *_settings(config),
        "",
        *(["nodes:", *body] if writer.names else ["nodes: {}", *body]),
        "",
        *writer.models(order),
    ]
    return "\n".join(lines).rstrip() + "\n"


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet: wholly or not at all, never over another.

    Folders that are missing are made for their owner alone; a file in a folder that only its owner may
    look into is for the owner alone too, any other follows the umask.

    Raises:
        ConfigError: there is a file already, or it cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = path.parent.stat().st_mode & 0o077 == 0
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            _publish(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, FileExistsError) and os.path.lexists(path):
            raise ConfigError(f"{path} is there already.", "Edit it, or name another file.") from None
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", "Name a file in a folder of "
                          "yours that is not full.") from None


def _publish(draft: Path, path: Path) -> None:
    """Give the finished draft its name; a hard link fails where there is a file, a rename would not."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        # No hard links here (FAT, some network shares): take the name first, then move over our own.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(draft, path)


class _Writer:
    def __init__(self, config: FleetConfig) -> None:
        self.config = config
        self.names: dict[str, str] = {}            # node name -> name in the file
        self.has_local = False
        self.own_user = ""
        self.places: set[tuple[str, int]] = set()  # addresses that are another node's

    def node(self, node: Node) -> Iterator[str]:
        """The lines of one node."""
        name = _unique(_name(node.name, "node"), self.names.values())
        yield from (f"  # {comment(line)}" for line in _facts(node))
        ghost = set(node.sources) <= {"mdns"} and not node.local and node.reading is None and node.state not in (
            NodeState.SEEN, NodeState.CONNECTING, NodeState.UP)
        settings = None if ghost else self._local(node) if node.local else self._remote(node, name)
        if settings is None:
            why = f" ({node.problem.what})" if node.problem is not None else ""
            yield f"  # {comment(f'{scalar(name)}: left out, it is {node.state}{why}')}"
            return
        self.names[node.name] = name
        if not settings:
            yield f"  {scalar(name)}: {{}}"
            return
        yield f"  {scalar(name)}:"
        yield from (f"    {line}" for line in settings)

    def _local(self, node: Node) -> list[str] | None:
        if self.has_local:
            return None
        self.has_local = True
        self.own_user = node.reading.user if node.reading is not None else ""
        return ["address: local"]

    def _remote(self, node: Node, name: str) -> list[str] | None:
        """None where no address is left that only this node has."""
        settings = []
        by_alias = "ssh_config" in node.sources and name == node.name and _writable(Address(name)) is not None
        if by_alias and (name.lower(), 22) not in self.places:
            self.places.add((name.lower(), 22))    # ssh_config tells host, user, keys and hops
        else:
            addresses = self._addresses(node)
            if not addresses:
                return None
            settings.append(f"address: {scalar(addresses[0])}" if len(addresses) == 1
                            else f"addresses: {flow(addresses)}   # the first that answers, in this order")
            user = node.reading.user if node.reading is not None else ""
            if user and user != (self.config.ssh.user or self.own_user) and re.fullmatch(r"[\w.][\w.$-]*", user):
                settings.append(f"user: {scalar(user)}")
        return settings

    def _addresses(self, node: Node) -> list[str]:
        """The address in use, and the mDNS name, which outlives a new address from the router."""
        first = [node.address] if node.address is not None else list(node.addresses[:1])
        port = first[0].port if first else 22
        named = [Address(alias, port) for alias in node.aliases if alias.lower().endswith(".local")]
        written = []
        for address in (*first, *node.addresses, *named):
            text = _writable(address)
            place = (address.host.lower(), address.port)
            if text is None or place in self.places or len(written) >= 2:
                continue
            if written and parse_ip(address.host) is not None:
                continue
            self.places.add(place)
            written.append(text)
        return written

    def models(self, nodes: Sequence[Node]) -> Iterator[str]:
        """The models that lie on nodes with a llama-server, and the one to bring up."""
        found: dict[str, tuple[str, ModelFile]] = {}
        for node in nodes:
            if node.name not in self.names or node.reading is None:
                continue
            programs = {binary.program for binary in node.reading.binaries}
            for file in sorted(node.reading.models, key=lambda f: -f.size):
                name = _model_name(file.path)
                if name is not None and ("llama-server" in programs or not programs) and name not in found:
                    found[name] = (node.name, file)
        kept = dict(sorted(found.items(), key=lambda item: (-item[1][1].size, item[0]))[:MODELS_WRITTEN])
        if not kept:
            yield "# No model file was found. For example:"
            yield "# models:"
            yield "#   small: {file: ~/models/small.gguf}"
            return
        yield "models:"
        for name, (node_name, file) in kept.items():
            yield f"  {scalar(name)}:   # {_gigabytes(file.size)}"
            yield f"    file: {scalar(file.path)}"
            yield f"    head: {scalar(self.names[node_name])}"
        memory = sum(device.memory_total or 0 for node in nodes if node.name in self.names and node.reading is not None
                     for device in node.reading.devices if not device.integrated)
        fitting = [name for name, (_, file) in kept.items() if file.size <= memory * USABLE_SHARE]
        yield ""
        yield f"model: {scalar(fitting[0] if fitting else next(reversed(kept)))}   # what `quarterdeck up` brings up"


def _settings(config: FleetConfig) -> Iterator[str]:
    """What is set already and differs from the defaults."""
    default = FleetConfig()
    if config.rpc is not default.rpc:
        yield f"rpc: {config.rpc}"
    if config.discovery.interfaces:
        yield f"discovery: {{interfaces: {flow(config.discovery.interfaces)}}}"
    if config.ssh.user:
        yield f"ssh: {{user: {scalar(config.ssh.user)}}}"


def _facts(node: Node) -> Iterator[str]:
    """What is known of a machine, for the person who reads the file."""
    said = ", ".join(_SAID[source] for source in node.sources if source in _SAID)
    yield ", ".join(part for part in ("this machine" if node.local else "", said) if part) or "known"
    reading = node.reading
    if reading is None:
        return
    system = " ".join(part for part in (reading.os, reading.arch) if part)
    memory = f"{_gigabytes(reading.memory.total)} of memory" if reading.memory.total else ""
    yield ", ".join(part for part in (system, f"{reading.cpu.threads} threads" if reading.cpu.threads else "", memory)
                    if part) or "nothing could be read"
    for device in reading.devices[:16]:
        if device.kind is not DeviceKind.CPU:
            size = _gigabytes(device.memory_total) if device.memory_total else "memory not known"
            yield f"{device.name}: {device.label or device.kind}, {size}"
    programs = sorted({f"{binary.program} in {binary.folder}" for binary in reading.binaries})
    yield "; ".join(programs[:4]) if programs else "no llama.cpp programs were found: set `llama` to their folder"


def _gigabytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _name(text: str, instead: str) -> str:
    """A name that fleet.yaml takes: as it is where it can be."""
    shown = "".join(c if printable(c) else "-" for c in text)[:NAME_LIMIT]
    shown = re.sub(r"^[\s-]+", "", shown).rstrip()
    return shown or instead


def _unique(name: str, taken: Iterable[str]) -> str:
    names = set(taken)
    if name not in names:
        return name
    place = 2
    while (numbered := f"{name[:NAME_LIMIT - 5]}-{place}") in names:
        place += 1
    return numbered


def _model_name(path: str) -> str | None:
    """The file's name without its ending; None for what is no model to start: later parts, projectors."""
    stem = path.rpartition("/")[2].removesuffix(".gguf")
    if _LATER_PART.search(stem) and not _FIRST_PART.search(stem):
        return None
    if not path or not printable(path) or len(path) > 4000 or "mmproj" in stem.lower():
        return None
    return _name(_FIRST_PART.sub("", stem), "model")


def _writable(address: Address) -> str | None:
    """An address as fleet.yaml takes it for another machine; None where it does not."""
    host, port = address.host, address.port
    ip = parse_ip(host)
    bracketed = f"[{host}]" if ip is not None and ip.version == 6 else host
    text = host if port == 22 else f"{bracketed}:{port}"
    if not printable(text) or split_host_port(text) is None or host.lower() == "local":
        return None
    if ip is not None and ip.version == 6 and ip.is_link_local and "%" not in host:
        return None
    here = host.lower() == "localhost" or (ip is not None and (ip.is_loopback or ip.is_unspecified))
    return None if here and port == 22 else text
