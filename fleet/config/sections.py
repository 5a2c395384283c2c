"""The sections of fleet.yaml, each into its record of the schema. What spans sections: `crosscheck`."""

from __future__ import annotations

from fleet.config import proxy_section
from fleet.config.draft_section import draft
from fleet.config.experts_section import check_alone, experts
from fleet.config.fields import (
    boolean,
    choice,
    environment,
    integer,
    many,
    mapping,
    number,
    one_of,
    port,
    size,
    word,
    words,
)
from fleet.config.form import Form, Section
from fleet.config.marks import Mapping, Scalar, Sequence
from fleet.config.schema import (
    HEAD_PORT,
    HEAD_PORT_BEHIND_PROXY,
    WORKER_PORT,
    DiscoveryConfig,
    FleetConfig,
    HeadConfig,
    ModelConfig,
    NodeConfig,
    RecoverPolicy,
    Role,
    RpcMode,
    RuntimeName,
    SplitMode,
    SshConfig,
    WorkerConfig,
)
from fleet.config.serving_section import serving
from fleet.config.speculation_section import STRIDED_SLOTS, speculation
from fleet.config.vllm_section import check_runtime, vllm
from fleet.discovery.addresses import parse_ip, split_host_port

ROOT_KEYS = ("fleet", "nodes", "models", "model", "rpc", "discovery", "ssh", "proxy", "recover", "serving", "refresh",
             "model_dirs", "log_limit", "rpc_cache_limit")
NODE_KEYS = ("address", "addresses", "user", "port", "identity_file", "identity_files", "jump", "roles", "vram",
             "workers", "head", "llama", "model_dirs", "state_dir", "rpc", "rpc_address")
WORKER_KEYS = ("port", "devices", "threads", "cache", "managed", "env", "extra_args")
HEAD_KEYS = ("port", "bind", "api_key_file", "threads", "env", "extra_args")
MODEL_KEYS = ("file", "head", "workers", "context", "slots", "kv", "flash_attention", "gpu_layers", "split",
              "mode", "extra_args", "runtime", "experts", "vllm", "draft", "speculation", "pinned", "priority",
              "aliases")
DISCOVERY_KEYS = ("mdns", "interfaces", "ssh_config", "ssh_config_file", "announce")
SSH_KEYS = ("user", "identity_file", "identity_files", "known_hosts", "connect_timeout", "agent")

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")   # llama-server's -ctk, -ctv
THREADS_EXPECTED = "a number of threads from 1 to 1024"
ADDRESS_EXPECTED = "a host name, an IP address, host:port, or the word local"
SMALLEST_MEMORY = 16 << 20
SMALLEST_LOG = 64 << 10


def fleet(form: Form, path: str) -> FleetConfig:
    """The whole file. Keys that begin with `x-` are the user's own: a place for YAML anchors."""
    root = Section(form, ROOT_KEYS, "a mapping of keys such as fleet, nodes and models", ignore="x-")
    default = FleetConfig()
    proxy = proxy_section.proxy(root["proxy"])
    head_port = HEAD_PORT_BEHIND_PROXY if proxy.enabled else HEAD_PORT
    return FleetConfig(
        fleet=word(root["fleet"], default.fleet, "the fleet's name"),
        path=path,
        nodes=mapping(root["nodes"], lambda part: _node(part, head_port),
                      "node names with their settings, for example {atlas: {address: 10.0.0.4}}"),
        models=mapping(root["models"], _model, "model names with their settings, for example {small: {file: a.gguf}}"),
        model=word(root["model"], "", "the name of one of the models"),
        rpc=choice(root["rpc"], RpcMode, default.rpc),
        discovery=_discovery(root["discovery"]),
        ssh=_ssh(root["ssh"]),
        proxy=proxy,
        recover=choice(root["recover"], RecoverPolicy, default.recover),
        serving=serving(root["serving"]),
        refresh=number(root["refresh"], default.refresh, 0.2, 3600, "seconds between 0.2 and 3600"),
        model_dirs=_folders(root["model_dirs"]) if root["model_dirs"].written else default.model_dirs,
        log_limit=size(root["log_limit"], default.log_limit, SMALLEST_LOG),
        rpc_cache_limit=size(root["rpc_cache_limit"], default.rpc_cache_limit, 0),
    )


