"""Models on lab nodes, and fleets that distribute them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from fleetlab.node import enter

from fleet.config.schema import DiscoveryConfig, FleetConfig, NodeConfig, SshConfig
from fleet.model import Snapshot
from fleet.model.swarm import Swarm, SwarmPeer
from fleet.node import create_manifest

FOLDER = "/home/fleet/models"
MIB = 1 << 20


def fleet_of(lab, names: Iterable[str], **changes: object) -> FleetConfig:
    """A configuration of these nodes, whose models lie in FOLDER."""
    nodes = {}
    for name in names:
        node = lab.nodes[name]
        nodes[name] = NodeConfig(name, addresses=(f"{node['addr']}:{node['port']}",), user=node["user"],
                                 identity_files=() if node["password"] else (node["key"],))
    return FleetConfig(fleet="swarm", nodes=nodes, refresh=1.0, model_dirs=(FOLDER,),
                       discovery=DiscoveryConfig(mdns=False, ssh_config=False),
                       ssh=SshConfig(known_hosts=lab.known_hosts, agent=False), **changes)


def fleet_yaml(lab, names: Iterable[str], path: Path) -> Path:
    """The same as a file."""
    nodes = "".join(f"  {name}: {{address: '{lab.nodes[name]['addr']}:{lab.nodes[name]['port']}'}}\n" for name in names)
    path.write_text(f"fleet: swarm\nnodes:\n{nodes}model_dirs: [{FOLDER}]\n"
                    "discovery: {mdns: false, ssh_config: false, announce: false}\n"
                    f"ssh: {{user: fleet, identity_files: [{lab.key}], known_hosts: {lab.known_hosts}, "
                    "agent: false}\n")
    return path


async def quarterdeck(*words: str, tmp_path: Path) -> asyncio.subprocess.Process:
    """The command, away from the home of whoever runs the tests."""
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; from app.cli import main; sys.exit(main(sys.argv[1:]))", *words,
        stdout=asyncio.subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ, cwd=Path(__file__).parents[2])


def put_model(lab, node: str, name: str, size: int, seed: int = 1) -> str:
    """A file of `size` bytes in the node's folder of models; its SHA-256."""
    code = ("import random, sys\nrng, left = random.Random(int(sys.argv[3])), int(sys.argv[2])\n"
            "with open(sys.argv[1], 'wb') as file:\n"
            "    while left:\n        part = rng.randbytes(min(left, 1 << 20))\n"
            "        left -= file.write(part)\n")
    done = lab.exec(node, f"mkdir -p {FOLDER}", user="fleet")
    assert done.returncode == 0, done.stderr
    done = lab.exec(node, "python3", "-c", code, f"{FOLDER}/{name}", str(size), str(seed), user="fleet")
    assert done.returncode == 0, done.stderr
    return content_hash(size, seed)


def content_hash(size: int, seed: int) -> str:
    """The SHA-256 of what `put_model` writes."""
    rng, hasher = random.Random(seed), hashlib.sha256()
    while size:
        part = rng.randbytes(min(size, MIB))
        hasher.update(part)
        size -= len(part)
    return hasher.hexdigest()


def make_whole(lab, node: str, name: str, size: int, seed: int, tmp_path: Path, piece_size: int) -> None:
    """The model as `put_model` writes it, with the note of a finished pull."""
    put_model(lab, node, name, size, seed)
    manifest = make_manifest(tmp_path, name, size, seed, piece_size)
    code = ("import hashlib, json, os, sys\nname, manifest, count = sys.argv[1], sys.argv[2], int(sys.argv[3])\n"
            "info = os.stat(name)\nbits = bytearray(b'\\xff' * ((count + 7) // 8))\n"
            "if count % 8: bits[-1] = 0xff00 >> (count % 8) & 0xff\n"
            "note = {'format': 'quarterdeck-pieces', 'version': 1, 'manifest': manifest, 'count': count,\n"
            "        'bits': bits.hex(), 'files': [[info.st_size, info.st_mtime_ns]], 'complete': True}\n"
            "text = json.dumps(note, sort_keys=True, separators=(',', ':'))\n"
            "note['check'] = hashlib.sha256(text.encode()).hexdigest()\n"
            "open(name + '.quarterdeck.pieces', 'w').write(json.dumps(note))\n")
    done = lab.exec(node, "python3", "-c", code, f"{FOLDER}/{name}", manifest.id, str(manifest.count), user="fleet")
    assert done.returncode == 0, done.stderr


def make_manifest(tmp_path: Path, name: str, size: int, seed: int, piece_size: int):
    """The manifest of such a model, made here."""
    rng, left, path = random.Random(seed), size, tmp_path / name
    with path.open("wb") as file:
        while left:
            left -= file.write(rng.randbytes(min(left, MIB)))
    manifest = create_manifest(path, piece_size=piece_size)
    path.unlink()
    return manifest


def put_manifest(lab, node: str, manifest) -> None:
    """The manifest beside the model of a node."""
    code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    path = f"{FOLDER}/{manifest.name}.quarterdeck.manifest"
    subprocess.run(enter(lab.nodes[node], ["python3", "-c", code, path], "fleet"), input=manifest.as_bytes(),
                   check=True, timeout=30)


def spoil(lab, node: str, name: str, every: int) -> None:
    """A bad disk: one byte in `every` is another one, and no time stamp tells."""
    code = ("import os, sys\npath, every = sys.argv[1], int(sys.argv[2])\ninfo = os.stat(path)\n"
            "with open(path, 'r+b') as file:\n"
            "    for at in range(every // 2, info.st_size, every):\n"
            "        file.seek(at); byte = file.read(1); file.seek(at); file.write(bytes([byte[0] ^ 1]))\n"
            "os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))\n")
    done = lab.exec(node, "python3", "-c", code, f"{FOLDER}/{name}", str(every), user="fleet")
    assert done.returncode == 0, done.stderr


def hash_on(lab, node: str, name: str) -> str:
    """The SHA-256 of a model on a node, "" when it is not there."""
    return lab.exec(node, f"sha256sum {FOLDER}/{name} 2>/dev/null", user="fleet").stdout.partition(" ")[0]


def clear(lab, nodes: Iterable[str]) -> None:
    """Take every model and process of a swarm away."""
    for node in nodes:
        if not lab.pids(node):
            lab.boot(node)
        lab.exec(node, "pkill -9 -f quarterdeck-nod[e]-; umount /home/fleet/models 2>/dev/null; "
                       f"rm -rf {FOLDER} /home/fleet/.local/state/quarterdeck")


def swarm_of(snapshot: Snapshot) -> Swarm | None:
    """The one swarm that is known of."""
    return snapshot.swarms[-1] if snapshot.swarms else None


def peer(snapshot: Snapshot, node: str) -> SwarmPeer | None:
    """One node of it."""
    swarm = swarm_of(snapshot)
    return next((each for each in swarm.peers if each.node == node), None) if swarm else None


def leftovers(lab, nodes: Iterable[str]) -> list[str]:
    """Processes and tokens of a swarm that are still on nodes."""
    found = []
    for node in nodes:
        there = lab.exec(node, "pgrep -f quarterdeck-nod[e]- ; ls /home/fleet/.local/state/quarterdeck/secrets "
                               "/home/fleet/.local/state/quarterdeck/services 2>/dev/null | grep swarm-").stdout
        found += [f"{node}: {line}" for line in there.split("\n") if line]
    return found
