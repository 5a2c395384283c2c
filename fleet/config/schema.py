"""What fleet.yaml says, as frozen records: the user's wishes, never what was observed.

`load.py` makes these from a file and says what is wrong with it; with no file at all `FleetConfig()`
is in force: this machine, and whatever is discovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.proxy.exchange import BackendKind, HoldSettings, Limits, RepairSettings
from fleet.speculation.settings import DrafterKind, SpeculationMode

WORKER_PORT = 50052        # ggml-rpc-server's own default
HEAD_PORT = 8080           # llama-server's own default
HEAD_PORT_BEHIND_PROXY = 8090
PROXY_PORT = 8088
TINYTITAN_PORT = 8080      # wants the head's port: seen before start


class RpcMode(StrEnum):
    """How a head reaches its workers."""

    DIRECT = "direct"      # the worker binds the one address that the head uses
    TUNNEL = "tunnel"      # the worker binds its loopback; SSH forwards carry the traffic


class RuntimeName(StrEnum):
    """What serves a model."""

    LLAMA = "llama.cpp"    # llama-server, with ggml-rpc-servers on other machines
    VLLM = "vllm"          # vLLM, a stage of its pipeline on each machine


class VllmForm(StrEnum):
    """How vLLM's processes on several machines find each other."""

    MP = "mp"              # by themselves: --nnodes, --node-rank, --master-addr
    RAY = "ray"            # over a Ray cluster that is started for it


class Role(StrEnum):
    """What a node may be used for."""

    HEAD = "head"
    WORKER = "worker"


class SplitMode(StrEnum):
    """What layers are dealt for."""

    TIME = "time"          # the least predicted seconds a token: what is not worth its round trip takes no part
    MEMORY = "memory"      # in proportion to memory: every device that can hold its share takes part


