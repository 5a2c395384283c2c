"""Fleets to look at, made of the engine's own records: one that is well, one with every trouble, and between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fleet.config.schema import FleetConfig, ModelConfig
from fleet.model import (
    Address,
    Binary,
    Cpu,
    Deployment,
    DeploymentState,
    Device,
    DeviceKind,
    Disk,
    ForeignProcess,
    Interface,
    LinkKind,
    Memory,
    ModelFile,
    Node,
    NodeReading,
    NodeState,
    Notice,
    Operation,
    OperationState,
    Placement,
    PlacementState,
    Problem,
    Process,
    Question,
    QuestionKind,
    Service,
    ServiceKind,
    ServiceRecord,
    ServiceState,
    Severity,
    Share,
    Snapshot,
    StepRecord,
    StepState,
)

NOW = 10_000.0
GIB = 1024 ** 3
EPOCH = 1_760_000_000.0
HOSTS = {"atlas": "10.20.0.11", "bolt": "10.20.0.12", "cedar": "10.20.0.13", "dove": "10.20.0.14"}

CONFIG = FleetConfig(
    fleet="home", path="fleet.yaml", model="qwen3-32b",
    models={"qwen3-32b": ModelConfig("qwen3-32b", "/models/Qwen3-32B-Q4_K_M.gguf"),
            "gemma-3-270m": ModelConfig("gemma-3-270m", "/models/gemma-3-270m-it-Q4_K_M.gguf")})


def gpu(name: str, label: str, total: float, free: float, **more: object) -> Device:
    return Device(name, DeviceKind.CUDA, label, int(total * GIB), int(free * GIB), **more)  # type: ignore[arg-type]


def reading(hostname: str, devices: Iterable[Device] = (), *, ram: float = 64, available: float = 41.5, cores: int = 8,
            os: str = "Linux", **more: object) -> NodeReading:
    cpu = Device("CPU", DeviceKind.CPU, "", int(ram * GIB), int(available * GIB))
    values: dict[str, object] = {
        "os": os, "os_version": "6.8" if os == "Linux" else "15.5", "arch": "x86_64" if os == "Linux" else "arm64",
        "hostname": hostname, "user": "ops", "python": "3.11",
        "cpu": Cpu("AMD Ryzen 7 5800X" if os == "Linux" else "Apple M2 Max", cores, cores * 2, ("avx2", "fma"), 0.4),
        "memory": Memory(int(ram * GIB), int(available * GIB), unified=os == "Darwin"),
        "disks": (Disk("/models", 931 * GIB, 412 * GIB),),
        "interfaces": (Interface("eth0", LinkKind.WIRED, (HOSTS.get(hostname, "10.20.0.99"),), 2_500_000_000),),
        "devices": (*devices, cpu),
        "binaries": (Binary("/opt/llama.cpp/llama-server", "llama-server", 10068, "571d0d5c1"),
                     Binary("/opt/llama.cpp/ggml-rpc-server", "ggml-rpc-server", 10068, "571d0d5c1")),
        "models": (ModelFile("/models/Qwen3-32B-Q4_K_M.gguf", int(18.6 * GIB)),
                   ModelFile("/models/gemma-3-270m-it-Q4_K_M.gguf", 253_000_000)),
        "state_folder": "/home/ops/.local/state/quarterdeck",
    }
    return NodeReading(**{**values, **more})  # type: ignore[arg-type]


def service(node: str, kind: ServiceKind, port: int, state: ServiceState = ServiceState.READY, *, pid: int = 4_711,
            argv: tuple[str, ...] = (), alive: bool = True, exit_status: int | None = None, **more: object) -> Service:
    name = f"{kind.value}-{port}"
    program = "llama-server" if kind is ServiceKind.COORDINATOR else "ggml-rpc-server"
    record = ServiceRecord(
        id=name, kind=kind, pid=pid, start_time="a1b2c3d4 8123456",
        argv=argv or (f"/opt/llama.cpp/{program}", "--host", "10.20.0.12", "--port", str(port)), port=port,
        bind="10.20.0.12" if kind is ServiceKind.WORKER else "127.0.0.1", alive=alive, started_epoch=EPOCH,
        folder=f"/home/ops/.local/state/quarterdeck/services/{name}", exit_status=exit_status, log_size=48_213,
        build="b10068 (571d0d5)", fleet="home")
    return Service(record, node, state, since=NOW - 1_300, **more)  # type: ignore[arg-type]


def node(name: str, host: str = "", state: NodeState = NodeState.UP, *, kind: LinkKind = LinkKind.WIRED,
         read: NodeReading | None = None, age: float = 1.0, **more: object) -> Node:
    address = Address(host, 22, kind, "fleet.yaml") if host else None
    values: dict[str, object] = {
        "state": state, "since": NOW - 1_400, "configured": True, "sources": ("fleet.yaml", "mdns"),
        "addresses": (address,) if address else (), "address": address,
        "host_key": "SHA256:Zk1u4xVvXy0QpJq7m2bXo3n5H8rT6wYcD9eFgAaBbCc" if host else "", "round_trip": 0.0042,
        "reading": read, "read_at": NOW - age if read is not None else None,
    }
    return Node(name, **{**values, **more})  # type: ignore[arg-type]


ENDPOINT_BOLT = "10.20.0.12:50052"
ENDPOINT_CEDAR = "10.20.0.13:50052"


def placement(state: PlacementState = PlacementState.MATCHES) -> Placement:
    planned = (
        Share("atlas", "CUDA0", "", 0.42, 28, int(7.8 * GIB), int(0.9 * GIB), int(0.3 * GIB)),
        Share("bolt", "RPC0", ENDPOINT_BOLT, 0.38, 25, int(7.1 * GIB), int(0.8 * GIB), int(0.3 * GIB)),
        Share("cedar", "RPC1", ENDPOINT_CEDAR, 0.20, 12, int(3.7 * GIB), int(0.4 * GIB), int(0.2 * GIB)),
    )
    if state is PlacementState.MATCHES:
        return Placement(planned, planned, state)
    real = (replace(planned[0], model_bytes=int(18.6 * GIB)),
            *(replace(share, model_bytes=0, kv_bytes=0, compute_bytes=0) for share in planned[1:]))
    return Placement(planned, real, PlacementState.LOCAL, Problem(
        "local", "The head holds every byte itself: no worker is used.",
        "Bring it up again; if it stays so, compare the builds of head and workers."))


def serving() -> Deployment:
    return Deployment(
        DeploymentState.SERVING, NOW - 1_290, "qwen3-32b", "/models/Qwen3-32B-Q4_K_M.gguf", "atlas",
        "coordinator-8080", "http://127.0.0.1:8080", (("bolt", "worker-50052"), ("cedar", "worker-50052")), 8192,
        placement())


def normal() -> Snapshot:
    """Four machines, a model over three of them."""
    atlas = node("atlas", read=reading("atlas", (gpu("CUDA0", "NVIDIA GeForce RTX 3090", 24, 13.1, utilisation=0.62,
                                                     temperature=61.0, power=212.0),)),
                 local=True, sources=("local", "fleet.yaml"), host_key="", addresses=(), address=None,
                 services=(service("atlas", ServiceKind.COORDINATOR, 8080, ServiceState.BUSY, pid=40_121,
                                   slots_busy=1, slots_total=4, tokens_per_second=17.36),))
    bolt = node("bolt", "10.20.0.12", read=reading("bolt", (
        gpu("CUDA0", "NVIDIA GeForce RTX 3060", 12, 4.0), gpu("CUDA1", "NVIDIA GeForce RTX 3060", 12, 11.7))),
        services=(service("bolt", ServiceKind.WORKER, 50052, ServiceState.BUSY, pid=2_204,
                          held_by="10.20.0.11:51822"),), aliases=("bolt.local",),
        addresses=(Address("10.20.0.12", 22, LinkKind.WIRED, "fleet.yaml", True),
                   Address("192.168.7.31", 22, LinkKind.WIFI, "mdns")))
    cedar = node("cedar", "10.20.0.13", kind=LinkKind.WIFI, read=reading(
        "cedar", (Device("MTL0", DeviceKind.METAL, "Apple M2 Max", int(21.3 * GIB), int(17.0 * GIB), unified=True),),
        os="Darwin", ram=32, available=18.0, cores=12),
        services=(service("cedar", ServiceKind.WORKER, 50052, ServiceState.BUSY, pid=883,
                          held_by="10.20.0.11:51824"),))
    dove = node("dove", "100.64.0.9", kind=LinkKind.VPN, read=reading("dove", ram=16, available=12.2, cores=4))
    nodes = {each.name: each for each in (atlas, bolt, cedar, dove)}
    return Snapshot(
        fleet="home", config_path="fleet.yaml", nodes=nodes, deployment=serving(),
        notices=(Notice(NOW - 1_400, EPOCH, Severity.INFO, "bolt is up", "bolt"),
                 Notice(NOW - 1_290, EPOCH + 110, Severity.INFO, "qwen3-32b serves")))


def idle() -> Snapshot:
    """The same machines with nothing running."""
    nodes = {name: replace(each, services=()) for name, each in normal().nodes.items()}
    return replace(normal(), nodes=nodes, deployment=Deployment(), notices=())


def empty() -> Snapshot:
    """Nothing found, no file."""
    return Snapshot(config_path="")


def stale() -> Snapshot:
    """The node that holds a worker has not answered for two minutes."""
    snapshot = normal()
    bolt = snapshot.nodes["bolt"]
    bolt = replace(
        bolt, state=NodeState.SILENT, since=NOW - 120, read_at=NOW - 128, attempts=2, next_try=NOW + 42,
        problem=Problem("silent", "bolt has not answered for two polls.",
                        "It may sleep, or the network between is down. It is tried again by itself."),
        services=tuple(replace(each, state=ServiceState.UNKNOWN) for each in bolt.services))
    return replace(snapshot, nodes={**snapshot.nodes, "bolt": bolt})


def difficult() -> Snapshot:
    """A node in every state there is, services that failed, a stranger's process, a name full of tricks."""
    def trouble(name: str, number: int, state: NodeState, what: str = "", remedy: str = "", **more: object) -> Node:
        problem = Problem(state.value.replace(" ", "-"), what, remedy) if what else None
        return node(name, f"10.20.0.{number}", state, problem=problem, **more)

    atlas = replace(normal().nodes["atlas"], services=(
        service("atlas", ServiceKind.COORDINATOR, 8080, ServiceState.FAILED, pid=40_121, alive=False, exit_status=134,
                detail="exit 134: a worker went away",
                problem=Problem("worker-died", "The head ended with signal 6 because worker bolt:50052 went away.",
                                "Bring the model up again.")),))
    gone = service("elm", ServiceKind.WORKER, 50052, ServiceState.STUCK, pid=77, detail="no progress for 90 s")
    nodes = (
        atlas,
        trouble("birch", 21, NodeState.SEEN),
        trouble("cobalt", 22, NodeState.CONNECTING),
        trouble("dune", 23, NodeState.SILENT, "dune has missed its last 3 polls.", "It is tried again by itself.",
                read=reading("dune"), age=75, attempts=3, next_try=NOW + 15),
        trouble("elm", 24, NodeState.UP, read=reading("elm", problems=(
            Problem("no-llama", "No llama.cpp was found on elm.", "Install it, or name its folder with llama: in "
                    "fleet.yaml.", Severity.WARNING),), binaries=()), services=(gone,),
            foreign=(ForeignProcess(Process(9_120, "99", "S", ("/usr/local/bin/ollama", "serve"), 2 * GIB, "ollama"),
                                    None, 11434),
                     ForeignProcess(Process(9_333, "100", "S", (
                         "/home/eve/ggml-rpc-server", "-p", "50055", "--api-key", "hunter2"), GIB, "eve"),
                         ServiceKind.WORKER, 50055))),
        trouble("fjord", 25, NodeState.UNREACHABLE, "fjord does not answer at 10.20.0.25.",
                "Is it switched on? Its address may have changed: n adds it by another.", attempts=4,
                next_try=NOW + 48),
        trouble("gale", 26, NodeState.REFUSED, "gale answers, but nothing listens on its port 22.",
                "Start sshd there, or give its port in fleet.yaml."),
        trouble("heron", 27, NodeState.LOCKED, "heron let nobody in: no key was accepted.",
                "ssh-copy-id ops@10.20.0.27 puts your key there."),
        trouble("iris", 28, NodeState.NEW_KEY, "iris has a host key that was never seen.",
                "Compare its fingerprint and accept it."),
        trouble("jade", 29, NodeState.CHANGED_KEY, "jade shows another host key than known_hosts has in line 12.",
                "If the machine was set up anew, remove it: ssh-keygen -R 10.20.0.29"),
        trouble("koi", 30, NodeState.BROKEN, "koi signed us in, but its /bin/sh gives nothing that can be read."),
        trouble("lark", 31, NodeState.GONE),
        trouble("\x1b[31mm[b]\u202eevil", 32, NodeState.UNREACHABLE, "[red]not markup[/red] \x1b]0;title\x07",
                "[@click=app.quit]click[/]"),
    )
    return replace(
        normal(), nodes={each.name: each for each in nodes},
        deployment=replace(serving(), state=DeploymentState.BROKEN, placement=Placement(placement().planned), problem=
                           Problem("head-down", "The head of qwen3-32b has ended.", "b brings the model up again.")),
        discovery=(Problem("mdns", "mDNS does not work: port 5353 is taken.", "", Severity.WARNING),))


