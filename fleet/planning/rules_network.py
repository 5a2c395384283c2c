"""Rules about the network and who reaches what. Each function finds what stands against one row of `rules.RULES`."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.model import LinkKind
from fleet.planning import exposure
from fleet.planning.situation import Level, Situation

Found = Iterator[tuple[Level, str, str]]
_AIR = {LinkKind.WIFI: "wifi", LinkKind.VPN: "a VPN"}


def rdma_is_used(situation: Situation) -> Found:
    """It is settled in the handshake and falls back to TCP without a word: so say why it will."""
    head = situation.head
    for worker in situation.remote:
        if not (worker.rdma_build or worker.rdma_addresses) or worker.rdma_off or head.rdma_off:
            continue                       # none there, or TCP was asked for
        without = [place.node for place in (head, worker) if place.rdma_build is False]
        if without:
            yield (Level.WARNING, f"The way to {worker.where} stays on TCP: llama.cpp on {' and '.join(without)} was "
                   "built without RDMA.", "Build both with it (GGML_RPC and the RDMA library), or set "
                   "GGML_RPC_NO_RDMA to say that TCP is meant.")
        elif worker.rdma_addresses and worker.dial not in worker.rdma_addresses:
            way = "a tunnel" if worker.tunnelled else worker.dial or "another address"
            yield (Level.WARNING, f"The head dials {worker.where} by {way}, which stays on TCP; the RDMA address of "
                   f"{worker.node} is {worker.rdma_addresses[0]}.",
                   f"Say `rpc_address: {worker.rdma_addresses[0]}` for {worker.node}, or set GGML_RPC_NO_RDMA to say "
                   "that TCP is meant.")


def by_cable(situation: Situation) -> Found:
    """A round trip for each token and worker: what the air adds is added to every token."""
    for worker in situation.remote:
        if worker.link in _AIR:
            yield (Level.WARNING, f"{situation.head.node} and {worker.node} are joined by {_AIR[worker.link]}: every "
                   "token waits for its delay.", "Use a cable, or run the model on one machine.")


def workers_closed(situation: Situation) -> Found:
    """Bound to an address that others reach."""
    if what := exposure.of_workers((worker.node, worker.bind, worker.port) for worker in situation.workers
                                   if worker.bind):
        yield Level.WARNING, what, exposure.TUNNEL


def stages_closed(situation: Situation) -> Found:
    """The stages find each other over the network, whatever the head is bound to."""
    if situation.remote:
        names = ", ".join(dict.fromkeys((situation.head.node, *(worker.node for worker in situation.remote))))
        yield (Level.WARNING, f"The stages on {names} talk to each other unencrypted, and obey whoever reaches their "
               "ports.", "Keep them in a network that is yours alone.")


def head_closed(situation: Situation) -> Found:
    """A key, or loopback."""
    head = situation.head
    if head.bind and (what := exposure.of_head(head.node, head.bind, head.port, "key" if head.key_file else "")):
        yield Level.WARNING, what, exposure.KEY
