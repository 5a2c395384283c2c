"""Machines to measure on: nodes of the lab, or without root one sshd each on loopback ports.

All of them share the processor with what is measured, so every figure comes with who else used it.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

TESTS = Path(__file__).resolve().parents[1]
PATIENCE = 900.0     # seconds to wait for another session's lab to go
SSHD = """ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host_key_{port}\nPidFile none\nUsePAM no
StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nAuthorizedKeysFile {folder}/key.pub
MaxStartups 100
SetEnv SHLVL=2 HOME={folder}
ForceCommand /bin/sh -c 'eval "$SSH_ORIGINAL_COMMAND"' | sed 's/{machine_id}/{other_id}/'
"""


@dataclass(frozen=True, slots=True)
class Host:
    """One machine."""

    name: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Hosts:
    """Machines that are up, and how to sign in on them."""

    kind: str                # "lab" or "loopback"
    each: tuple[Host, ...]
    user: str
    key: str
    known_hosts: str
    folder: Path
    bridge: str              # the interface that carries their traffic and nothing else; "" = none does

    def fleet_yaml(self, refresh: float) -> Path:
        """A fleet.yaml that names them all."""
        nodes = "".join(f"  {host.name}:\n    address: {host.address}:{host.port}\n" for host in self.each)
        path = self.folder / "fleet.yaml"
        path.write_text(
            f"fleet: bench\nrefresh: {refresh:g}\nnodes:\n{nodes}"
            "discovery:\n  mdns: false\n  ssh_config: false\n  announce: false\n"
            f"ssh:\n  user: {self.user}\n  identity_files: [{self.key}]\n  known_hosts: {self.known_hosts}\n"
            "  agent: false\n")
        return path

    def processor(self) -> float:
        """CPU seconds that the machines' own processes have used: those that run, and the children that they reaped."""
        used = 0.0
        for process in self._processes():
            with suppress(psutil.Error):       # it may end meanwhile
                times = process.cpu_times() if self.kind == "lab" or process.name() == "sshd" else None
                if times is not None:
                    used += times.user + times.system + times.children_user + times.children_system
        return used

    def _processes(self) -> Iterator[psutil.Process]:
        if self.kind == "loopback":
            yield from psutil.Process().children(recursive=True)
            return
        from fleetlab.netns import pids_in

        for pid in (pid for host in self.each for pid in pids_in(host.name)):
            with suppress(psutil.Error):
                yield psutil.Process(pid)

    def wire_bytes(self) -> int | None:
        """Bytes that passed between us and the machines, headers and all; None where they cannot be told apart."""
        if not self.bridge:
            return None
        counts = Path("/sys/class/net", self.bridge, "statistics")
        return sum(int((counts / name).read_text()) for name in ("rx_bytes", "tx_bytes"))


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """That many machines for as long as the block lasts: lab nodes where we may make them, sshds on loopback elsewhere.

    Exits with the reason where there can be neither.
    """
    folder = Path(tempfile.mkdtemp(prefix="quarterdeck-bench-"))
    try:
        why_no_lab = _why_no_lab()
        with _lab(count, folder) if not why_no_lab else _loopback(count, folder, why_no_lab) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _why_no_lab() -> str:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the lab needs Linux and root"
    if missing := [name for name in ("ip", "nsenter", "unshare", "sshd", "ssh-keygen", "avahi-daemon")
                   if not shutil.which(name, path=path)]:
        return f"the lab needs {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return "the lab needs network and mount namespaces" if tried.returncode else ""


@contextmanager
def _lab(count: int, folder: Path) -> Iterator[Hosts]:
    os.environ["FLEETLAB_DIR"] = str(folder / "fleetlab")
    if str(TESTS / "lab") not in sys.path:
        sys.path.insert(0, str(TESTS / "lab"))
    with open(Path(tempfile.gettempdir(), "quarterdeck-lab.lock"), "w") as lock:
        _wait_for(lock)
        from fleetlab import lab
        from fleetlab.base import BRIDGE

        try:
            made = lab.up(lab.Wish((("plain",),) * count))
            yield Hosts("lab", tuple(Host(node["name"], node["addr"], node["port"]) for node in made["nodes"]),
                        made["user"], made["key"], made["known_hosts"], folder, BRIDGE)
        finally:
            lab.down()


def _wait_for(lock) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > until:
                sys.exit("another session holds the lab")
            time.sleep(0.5)


@contextmanager
def _loopback(count: int, folder: Path, why_no_lab: str) -> Iterator[Hosts]:
    sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/libexec")
    if not sshd:
        sys.exit(f"Nothing to measure on: {why_no_lab}, and there is no sshd for loopback. Install openssh-server.")
    # One machine id is one node, whatever its ports and keys: each sshd tells another one. The account's own rc
    # files are not what is measured: its home is an empty one, and at shell level 2 bash reads no .bashrc at all.
    file = Path("/etc/machine-id")
    machine_id = file.read_text().strip() if file.exists() else "no id to change"
    servers, known = [], []
    _make_key(folder / "key")
    try:
        each = [Host(f"loop-{k}", "127.0.0.1", port) for k, port in enumerate(_free_ports(count), 1)]
        for number, host in enumerate(each, 1):
            known.append(f"[127.0.0.1]:{host.port} {_make_key(folder / f'host_key_{host.port}')}\n")
            config = folder / f"sshd-{host.port}"
            config.write_text(SSHD.format(port=host.port, folder=folder, machine_id=machine_id,
                                          other_id=f"{number:032x}"))
            servers.append(subprocess.Popen([sshd, "-D", "-f", config], stderr=subprocess.DEVNULL))
        (folder / "known_hosts").write_text("".join(known))
        for host in each:
            _wait_until_it_listens(host)
        yield Hosts("loopback", tuple(each), getpass.getuser(), str(folder / "key"), str(folder / "known_hosts"),
                    folder, "")
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait()


def _make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", path], check=True)
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:      # all held at once, or one might be given twice
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def _wait_until_it_listens(host: Host) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection((host.address, host.port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                sys.exit(f"sshd does not listen on port {host.port}")
            time.sleep(0.05)


class Load:
    """Who used the processor while something was measured: `with Load() as load: ...`."""

    def __enter__(self) -> Load:
        self._begun, self._busy = time.monotonic(), _busy()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.monotonic() - self._begun
        self.busy = _busy() - self._busy

    def foreign(self, ours: float) -> float:
        """The share of the machine that everybody but us used; `ours` in CPU seconds."""
        return max(0.0, self.busy - ours) / (self.wall * (os.cpu_count() or 1))


def _busy() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def machine() -> str:
    """What was measured on, in a few words."""
    cores = os.cpu_count() or 1
    return f"{sys.platform}, {cores} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"