def _node(form: Form, head_port: int) -> NodeConfig:
    section = Section(form, NODE_KEYS, "a mapping with keys such as address, user and workers")
    written = many(section.either("address", "addresses"), _address, ADDRESS_EXPECTED)
    default = NodeConfig(form.name)
    roles = many(section["roles"], lambda part: choice(part, Role, None), "a list of head, worker")
    rpc_address = word(section["rpc_address"], "", "the IP address or name that this node's workers bind")
    if rpc_address and (split_host_port(rpc_address) or ("", 0))[1] is not None:
        section["rpc_address"].wrong(f"'{rpc_address}' is no address without a port", "an IP address or a host name")
    return NodeConfig(
        name=form.name,
        addresses=tuple(address for address in written if address != "local"),
        local="local" in written,
        port=port(section["port"], None),
        user=_user(section["user"]),
        identity_files=_files(section.either("identity_file", "identity_files")),
        jump=_jump(section["jump"]),
        roles=tuple(dict.fromkeys(roles)) if section["roles"].written else default.roles,
        vram=mapping(section["vram"], lambda part: size(part, None, SMALLEST_MEMORY),
                     "device names with sizes, for example {CUDA0: 24GiB}"),
        workers=_workers(section["workers"]),
        head=_head(section["head"], head_port),
        llama=word(section["llama"], "", "the folder with the llama.cpp programs on this node"),
        model_dirs=_folders(section["model_dirs"]),
        state_dir=word(section["state_dir"], "", "a folder on this node"),
        rpc=choice(section["rpc"], RpcMode, None),
        rpc_address=rpc_address,
    )


def _workers(form: Form) -> tuple[WorkerConfig, ...]:
    """`workers: []` is no worker; nothing written is the one default worker."""
    if not form.written:
        return NodeConfig("").workers
    if isinstance(form.value, Scalar):
        form.wrong_type("a list of workers, for example [{port: 50052}], or [] for none")
        return ()
    return many(form, _worker, "a mapping with keys such as port and devices")


def _worker(form: Form) -> WorkerConfig:
    section = Section(form, WORKER_KEYS, "a mapping with keys such as port and devices, for example {port: 50052}")
    return WorkerConfig(
        port=port(section["port"], WORKER_PORT),
        devices=words(section["devices"], "device names as llama.cpp prints them, for example [CUDA0]"),
        threads=integer(section["threads"], None, 1, 1024, THREADS_EXPECTED),
        cache=boolean(section["cache"], False),
        managed=boolean(section["managed"], True),
        env=environment(section["env"]),
        extra_args=_arguments(section["extra_args"]),
    )


def _head(form: Form, head_port: int) -> HeadConfig:
    section = Section(form, HEAD_KEYS, "a mapping with keys such as port and bind")
    default = HeadConfig()
    bind = word(section["bind"], default.bind, "the IP address that the head listens on")
    if (split_host_port(bind) or ("", 0))[1] is not None:
        section["bind"].wrong(f"'{bind}' is no address without a port", "an IP address such as 127.0.0.1")
    return HeadConfig(
        port=port(section["port"], head_port),
        bind=bind,
        api_key_file=word(section["api_key_file"], "", "the path of a file on the head"),
        threads=integer(section["threads"], None, 1, 1024, THREADS_EXPECTED),
        env=environment(section["env"]),
        extra_args=_arguments(section["extra_args"]),
    )


def _model(form: Form) -> ModelConfig:
    section = Section(form, MODEL_KEYS, "a mapping with at least `file`")
    file = word(section["file"], "", "the path of a GGUF file on the head")
    if not section["file"].written and (isinstance(form.value, Mapping) or not form.written):
        form.wrong("'file' is missing", "the path of a GGUF file on the head, for example `file: ~/models/small.gguf`")
    kv_type_k, kv_type_v = _kv(section["kv"])
    runtime = choice(section["runtime"], RuntimeName, RuntimeName.LLAMA)
    check_runtime(section, runtime)
    check_alone(section)
    workers = section["workers"]
    node_names = "names of nodes, or [] for none"
    drafts = speculation(section["speculation"])
    slots = STRIDED_SLOTS if drafts is not None and drafts.verifies else None
    split_expected = "a share above 0, for example 0.6"
    return ModelConfig(
        name=form.name,
        file=file,
        head=word(section["head"], "", "the name of a node"),
        workers=words(workers, node_names) if isinstance(workers.value, Sequence) or workers.written else None,
        context=integer(section["context"], None, 0, 1 << 31, "a number of tokens; 0 is the model's own"),
        slots=integer(section["slots"], slots, 1, 1024, "a number of slots from 1 to 1024"),
        kv_type_k=kv_type_k,
        kv_type_v=kv_type_v,
        flash_attention=_flash_attention(section["flash_attention"]),
        gpu_layers=integer(section["gpu_layers"], None, 0, 100_000, "a number of layers; 0 keeps all on the CPU"),
        mode=choice(section["mode"], SplitMode, SplitMode.TIME),
        split=mapping(section["split"], lambda part: number(part, None, 1e-6, 1e6, split_expected),
                      "node names with shares, for example {atlas: 2, bolt: 1}"),
        extra_args=_arguments(section["extra_args"]),
        runtime=runtime,
        experts=experts(section["experts"]),
        draft=draft(section["draft"]),
        vllm=vllm(section["vllm"]),
        speculation=drafts,
        pinned=boolean(section["pinned"], False),
        priority=integer(section["priority"], 0, -1000, 1000, "a number; the higher the sooner"),
        aliases=words(section["aliases"], "further names of this model, for example [gpt-4o]"),
    )


