"""The whole lab: made, read back, changed, removed."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import memory
from .base import BRIDGE, DIR, NET, OURS, PASSPHRASE, PASSWORD, USER, Json, LabError, end, run
from .netns import attach, cable, pids_in, raise_port, set_link, wires
from .node import boot, make_files, wait_ready
from .traits import SHELLS, TRAITS


@dataclass(frozen=True, slots=True)
class Wish:
    """What a lab is to be."""

    nodes: tuple[tuple[str, ...], ...]       # the traits of each, from fl-1 on
    hostnames: tuple[str, ...] = ()          # () or "" = the node's name
    delay_ms: float = 0.0
    rate_mbit: float = 0.0
    bin: str = ""
    models: str = ""

    def check(self) -> None:
        """Raises LabError for what cannot be."""
        unknown = {trait for traits in self.nodes for trait in traits if not memory.is_trait(trait)} - set(TRAITS)
        if unknown or not 1 <= len(self.nodes) <= 200:
            raise LabError(f"1 to 200 nodes, traits as in `traits` {sorted(unknown) or ''}")
        for trait in (trait for traits in self.nodes for trait in traits if trait in SHELLS):
            if not os.path.exists(SHELLS[trait]):
                raise LabError(f"{SHELLS[trait]} is not installed")


def load(name: str = "all") -> tuple[Json, list[Json]]:
    """lab.json, and those of its nodes that NAME means."""
    path = DIR / "lab.json"
    if not path.exists():
        raise LabError(f"no {path}: `up` first")
    lab = json.loads(path.read_text())
    nodes = [n for n in lab["nodes"] if name in ("all", n["name"], n["hostname"], n["addr"])]
    if not nodes:
        raise LabError(f"no node {name}")
    return lab, nodes


def save(lab: Json) -> None:
    """Write lab.json."""
    (DIR / "lab.json").write_text(json.dumps(lab, indent=1) + "\n")


@contextmanager
def changing() -> Iterator[None]:
    """One change at a time, whoever makes it."""
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def up(wish: Wish) -> Json:
    """Make the lab; an earlier one goes first."""
    wish.check()
    down()
    os.umask(0o022)
    run("mkdir -p", DIR / "fs", DIR / "log", DIR / ".fleetlab")   # .fleetlab: `down` may remove the folder
    run("mount -t tmpfs -o mode=755 fleetlab", DIR / "fs")
    for key, phrase in (("id_ed25519", ""), ("id_locked", PASSPHRASE)):
        run("ssh-keygen -qt ed25519 -N", phrase, "-C", "fleetlab", "-f", DIR / key)
    run(f"ip link add {BRIDGE} type bridge mcast_snooping 0")
    run(f"ip addr add {NET}.1/24 brd + dev {BRIDGE}")
    raise_port(BRIDGE)
    attach("fl-ctl", f"{NET}.2", "02:77:00:00:00:02")
    lab: Json = {
        "dir": str(DIR), "bridge": BRIDGE, "subnet": f"{NET}.0/24", "root_addr": f"{NET}.1", "ctl_addr": f"{NET}.2",
        "user": USER, "key": f"{DIR}/id_ed25519", "pubkey": (DIR / "id_ed25519.pub").read_text(),
        "locked_key": f"{DIR}/id_locked", "locked_pubkey": (DIR / "id_locked.pub").read_text(),
        "passphrase": PASSPHRASE, "known_hosts": f"{DIR}/known_hosts", "ssh_config": f"{DIR}/ssh_config",
        "nodes": [], "bin": wish.bin and os.path.realpath(wish.bin),
        "models": wish.models and os.path.realpath(wish.models)}
    for k, traits in enumerate(wish.nodes, 1):
        lab["nodes"].append(_new_node(k, traits, wish, lab))
    save(lab)
    (DIR / "known_hosts").write_text("".join(map(_known_hosts_line, lab["nodes"])))
    (DIR / "ssh_config").write_text("".join(map(_ssh_config_block, lab["nodes"])) + (
        f"Host *\n  User {USER}\n  IdentityFile {lab['key']}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {lab['known_hosts']}\n  StrictHostKeyChecking yes\n"))
    wait_ready(lab["nodes"])
    for node in lab["nodes"]:
        memory.limit(node, node["memory_mib"])
    return lab


def _new_node(k: int, traits: Sequence[str], wish: Wish, lab: Json) -> Json:
    name, slow, lossy = f"fl-{k}", "slow" in traits, "lossy" in traits
    hostname = wish.hostnames[k - 1] if k <= len(wish.hostnames) else ""
    node: Json = {
        "name": name, "hostname": hostname or name, "addr": f"{NET}.{10 + k}",
        "port": 2222 if "port2222" in traits else 22, "mac": f"02:77:00:00:01:{k:02x}", "user": USER,
        "traits": list(traits), "password": PASSWORD if "password" in traits else None,
        "key": lab["locked_key"] if "passphrase" in traits else lab["key"],
        "memory_mib": memory.of_traits(list(traits)),
        "shell": next((SHELLS[trait] for trait in traits if trait in SHELLS), "/bin/bash"),
        "delay_ms": 100.0 if slow else 2.0 if lossy else wish.delay_ms,
        "rate_mbit": 5.0 if slow else wish.rate_mbit, "loss_pct": 10.0 if lossy else 0.0}
    attach(name, node["addr"], node["mac"])
    make_files(node, lab)
    set_link(name, node["delay_ms"], node["rate_mbit"], node["loss_pct"])
    boot(node, lab)
    cable(name, _cable_of(node))
    return node


def _cable_of(node: Json) -> str:
    return "down" if "dead" in node["traits"] else "silent" if "drop" in node["traits"] else "up"


def _known_hosts_line(node: Json) -> str:
    if "newkey" in node["traits"]:
        return ""
    names = dict.fromkeys((node["name"], node["hostname"], node["addr"]))
    written = (name if node["port"] == 22 else f"[{name}]:{node['port']}" for name in names)
    key = node["hostkey"]
    if "changedkey" in node["traits"]:
        key = " ".join((DIR / "id_ed25519.pub").read_text().split()[:2])   # any other key will do
    return f"{','.join(written)} {key}\n"


def _ssh_config_block(node: Json) -> str:
    names = " ".join(dict.fromkeys((node["name"], node["hostname"])))
    return (f"Host {names}\n  HostName {node['addr']}\n  Port {node['port']}\n  IdentityFile {node['key']}\n"
            f"  PreferredAuthentications {'password' if node['password'] else 'publickey'}\n")


def link(node: Json, delay_ms: float = 0.0, rate_mbit: float = 0.0, loss_pct: float = 0.0) -> None:
    """Shape the node's cable; what is not given goes off."""
    node.update(delay_ms=delay_ms, rate_mbit=rate_mbit, loss_pct=loss_pct)
    set_link(node["name"], delay_ms, rate_mbit, loss_pct)


