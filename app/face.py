"""What the faces need of the engine. `fleet.engine.Engine` has this shape; tests script their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from fleet.config.schema import FleetConfig
    from fleet.events import Command
    from fleet.model import Operation, Snapshot
    from fleet.models.header import GgufHeader
    from fleet.models.reader import Headers
    from fleet.nodes.transport import Transport
    from fleet.planning.propose import Proposal, WhatIf
    from fleet.proxies.hands import ProxyHand
    from fleet.runtimes.head_http import HeadClient
    from fleet.swarm.asking import SeederSeen


class EngineFace(Protocol):
    """One fleet, watched and acted on."""

    @property
    def latest(self) -> Snapshot:
        """All that is known now."""

    @property
    def version(self) -> int:
        """Grows with every change of `latest`."""

    @property
    def config(self) -> FleetConfig:
        """What is in force."""

    @property
    def headers(self) -> Headers:
        """Headers of models that were read."""

    def clock(self) -> float:
        """The clock of every time in `latest`, in seconds."""

    async def changed(self, since: int) -> int:
        """Wait until `version` is above `since`; gives it."""

    async def run(self) -> None:
        """Watch the fleet until cancelled. Services keep running."""

    async def settled(self, timeout: float) -> bool:
        """Wait until every known node was read, or failed, once; False when time was up first."""

    def submit(self, command: Command) -> int:
        """Begin to do something; the operation of that id appears in `latest`."""

    async def outcome(self, operation_id: int) -> Operation:
        """Wait for an operation to end."""

    def cancel(self, operation_id: int) -> None:
        """Ask an operation to stop; what it had done is undone."""

    async def plan(self, command: Command) -> Operation:
        """What would be done, and nothing done: PLANNED, or REFUSED with the reason."""

    async def propose(self, wanted: str = "", what_if: WhatIf | None = None) -> Proposal:
        """Where a model would go, how fast it would be, and why; nothing is done."""

    async def reload(self) -> Sequence[str]:
        """Read the configuration again; problems, () when the new one is in force."""

    def log_lines(self, node: str, service: str, *, tail: int = 200, follow: bool = True) -> AsyncIterator[str]:
        """The last lines of a service's log, then those that come."""

    async def model_header(self, node: str, path: str) -> GgufHeader:
        """The header of a model on a node, by the path of its first file, all of its files together."""

    def transport(self, node: str) -> Transport:
        """The connection to a node, or the NodeError that says why there is none."""

    async def seeders(self) -> tuple[SeederSeen, ...]:
        """Every seeder and puller that runs on the nodes, as it answers now."""

    def run_inside(self, proxy: ProxyHand, url: str) -> None:
        """Follow a proxy that runs inside this process."""

    def head_client(self) -> HeadClient | None:
        """Talks to what serves; None when nothing does."""


MakeEngine: TypeAlias = Callable[[], EngineFace]
