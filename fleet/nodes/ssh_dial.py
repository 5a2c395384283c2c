"""From ranked addresses to one open socket: the first that answers, and none that costs its whole timeout."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Sequence

from fleet.errors import NodeError, NodeRefused, NodeUnreachable
from fleet.model import Address
from fleet.nodes.ssh_target import where

STAGGER = 0.25   # seconds that a better address is ahead of the next one
_NO_WAY = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


async def dial(node: str, addresses: Sequence[Address], timeout: float) -> tuple[socket.socket, Address]:
    """Connect to the addresses, best first, each a quarter of a second after the one before.

    Returns the socket of the first that took the connection, and which address that was.

    Raises:
        NodeRefused: all that answered said no.
        NodeUnreachable: nobody answered.
    """
    if not addresses:
        raise NodeUnreachable(f"No address of {node} is known.", "Give it one in fleet.yaml: `address:`.")
    failures: dict[Address, Exception] = {}
    tried: dict[asyncio.Task[socket.socket], Address] = {}
    waiting, pending, winner = list(addresses), set[asyncio.Task[socket.socket]](), None
    try:
        while waiting or pending:
            if waiting:
                task = asyncio.ensure_future(_connect(waiting[0], timeout))
                tried[task] = waiting.pop(0)
                pending.add(task)
            done, pending = await asyncio.wait(pending, timeout=STAGGER if waiting else None,
                                               return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: addresses.index(tried[task])):
                error = task.exception()
                if error is None:
                    winner = task
                    return task.result(), tried[task]
                if not isinstance(error, OSError):
                    raise error
                failures[tried[task]] = error
    finally:
        for task in tried:
            if task is not winner:
                task.cancel()
                task.add_done_callback(_close_late)
    raise explain(node, failures, timeout)


async def _connect(address: Address, timeout: float) -> socket.socket:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        error: OSError = OSError(errno.EADDRNOTAVAIL, "the name has no address")
        for family, kind, protocol, _, to in found:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, to)
            except OSError as refused:
                sock.close()
                error = refused
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise error


def _close_late(task: asyncio.Task[socket.socket]) -> None:
    """Another address was taken, or nobody waits any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def explain(node: str, failures: dict[Address, Exception], timeout: float) -> NodeError:
    """The one error for all addresses that failed, the most telling one first."""
    reasons = "; ".join(f"{where(address.host, address.port)}: {_reason(error, timeout)}"
                        for address, error in failures.items())
    if any(isinstance(error, ConnectionRefusedError) for error in failures.values()):
        return NodeRefused(f"{node} refuses connections to its SSH port ({reasons}).",
                           "Start sshd there (on a Mac: Sharing, Remote Login), or correct the port.")
    if all(isinstance(error, socket.gaierror) for error in failures.values()):
        return NodeUnreachable(f"The name of {node} is not found ({reasons}).",
                               "Give its IP address in fleet.yaml, or check the name.", code="dns")
    remedy = "Is it switched on and on this network? A firewall that drops SSH looks the same."
    if sys.platform == "darwin" and any(getattr(e, "errno", None) in _NO_WAY for e in failures.values()):
        remedy = ("If `ping` reaches it, allow this terminal in System Settings, Privacy & Security, Local Network; "
                  "else see whether it is switched on.")
    return NodeUnreachable(f"{node} does not answer ({reasons}).", remedy)


def _reason(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError) and getattr(error, "errno", None) is None:
        return f"no answer in {timeout:g} s"
    if isinstance(error, socket.gaierror):
        return "name not found"
    if getattr(error, "errno", None) in _NO_WAY:
        return "no route to it"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