def limit(node: Json, mib: int = 0) -> None:
    """All that runs in the node has so much memory together; 0 = no limit."""
    memory.limit(node, mib)


def cut(node: Json, *, silent: bool = False) -> None:
    """Cable out, or (silent) all but ARP dropped."""
    cable(node["name"], "silent" if silent else "down")


def heal(node: Json) -> None:
    """Cable in."""
    cable(node["name"], "up")


def kill(node: Json) -> None:
    """Power loss."""
    cable(node["name"], "down")
    end(lambda: pids_in(node["name"]))


def start(node: Json, lab: Json) -> None:
    """Power on; waits for its sshd."""
    cable(node["name"], "up")
    boot(node, lab)
    wait_ready([node])
    memory.limit(node, node["memory_mib"])


def down() -> None:
    """Remove all of it; safe to repeat."""
    for name in (path.name for path in Path("/run/netns").glob("fl-*") if OURS.match(path.name)):
        end(lambda name=name: pids_in(name))
        run(f"ip netns del {name}", check=False)
    end(wires)
    memory.remove()
    for device in os.listdir("/sys/class/net"):
        if device == BRIDGE or OURS.match(device) or re.match(r"fl[bxw]-\d+$", device):
            run(f"ip link del {device}", check=False)
    run("umount -l", DIR / "fs", check=False)
    if (DIR / ".fleetlab").exists():
        run("rm -rf --one-file-system", DIR)
