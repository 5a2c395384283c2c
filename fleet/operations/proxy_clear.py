"""Leaving nothing of a proxy that was ended: settings, the program that was pushed, the ways that it went."""

from __future__ import annotations

from fleet.model import ServiceKind
from fleet.operations.hands import Hands
from fleet.operations.plan import Report, Step
from fleet.operations.proxy_place import remove_apps
from fleet.proxies.ways import ways


class ClearProxy(Step):
    """Take away what was beside a proxy. It is started again with its program and settings pushed anew."""

    def __init__(self, hands: Hands, node: str, service: str) -> None:
        self.title = f"Leave nothing of {service} on {node}"
        self.node = node
        self._hands, self._service = hands, service

    async def do(self, report: Report) -> None:
        await clear_proxy(self._hands, self.node, self._service)


async def clear_proxy(hands: Hands, node: str, service: str) -> None:
    """Take away what was beside a proxy that has ended.

    Raises:
        FleetError: it cannot be taken away.
    """
    supervisor = hands.supervisor(node)
    await supervisor.remove_secret(service)
    await remove_apps(hands, node)
    if any(record.kind is ServiceKind.PROXY and record.alive for record in await supervisor.records()):
        return
    for way in tuple(ways(hands.snapshot().nodes)):
        if way.proxy == node:
            here = hands.supervisor(way.node)
            await here.stop(way.record.id)
            await here.forget(way.record.id)
            await here.remove_secret(way.record.id)
            await hands.reread(way.node)
