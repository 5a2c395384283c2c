"""What a head that somebody else started serves, and with which workers: read from its command line."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.facts import LIST_LIMIT, HeadFacts, WorkerRef
from fleet.model import Node, ServiceKind, ServiceRecord, Share
from fleet.planning.addresses import LOOPBACK, has_address

MODEL, ALIAS, RPC, CONTEXT, KEYS = ("-m", "--model"), ("-a", "--alias"), ("--rpc",), ("-c", "--ctx-size"), (
    "--api-key-file",)


def facts_of_adopted(record: ServiceRecord, node: str, nodes: Mapping[str, Node], *, user: str) -> HeadFacts | None:
    """The facts of an adopted head on `node`, None for another service. `user` is who runs it.

    The key file that another user's head names is not believed: it would be read with our rights, and its first line
    sent to that head.

    Nobody planned its placement; but who names workers means them to hold something, so each is planned to hold an
    unknown part: a head that went on without them is seen.
    """
    if record.kind is not ServiceKind.COORDINATOR:
        return None
    path = _value(record.argv, MODEL)
    endpoints = [word for word in _value(record.argv, RPC).split(",") if word][:LIST_LIMIT]
    workers = tuple(_worker(endpoint, nodes[node], nodes) for endpoint in endpoints)
    planned = tuple(Share(worker.node or worker.endpoint, f"RPC{number}", worker.endpoint)
                    for number, worker in enumerate(workers))
    context = _value(record.argv, CONTEXT)
    ours = bool(user) and user == _our_name(nodes[node])
    return HeadFacts(
        model=_value(record.argv, ALIAS) or path.rpartition("/")[2].removesuffix(".gguf"), model_path=path,
        context=int(context) if context.isdecimal() and context.isascii() and int(context) else None,
        workers=workers, planned=planned, api_key_file=_key_file(record.argv) if ours else "")


def _our_name(node: Node) -> str:
    return node.reading.user if node.reading else ""


def _key_file(argv: tuple[str, ...]) -> str:
    """Where a head has its keys; one that stands relative to a folder that nobody knows is left out."""
    path = _value(argv, KEYS)
    return path if path.startswith("/") else ""


def _value(argv: tuple[str, ...], names: tuple[str, ...]) -> str:
    """What an option was given, the last time it was given; "" when it was not."""
    found = ""
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else argv[place + 1] if place + 1 < len(argv) else ""
    return found


def _worker(endpoint: str, head: Node, nodes: Mapping[str, Node]) -> WorkerRef:
    """Whose worker an endpoint is; its node by its address, its service by its port."""
    host, _, port = endpoint.rpartition(":")
    loopback = host in (LOOPBACK, "localhost")
    node = head if loopback else next((n for n in nodes.values() if has_address(n, host)), None)
    if node is None:
        return WorkerRef("", "", endpoint)
    records = node.reading.services if node.reading else ()
    service = next((r for r in records if r.kind is ServiceKind.WORKER and str(r.port) == port), None)
    return WorkerRef(node.name, service.id if service else "", endpoint, service.pid if service else 0)
