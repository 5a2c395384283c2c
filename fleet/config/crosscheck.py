"""What no section of fleet.yaml can see by itself: names that point nowhere, ports that collide."""

from __future__ import annotations

from fleet.config.form import Form, Notes, closest, join
from fleet.config.marks import Mapping, Sequence, Value
from fleet.config.schema import FleetConfig, ModelConfig, NodeConfig, Role
from fleet.discovery.addresses import parse_ip, split_host_port
from fleet.proxy.access import is_loopback

SSH_PORT = 22


def crosscheck(config: FleetConfig, root: Value, notes: Notes) -> None:
    """Note every problem that spans several sections."""
    check = _Crosscheck(config, root, notes)
    check.names()
    check.addresses()
    for node in config.nodes.values():
        check.ports(node)
        check.roles(node)
    for model in config.models.values():
        check.model(model)
    check.proxy()


def is_this_machine(node: NodeConfig) -> bool:
    """The node is certainly the machine that reads the file: `local`, or loopback on sshd's own port.

    Loopback on another port can be a forwarded port of a virtual machine.
    """
    if node.local:
        return True
    for address in node.addresses:
        host, port = split_host_port(address) or ("", None)
        ip = parse_ip(host)
        loopback = host.lower() == "localhost" or (ip is not None and ip.is_loopback)
        if loopback and (port or node.port or SSH_PORT) == SSH_PORT and not node.jump:
            return True
    return False