def operating() -> Snapshot:
    """A model that is being brought up."""
    snapshot = idle()
    steps = (
        StepRecord("Check that builds and protocols match", state=StepState.DONE, started=NOW - 40, ended=NOW - 39.5,
                   detail="b10068 on 3 nodes"),
        StepRecord("Check files, ports and memory", state=StepState.DONE, started=NOW - 39, ended=NOW - 37),
        StepRecord("Start worker on bolt, port 50052", "bolt", StepState.SKIPPED, detail="runs already"),
        StepRecord("Start worker on cedar, port 50052", "cedar", StepState.DONE, started=NOW - 37, ended=NOW - 34),
        StepRecord("Start head on atlas, port 8080", "atlas", StepState.DONE, started=NOW - 34, ended=NOW - 33),
        StepRecord("Load qwen3-32b", "atlas", StepState.RUNNING, started=NOW - 33, progress=0.42,
                   detail="7.8 of 18.6 GiB"),
        StepRecord("Verify where it sits", "atlas"),
        StepRecord("Answer with one token", "atlas"),
    )
    head = service("atlas", ServiceKind.COORDINATOR, 8080, ServiceState.LOADING, pid=40_121, progress=0.42)
    atlas = replace(snapshot.nodes["atlas"], services=(head,))
    return replace(
        snapshot, nodes={**snapshot.nodes, "atlas": atlas},
        deployment=replace(serving(), state=DeploymentState.LOADING, placement=Placement(placement().planned)),
        operations=(Operation(7, "up", "Bring up qwen3-32b", OperationState.RUNNING, steps, NOW - 40),))


