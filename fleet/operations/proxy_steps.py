"""What a bring-up does for proxies: one that fleet.yaml wants is started, and each is given its way to the head."""

from __future__ import annotations

from fleet.errors import NO_SUCH, OperationFailed, PlanRefused
from fleet.events import CancelRequest, StartProxy
from fleet.model import ServiceKind
from fleet.operations.arrangement import Arrangement
from fleet.operations.hands import Hands
from fleet.operations.plan import Plan, Report, Step
from fleet.operations.proxy_way import StartWay
from fleet.proxies.of_fleet import head_record
from fleet.proxies.ways import way_to_head


async def proxy_steps(hands: Hands) -> tuple[Step, ...]:
    """Start the proxy of fleet.yaml where it is to run (`proxy: {enabled: true}`) and none does.

    Raises:
        FleetError: it cannot be started as it is configured; nothing was done.
    """
    if not hands.config.proxy.enabled or ("", "") in hands.proxies():
        return ()
    records = (record for node in hands.snapshot().nodes.values() if node.reading for record in node.reading.services)
    if any(r.kind is ServiceKind.PROXY and r.alive and r.fleet in ("", hands.config.fleet) for r in records):
        return ()
    from fleet.operations.proxy_start import plan_start_proxy  # all of the proxy: only who starts one pays for it

    return (await plan_start_proxy(hands, StartProxy())).steps


def plan_cancel(hands: Hands, command: CancelRequest) -> Plan:
    """End one live request.

    Raises:
        PlanRefused: no such proxy is known.
    """
    if (command.node, command.service) not in hands.proxies():
        where = f"{command.service} on {command.node}" if command.service else "a proxy inside this process"
        raise PlanRefused(f"There is no {where}.", "`quarterdeck proxy status` lists what there is.", code=NO_SUCH)
    return Plan("cancel", f"End the request {command.request[:60]}", (EndRequest(hands, command),), command.node)


class EndRequest(Step):
    """Tell its proxy. What was said to a client cannot be taken back."""

    def __init__(self, hands: Hands, command: CancelRequest) -> None:
        self.title = f"End the request {command.request[:60]}; its client gets an error"
        self.node = command.node
        self._hands, self._command = hands, command

    async def do(self, report: Report) -> None:
        proxy = self._hands.proxies().get((self._command.node, self._command.service))
        if proxy is None:
            raise OperationFailed("The proxy of that request is gone.", "So is the request.")
        report("ended" if await proxy.cancel(self._command.request) else "it had ended already")


class ProxyWays(Step):
    """Give every proxy that runs a way to the head, where it keeps to its loopback on another node."""

    title = "See that every proxy reaches the head"

    def __init__(self, hands: Hands, arrangement: Arrangement) -> None:
        self.node = arrangement.head_node
        self._hands = hands
        self._begun: list[StartWay] = []

    async def check(self) -> str | None:
        return None if self._hands.proxies() else "no proxy serves"

    async def do(self, report: Report) -> None:
        nodes = self._hands.snapshot().nodes
        head = head_record(self._hands.snapshot())
        here = next((node.name for node in nodes.values() if node.local), "")
        missing = []
        for name in dict.fromkeys(node or here for node, _ in self._hands.proxies()):
            if head is not None and name and not way_to_head(nodes, name, self.node, head).url:
                missing.append(name)
        for name in missing:
            assert head is not None
            way = StartWay(self._hands, name, self.node, head)
            self._begun.append(way)
            if await way.check() is None:
                await way.do(report)
        report(f"through SSH from {', '.join(missing)}" if missing else "directly")

    async def undo(self, report: Report) -> None:
        for way in reversed(self._begun):
            await way.undo(report)