class _Crosscheck:
    def __init__(self, config: FleetConfig, root: Value, notes: Notes) -> None:
        self.config = config
        self.root = root
        self.notes = notes

    def at(self, *keys: str | int) -> Form:
        """Where a value stands; the nearest thing around it that is written gives the line."""
        value: Value | None = self.root
        line, dotted = self.root.line, ""
        for key in keys:
            if isinstance(key, int):
                value = value.items[key] if isinstance(value, Sequence) and key < len(value.items) else None
                line = value.line if value is not None else line
                dotted = f"{dotted}[{key}]"
            else:
                line = value.lines.get(key, line) if isinstance(value, Mapping) else line
                value = value.entries.get(key) if isinstance(value, Mapping) else None
                dotted = join(dotted, key)
        return Form(self.notes, dotted, line, value)

    def names(self) -> None:
        """`model` names one of the models, or a file."""
        name, models = self.config.model, self.config.models
        if name and name not in models and "/" not in name and not name.endswith(".gguf"):
            near = closest(name, models)
            self.at("model").wrong(f"there is no model {name!r}" + (f"; did you mean {near!r}?" if near else ""),
                                   f"one of {', '.join(models)}" if models else "a model that stands under `models`")

    def addresses(self) -> None:
        """One machine, one name: two nodes of one address would be counted twice."""
        local = [node.name for node in self.config.nodes.values() if is_this_machine(node)]
        for name in local[1:]:
            self._address(name).wrong(f"{local[0]!r} is this machine already", "one node with `address: local`")
        taken: dict[tuple[str, str, int], str] = {}
        for node in self.config.nodes.values():
            if node.local and (node.addresses or node.jump):
                self._address(node.name).wrong("`local` stands beside a way over the network",
                                               "either `address: local` or addresses")
            if is_this_machine(node):
                continue
            for text in node.addresses or (node.name,):
                host, port = split_host_port(text) or (text, None)
                place = (node.jump, host.lower(), port or node.port or SSH_PORT)
                first = taken.setdefault(place, node.name)
                if first != node.name:
                    self._address(node.name).wrong(f"{text} is the address of {first!r} too",
                                                   "an address of its own for each node")

    def _address(self, name: str) -> Form:
        plural = self.at("nodes", name, "addresses")
        return plural if plural.value is not None else self.at("nodes", name, "address")

    def ports(self, node: NodeConfig) -> None:
        """No two services of a machine on one port."""
        taken: dict[int, str] = {}
        for place, worker in enumerate(node.workers if Role.WORKER in node.roles else ()):
            if worker.port in taken:
                self._worker_port(node, place).wrong(
                    f"port {worker.port} is taken by {taken[worker.port]} of this node",
                    "a port of its own for each worker")
            taken.setdefault(worker.port, f"worker {place + 1}")
        if Role.HEAD not in node.roles:
            return
        head = self.at("nodes", node.name, "head", "port")
        if node.head.port in taken:
            head.wrong(f"port {node.head.port} is taken by {taken[node.head.port]} of this node",
                       "a port that no worker of this node has")
        proxy_port = (split_host_port(self.config.proxy.listen) or ("", None))[1]
        planned = self.config.proxy.enabled or self.at("proxy", "listen").written
        if not (planned and is_this_machine(node)):
            return
        if node.head.port == proxy_port:
            where = head if head.written else self.at("proxy", "listen")
            where.wrong(f"port {proxy_port} is wanted by the proxy and by the head of {node.name!r}, both on this "
                        "machine", "two ports, as the defaults have them: the proxy 8088, the head behind it 8090")
        for place, worker in enumerate(node.workers):
            if worker.port == proxy_port and Role.WORKER in node.roles:
                self._worker_port(node, place).wrong(
                    f"port {proxy_port} is wanted by the proxy, which is on this machine too", "another port")

    def _worker_port(self, node: NodeConfig, place: int) -> Form:
        workers = self.at("nodes", node.name, "workers").value
        if isinstance(workers, Mapping):
            return self.at("nodes", node.name, "workers", "port")
        return self.at("nodes", node.name, "workers", place, "port")

    def roles(self, node: NodeConfig) -> None:
        """What is set up for a node is what it may be."""
        if not node.roles:
            self.at("nodes", node.name, "roles").wrong("this node may be nothing", "a list of head, worker")
        for key, role in (("workers", Role.WORKER), ("head", Role.HEAD)):
            form = self.at("nodes", node.name, key)
            there = bool(form.value.items) if isinstance(form.value, Sequence) else form.written
            if there and role not in node.roles:
                form.wrong(f"the roles of this node do not say {role}", f"`{role}` among `roles`, or no `{key}`")

    def model(self, model: ModelConfig) -> None:
        """Every node that a model names is there and may do what it shall do."""
        nodes = self.config.nodes
        if model.head and self._known(model.head, "models", model.name, "head") \
                and Role.HEAD not in nodes[model.head].roles:
            self.at("models", model.name, "head").wrong(f"the roles of {model.head!r} do not say head",
                                                        "a node that may be a head")
        if not model.head and nodes and not any(Role.HEAD in node.roles for node in nodes.values()):
            self.at("models", model.name).wrong("no node may be its head", "one node with head among its roles")
        for place, name in enumerate(model.workers or ()):
            where: tuple[str | int, ...] = ("models", model.name, "workers", place)
            if not isinstance(self.at(*where[:-1]).value, Sequence):
                where = where[:-1]
            if name in (model.workers or ())[:place]:
                self.at(*where).wrong(f"{name!r} is here twice", "each node once")
            elif self._known(name, *where) and (Role.WORKER not in nodes[name].roles or not nodes[name].workers):
                self.at(*where).wrong(f"{name!r} has no worker", "a node that may be a worker and has one")
        for name in model.split:
            where = ("models", model.name, "split", name)
            used = model.workers is None or name in model.workers or not model.head or name == model.head
            if self._known(name, *where) and not used:
                self.at(*where).wrong(f"{name!r} is neither this model's head nor one of its workers",
                                      "shares of nodes that the model uses")

    def proxy(self) -> None:
        """Nobody uses the proxy who was not meant to; no server is there twice; every alias leads to a model."""
        proxy = self.config.proxy
        host = (split_host_port(proxy.listen) or ("", None))[0]
        if not (proxy.keys_file or proxy.keys_env or proxy.allow_open or is_loopback(host)):
            self.at("proxy", "listen").wrong(
                f"everybody who reaches {proxy.listen} could use the proxy, because no key is asked for",
                "`keys_file` or `keys_env` beside it, an address of loopback, or `allow_open: true`")
        if proxy.keys_file and proxy.keys_env:
            self.at("proxy", "keys_env").wrong("both 'keys_file' and 'keys_env' are here", "one of the two")
        taken: dict[str, str] = {}
        for name, upstream in proxy.upstreams.items():
            first = taken.setdefault(upstream.url.lower().rstrip("/").removesuffix("/v1"), name)
            if upstream.url and first != name:
                self.at("proxy", "upstreams", name, "url").wrong(f"this is the URL of {first!r} too",
                                                                 "a URL of its own for each server")
        for alias in proxy.aliases:
            seen, name = {alias}, proxy.aliases[alias]
            while name in proxy.aliases and name not in seen:
                seen.add(name)
                name = proxy.aliases[name]
            if name in seen:
                self.at("proxy", "aliases", alias).wrong("this alias leads back to itself", "the name of a model")

    def _known(self, name: str, *where: str | int) -> bool:
        nodes = self.config.nodes
        if name in nodes:
            return True
        near = closest(name, nodes)
        self.at(*where).wrong(f"there is no node {name!r}" + (f"; did you mean {near!r}?" if near else ""),
                              f"one of {', '.join(nodes)}" if nodes else "a node that stands under `nodes`")
        return False