def _kv(form: Form) -> tuple[str, str]:
    """`kv: q8_0` for both, or `kv: {k: q8_0, v: f16}`."""
    if isinstance(form.value, Mapping):
        section = Section(form, ("k", "v"), "")
        return one_of(section["k"], KV_TYPES, ""), one_of(section["v"], KV_TYPES, "")
    both = one_of(form, KV_TYPES, "")
    return both, both


def _flash_attention(form: Form) -> str:
    """on, off or auto; what YAML 1.1 would make of them (true, no ...) is meant the same."""
    if isinstance(form.value, Scalar) and form.value.text.strip().lower() in ("true", "yes", "false", "no"):
        return "on" if form.value.text.strip().lower() in ("true", "yes") else "off"
    return one_of(form, ("on", "off", "auto"), "")


def _discovery(form: Form) -> DiscoveryConfig:
    section = Section(form, DISCOVERY_KEYS, "a mapping with keys such as mdns and ssh_config")
    default = DiscoveryConfig()
    return DiscoveryConfig(
        mdns=boolean(section["mdns"], default.mdns),
        interfaces=words(section["interfaces"], "names or addresses of interfaces, for example [eth0]"),
        ssh_config=boolean(section["ssh_config"], default.ssh_config),
        ssh_config_file=word(section["ssh_config_file"], default.ssh_config_file, "the path of an ssh_config file"),
        announce=boolean(section["announce"], default.announce),
    )


def _ssh(form: Form) -> SshConfig:
    section = Section(form, SSH_KEYS, "a mapping with keys such as user and identity_file")
    default = SshConfig()
    return SshConfig(
        user=_user(section["user"]),
        identity_files=_files(section.either("identity_file", "identity_files")),
        known_hosts=word(section["known_hosts"], default.known_hosts, "the path of a known_hosts file"),
        connect_timeout=number(section["connect_timeout"], default.connect_timeout, 0.1, 600,
                               "seconds between 0.1 and 600"),
        agent=boolean(section["agent"], default.agent),
    )


# ---------------------------------------------------------------------------------------------
# Values that several sections have


def _address(form: Form) -> str | None:
    found = word(form, "", ADDRESS_EXPECTED).strip()
    if not found:
        return None
    if "@" in found:
        form.wrong(f"'{found[:60]}' names a user", f"{ADDRESS_EXPECTED}; the user goes into `user`")
        return None
    split = split_host_port(found)
    if split is None:
        form.wrong(f"'{found[:60]}' is no address", ADDRESS_EXPECTED)
        return None
    ip = parse_ip(split[0])
    if ip is not None and ip.version == 6 and ip.is_link_local and "%" not in split[0]:
        form.wrong(f"{found} works on one cable only and does not say which", "fe80::...%interface")
        return None
    return "local" if found.lower() == "local" else found


def _user(form: Form) -> str | None:
    expected = "a user name"
    found = word(form, "", expected)
    if "@" in found or " " in found or found.startswith("-"):
        form.wrong(f"'{found[:60]}' is no user name", expected)
        return None
    return found or None


def _jump(form: Form) -> str:
    """Hops as ProxyJump has them; a YAML list of hops is read too."""
    expected = "user@host:port of each hop, separated by commas"
    hops: list[str] = []
    for part in words(form, expected):
        for hop in part.split(","):
            user, at, host = hop.strip().rpartition("@")
            if split_host_port(host) is None or (at and (not user or " " in user)) or user.startswith("-"):
                form.wrong(f"'{hop.strip()[:60]}' is no hop", expected)
            else:
                hops.append(hop.strip())
    return ",".join(hops)


def _files(form: Form) -> tuple[str, ...]:
    return words(form, "the path of a private key, for example ~/.ssh/id_ed25519")


def _folders(form: Form) -> tuple[str, ...]:
    return words(form, "a list of folders, for example [~/models]")


def _arguments(form: Form) -> tuple[str, ...]:
    return words(form, "a list of arguments, for example [--no-mmap]")
