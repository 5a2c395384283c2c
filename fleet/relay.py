"""One tunnel of `rpc: tunnel`: a port on the head's loopback that comes out at a worker's loopback, through SSH.

    head's node                      this machine                       worker's node
    llama-server -> 127.0.0.1:P ==ssh==> relay ==ssh==> 127.0.0.1:50052 ggml-rpc-server

It is a process of its own (`python -m fleet.relay FILE`), detached by the supervisor like every service: a head whose
tunnel breaks aborts, so the tunnel must outlive the cockpit. FILE is JSON of mode 0600. Nobody can be asked anything
here: keys come from the agent or from files without a passphrase.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.errors import ConfigError, FleetError, NodeError
from fleet.model import Address, LinkKind
from fleet.nodes.local import LocalTransport
from fleet.nodes.questions import nobody
from fleet.nodes.ssh_target import SshTarget
from fleet.nodes.streams import TcpStream
from fleet.nodes.transport import ByteStream, Transport

LOOPBACK = "127.0.0.1"
CHUNK = 256 * 1024
READY = "ready:"          # how the line begins that says that it listens
AGAIN_AFTER = 3.0         # seconds before a lost connection is made anew
CHECK_EVERY = 5.0         # seconds between two signs of life of a connection
CHECK_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class RelayPlan:
    """What one relay joins. A target of None is this machine."""

    head: SshTarget | None
    worker: SshTarget | None
    listen_port: int           # on the head's loopback
    worker_port: int           # on the worker's loopback

    def to_json(self) -> str:
        """As FILE holds it."""
        return json.dumps({"head": asdict(self.head) if self.head else None,
                           "worker": asdict(self.worker) if self.worker else None,
                           "listen_port": self.listen_port, "worker_port": self.worker_port})


def read_plan(text: str) -> RelayPlan:
    """The plan that FILE holds.

    Raises:
        ConfigError: it is none.
    """
    try:
        said = json.loads(text)
        return RelayPlan(_target(said["head"]), _target(said["worker"]), int(said["listen_port"]),
                         int(said["worker_port"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"The relay's file cannot be read: {type(error).__name__}: {error}.",
                          "It is made by `quarterdeck up`; run that again.") from error


def _target(said: Mapping | None) -> SshTarget | None:
    if said is None:
        return None
    addresses = tuple(Address(**{**address, "kind": LinkKind(address["kind"])}) for address in said["addresses"])
    lists = {key: tuple(said[key]) for key in ("identity_files", "ssh_config_files")}
    return SshTarget(**{**said, **lists, "addresses": addresses})


async def relay(plan: RelayPlan) -> None:
    """Keep the tunnel open until cancelled; a lost connection is made anew."""
    while True:
        try:
            await _once(plan)
        except FleetError as error:
            _say(f"{error} Trying again in {AGAIN_AFTER:.0f} s.")
        await asyncio.sleep(AGAIN_AFTER)


async def _once(plan: RelayPlan) -> None:
    head, worker = await _connect(plan.head), await _connect(plan.worker)
    try:
        async def reach_worker() -> ByteStream:
            return await worker.open_connection(LOOPBACK, plan.worker_port)

        forward = await _listen(head, plan.listen_port, reach_worker)
        _say(f"{READY} {head.name} {LOOPBACK}:{plan.listen_port} -> {worker.name} {LOOPBACK}:{plan.worker_port}")
        try:
            while True:
                await asyncio.sleep(CHECK_EVERY)
                for side in (head, worker):
                    await side.run(":", timeout=CHECK_TIMEOUT)
        finally:
            await forward()
    finally:
        await asyncio.gather(head.close(), worker.close(), return_exceptions=True)


async def _connect(target: SshTarget | None) -> Transport:
    if target is None:
        return LocalTransport("this machine")
    from fleet.nodes.ssh import SshTransport

    transport = SshTransport(target, ask=nobody, accept_new=False)
    await transport.connect()
    return transport


async def _listen(head: Transport, port: int,
                  connect: Callable[[], Awaitable[ByteStream]]) -> Callable[[], Awaitable[None]]:
    """Listen on the head's loopback; gives what ends it."""
    if not isinstance(head, LocalTransport):
        return (await head.listen(LOOPBACK, port, connect)).close

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = TcpStream(reader, writer)
        try:
            there = await connect()
        except FleetError as error:
            _say(str(error))
            here.abort()
            return
        await join(here, there)

    try:
        server = await asyncio.start_server(accept, LOOPBACK, port)
    except OSError as error:
        raise NodeError(f"Port {port} of this machine cannot be used for a tunnel: {error.strerror}.",
                        "See what listens there.", code="port-taken") from error

    async def end() -> None:
        server.close()

    return end


async def join(one: ByteStream, other: ByteStream) -> None:
    """Carry bytes both ways until either side ends; then the other is ended too."""
    async def carry(source: ByteStream, sink: ByteStream) -> None:
        while data := await source.read(CHUNK):
            await sink.write(data)

    ways = [asyncio.ensure_future(carry(one, other)), asyncio.ensure_future(carry(other, one))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        one.close()
        other.close()


def _say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str]) -> int:
    """Entry point of `python -m fleet.relay FILE`."""
    if len(arguments) != 1:
        _say("usage: python -m fleet.relay FILE")
        return 2
    try:
        plan = read_plan(Path(arguments[0]).read_text("utf-8"))
    except (OSError, FleetError) as error:
        _say(str(error))
        return 2
    try:
        asyncio.run(relay(plan))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