def failed() -> Snapshot:
    """The same, failed and undone."""
    snapshot = operating()
    operation = snapshot.operations[0]
    steps = list(operation.steps)
    steps[3] = replace(steps[3], state=StepState.UNDONE)
    steps[4] = replace(steps[4], state=StepState.UNDONE)
    steps[5] = replace(steps[5], state=StepState.FAILED, ended=NOW - 5, progress=None,
                       detail="signal 9 while loading; the kernel ended it: out of memory on atlas")
    over = replace(operation, state=OperationState.FAILED, steps=tuple(steps), ended=NOW - 2, problem=Problem(
        "out-of-memory", "The head on atlas was ended by the kernel: atlas ran out of memory.",
        "Give atlas a smaller share with split: in fleet.yaml, or a smaller context."))
    return replace(idle(), operations=(over,))


def host_key_question() -> Snapshot:
    """A new machine asks to be trusted."""
    snapshot = normal()
    dove = replace(snapshot.nodes["dove"], state=NodeState.NEW_KEY, reading=None, read_at=None)
    question = Question(1, QuestionKind.HOST_KEY, "dove", "dove at 100.64.0.9 shows a host key never seen before.",
                        "SHA256:Qm9v1kJ0x2y3Z4a5B6c7D8e9F0g1H2i3J4k5L6m7N8o")
    return replace(snapshot, nodes={**snapshot.nodes, "dove": dove}, questions=(question,))


def password_question() -> Snapshot:
    """A machine that lets nobody in without a password."""
    question = Question(2, QuestionKind.PASSWORD, "dove", "dove takes no key of ours. Its password for ops?",
                        "ops@100.64.0.9")
    return replace(normal(), questions=(question,))


def broken_config() -> Snapshot:
    """fleet.yaml was edited into nonsense while the cockpit ran."""
    return replace(normal(), config_problems=(
        "fleet.yaml:12: nodes.atlas.prot: unknown key; did you mean 'port'?",
        "fleet.yaml:19: models.qwen3-32b.file: expected a path"))


def thirty() -> Snapshot:
    """Thirty machines."""
    nodes = [node(f"node{number:02d}", f"10.20.1.{number}", read=reading(f"node{number:02d}", (
        gpu("CUDA0", "NVIDIA GeForce RTX 3090", 24, 24 - number * 0.5),))) for number in range(1, 31)]
    return replace(idle(), nodes={each.name: each for each in nodes})