class RecoverPolicy(StrEnum):
    """What becomes of a model whose worker or head has died."""

    ASK = "ask"            # a person is asked; where nobody is there, it stays as it is
    AUTO = "auto"          # it is brought up again on what is left, or on the node that came back
    OFF = "off"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One ggml-rpc-server of a node."""

    port: int = WORKER_PORT
    devices: tuple[str, ...] = ()              # () = the server's own choice (Macs: Metal alone)
    threads: int | None = None                 # None = all cores of the node, shared between its workers
    cache: bool = False                        # -c: keep tensors over 10 MiB on the worker's disk
    managed: bool = True                       # False: somebody else starts it; we only use it
    env: Mapping[str, str] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The llama-server of a node, where the node is the head."""

    port: int = HEAD_PORT
    bind: str = "127.0.0.1"
    api_key_file: str = ""                     # path on the head
    threads: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One machine that the user named."""

    name: str
    addresses: tuple[str, ...] = ()            # host, host:port or IP; the first is pinned; () = the name itself
    local: bool = False                        # `address: local`: this very machine
    port: int | None = None                    # sshd's; None = ssh_config's or 22
    user: str | None = None
    identity_files: tuple[str, ...] = ()
    jump: str = ""                             # "user@host:port,..." as ProxyJump
    roles: tuple[Role, ...] = (Role.HEAD, Role.WORKER)
    vram: Mapping[str, int] = field(default_factory=dict)   # bytes by device name: overrides what was probed
    workers: tuple[WorkerConfig, ...] = (WorkerConfig(),)
    head: HeadConfig = HeadConfig()
    llama: str = ""                            # folder with the llama.cpp binaries; "" = search
    model_dirs: tuple[str, ...] = ()           # () = the usual ones
    state_dir: str = ""                        # "" = ~/.local/state/quarterdeck
    rpc: RpcMode | None = None                 # None = the fleet's
    rpc_address: str = ""                      # address that its workers bind; "" = the best that the head reaches


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """What vLLM is told of one model beside its context and its slots."""

    form: VllmForm = VllmForm.MP
    tensor_parallel: int | None = None         # GPUs a node that share every layer; None = as many as each has
    layers: tuple[int, ...] = ()               # of each node, the head first; () = even, or by memory
    master_port: int = 29501                   # vLLM's own default
    ray_port: int = 6379                       # Ray's own default
    program: str = ""                          # path of `vllm` on every node; "" = search. `ray` lies beside it
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts that is larger than memory: read from disk as it is needed, inside a budget."""

    budget: int                                # bytes of main memory for all of it: weights, context, the server
    shim: bool = True                          # count experts, and read them before they are touched


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """What the head drafts with by itself, in llama-server's words."""

    file: str = ""                             # path on the head of a draft model; "" = the mode needs none
    mode: str = "draft-simple"                 # --spec-type; several with commas
    device: str = ""                           # as the head names it ("CUDA0", "RPC1"), or a worker's node; "" = the
                                               # head's processor
    length: int = 4                            # tokens of a draft at most


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model by the name that the user calls it."""

    name: str
    file: str                                  # path on the head; the first shard of several
    head: str = ""                             # node; "" = chosen
    workers: tuple[str, ...] | None = None     # nodes; None = every other one that may; () = none
    context: int | None = None                 # tokens; None = the most that fits without making tokens slower
    slots: int | None = None
    kv_type_k: str = ""                        # f16, q8_0 ...
    kv_type_v: str = ""
    flash_attention: str = ""                  # on, off, auto
    gpu_layers: int | None = None
    split: Mapping[str, float] = field(default_factory=dict)  # node -> share; {} = as `mode` says
    mode: SplitMode = SplitMode.TIME
    extra_args: tuple[str, ...] = ()
    runtime: RuntimeName = RuntimeName.LLAMA
    experts: ExpertsConfig | None = None       # None = the model has to fit into memory
    draft: DraftConfig | None = None           # None = the head does not speculate
    vllm: VllmConfig = VllmConfig()            # for `runtime: vllm`, where `file` is a folder or a hub name
    speculation: SpeculationConfig | None = None    # drafts in front of its head, made by the proxy
    pinned: bool = False                       # never ended or swapped by itself
    priority: int = 0                          # of several models that are asked for, the highest comes first
    aliases: tuple[str, ...] = ()              # further names that clients may ask for it by


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    """Where machines are looked for."""

    mdns: bool = True
    interfaces: tuple[str, ...] = ()           # names or addresses; () = all but container bridges
    ssh_config: bool = True                    # the Host aliases of ~/.ssh/config
    ssh_config_file: str = "~/.ssh/config"
    announce: bool = True                      # headless engines say _quarterdeck._tcp, seeders _qd-swarm._tcp


@dataclass(frozen=True, slots=True)
class SshConfig:
    """How we sign in, where a node says nothing of its own."""

    user: str | None = None
    identity_files: tuple[str, ...] = ()
    known_hosts: str = "~/.ssh/known_hosts"
    connect_timeout: float = 8.0               # seconds
    agent: bool = True


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A server that guesses for a larger one."""

    name: str
    url: str
    backend: DrafterKind = DrafterKind.LLAMA_SERVER
    model: str = ""                            # its name there; Ollama needs one
    key_file: str = ""                         # path, on the proxy's machine, of the key that it wants
    key_env: str = ""                          # variable of the proxy's environment with that key


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Drafts in front of a server. The defaults are those of `fleet.speculation.settings`."""

    mode: SpeculationMode = SpeculationMode.AUTO
    drafters: Mapping[str, DrafterConfig] = field(default_factory=dict)
    ngram: bool = True                         # guess from what a request repeats, without a model
    draft_length: int = 16                     # tokens of a draft at most
    stride: int = 4                            # tokens between two verified places at most
    deadline: float = 2.0                      # seconds for a draft
    grace: float = 0.3                         # seconds for a slower llama-server after the first draft
    grace_text: float = 1.0                    # the same for Ollama
    look_ahead: bool = True                    # draft the next round while this one is verified
    honesty: float = 0.02                      # share of the requests that are asked again plainly and compared

    @property
    def verifies(self) -> bool:
        """Drafts are verified from outside the head, which wants slots and flags of their own."""
        return self.mode in (SpeculationMode.AUTO, SpeculationMode.STRIDED, SpeculationMode.INJECTION)


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """A server that the proxy serves from, besides the fleet's own heads."""

    name: str
    url: str                                   # http(s)://host:port, with a path where the server has one
    backend: BackendKind = BackendKind.OPENAI
    models: tuple[str, ...] = ()               # what it serves; () = what its /v1/models says
    group: str = ""                            # a name that several upstreams share, usable as a model
    key_file: str = ""                         # path, on the proxy's machine, of the key that it wants
    key_env: str = ""                          # variable of the proxy's environment with that key
    slots: int | None = None                   # requests at once; None = what it says
    weight: float = 1.0                        # share of the requests, where several serve a model
    let_it_finish: bool = False                # a request whose client left runs to its end
    connect_timeout: float = 5.0               # seconds
    first_byte_timeout: float = 1800.0         # seconds of a prefill
    stall_timeout: float = 300.0               # seconds between two parts of an answer
    speculation: SpeculationConfig | None = None


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The endpoint that clients point at. Secrets are named here, never held."""

    listen: str = f"127.0.0.1:{PROXY_PORT}"
    enabled: bool = False
    keys_file: str = ""                        # path, on the proxy's machine, of the keys that clients need
    keys_env: str = ""                         # variable of the proxy's environment with them
    allow_open: bool = False                   # beyond loopback without a key
    upstreams: Mapping[str, UpstreamConfig] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)   # a name that clients use -> model
    default_model: str = ""                    # for requests that name none
    cors: tuple[str, ...] = ()                 # web origins whose pages may use it; () = off
    names: tuple[str, ...] = ()                # further host names that clients call it by (a reverse proxy's)
    hold: HoldSettings = HoldSettings()
    limits: Limits = Limits()
    repair: RepairSettings = RepairSettings()
    retries: int = 2                           # on other upstreams, before a byte has gone to the client
    records: int = 1000                        # requests that are remembered
    keep_bodies: bool = False                  # with what was asked


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """When models come and go by themselves. Seconds."""

    on_request: bool = False                   # a request that names a model which is not up has it brought up
    idle: float = 0.0                          # a model that nobody uses for so long is ended; 0 = never
    least: float = 20.0                        # what serves stays for so long, whoever asks for another one
    patience: float = 30.0                     # so long requests wait for the ones that run to end by themselves
    keep_prompts: bool = False                 # over a swap, on the head's disk: what slots hold of conversations


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """The whole of fleet.yaml."""

    fleet: str = "fleet"
    path: str = ""                             # the file it came from; "" = none
    nodes: Mapping[str, NodeConfig] = field(default_factory=dict)
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    model: str = ""                            # what `up` brings up when not told
    rpc: RpcMode = RpcMode.DIRECT
    discovery: DiscoveryConfig = DiscoveryConfig()
    ssh: SshConfig = SshConfig()
    proxy: ProxyConfig = ProxyConfig()
    recover: RecoverPolicy = RecoverPolicy.ASK
    serving: ServingConfig = ServingConfig()
    refresh: float = 2.0                       # seconds between probes of a node
    model_dirs: tuple[str, ...] = ("~/models", "~/.cache/llama.cpp", "~/.cache/quarterdeck/models", "/models",
                                   "/opt/models", "/srv/models")
    log_limit: int = 16 * 1024 * 1024          # bytes of one service's log, then the older half goes
    rpc_cache_limit: int = 0                   # bytes that workers with `cache: true` keep on a node; 0 = no limit
    # Not of the file, but of one plan on what is left of the fleet:
    absent: frozenset[str] = frozenset()       # nodes that take no part
    spare: bool = False                        # workers that a model names and that cannot be used are left out
