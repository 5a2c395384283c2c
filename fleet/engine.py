"""The engine: watches every node, keeps one Snapshot, runs one operation at a time. It knows no user interface.

Faces read `latest` whenever they like, wait for news with `changed`, and ask for deeds with `submit`. Nothing here
ever waits for a face.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.chronicle import notices
from fleet.config.load import ConfigErrors, load
from fleet.config.schema import FleetConfig
from fleet.desk import QuestionDesk
from fleet.discovery.finder import Finder
from fleet.discovery.identity import KnownNode
from fleet.errors import FleetError, NodeUnreachable
from fleet.events import (
    CockpitSeen,
    Command,
    ConfigLoaded,
    ConfigRejected,
    DeploymentJudged,
    Event,
    LinksMeasured,
    NodeForgotten,
    NodeFound,
    NodeRead,
    NodeStateChanged,
    Noted,
    OperationChanged,
    ProxiesSeen,
    ServicesJudged,
    SpeedsObserved,
    SwarmChanged,
)
from fleet.facts import head_facts
from fleet.judge import judge_deployment, judge_services, key_of
from fleet.model import Link, NodeReading, NodeState, Operation, Proxy, QuestionKind, Severity, Snapshot, Swarm
from fleet.models.header import GgufHeader
from fleet.models.reader import Headers
from fleet.nodes.connect import opener, reader
from fleet.nodes.supervisor import Supervisor
from fleet.nodes.transport import Transport
from fleet.nodes.watcher import NodeWatcher
from fleet.operations.desk import OperationDesk
from fleet.operations.hands import node_of
from fleet.operations.head_steps import STALLED_AFTER, client_of
from fleet.operations.journal import Journal
from fleet.operations.links import measure_links
from fleet.operations.plan import problem_of
from fleet.planning.choose import may_be_head, node_config
from fleet.planning.observed import observe
from fleet.planning.propose import Proposal, WhatIf
from fleet.proxies.hands import ProxyHand
from fleet.proxies.tender import Tender
from fleet.recovery.driver import Recovery
from fleet.recovery.presence import Presence
from fleet.recovery.unfinished import finish
from fleet.reduce import reduce
from fleet.runtimes.head_http import HeadClient
from fleet.runtimes.witness import Witness
from fleet.serving.driver import Serving
from fleet.telemetry.recorder import Recorder

if TYPE_CHECKING:
    from fleet.swarm.asking import SeederSeen

DISCOVERY_GRACE = 2.0   # seconds: 30 nodes have answered by mDNS within 0.2 s, and 1.6 s just after they were started
LEARN_TIMEOUT = 2.0     # seconds that a plan waits for what serves to tell how fast it is: an answer takes milliseconds
TAIL_BYTES = 256 * 1024
AGAIN_AFTER = 30.0      # seconds before a watch that ended by a mistake of ours is begun anew


class Engine:
    """One fleet, watched and worked on. `run()` must be running for anything to happen."""

    def __init__(self, config: FleetConfig, *, config_path: Path | None = None, accept_new: bool = False,
                 interactive: bool = False, only_nodes: frozenset[str] | None = None, discover: bool = True,
                 clock: Callable[[], float] = time.monotonic, epoch: Callable[[], float] = time.time,
                 stalled_after: float = STALLED_AFTER, recorder: Recorder | None = None,
                 tend: bool = False, recover: bool = False, inside: Path | None = None,
                 journal: Journal | None = None) -> None:
        self.config = config
        self.clock = clock
        self.stalled_after = stalled_after
        self.version = 0
        self.latest = Snapshot(fleet=config.fleet, config_path=config.path, refresh=config.refresh)
        self._epoch = epoch
        self._recorder = recorder
        self._recover = recover
        self._config_path = config_path
        self._accept_new = accept_new
        self._only_nodes = only_nodes
        self._discover = discover
        self._news = asyncio.Event()
        self._watchers: dict[str, tuple[NodeWatcher, asyncio.Task[None]]] = {}
        self._desk = QuestionDesk(self.emit, clock, somebody_there=interactive)
        self._finder = Finder(config, emit=self._on_sighting, clock=clock)
        self._witness = Witness(self, self._judge)
        self._tender = Tender(self, self._on_proxies, tells=tend, inside=inside)
        self.headers = Headers()
        self._journal = journal
        self._presence = Presence(self, self._on_cockpit) if interactive and tend else None
        self._operations = OperationDesk(self, self.emit, self.headers, journal)
        self._started = asyncio.Event()
        self._looked_around = asyncio.Event()
        self._wanted: set[str] = set()     # nodes that were only found, and that somebody asked to connect to
        self._declined: set[tuple[str, QuestionKind]] = set()   # what a person would not answer: not asked unasked

    # --- what faces use --------------------------------------------------------------------------

    async def changed(self, since: int) -> int:
        """Wait until `version` is past `since`; gives the version."""
        while self.version <= since:
            await self._news.wait()
        return self.version

    async def run(self) -> None:
        """Watch until cancelled. An operation under way is then undone first; services on nodes run on."""
        self.emit(ConfigLoaded(self.clock(), self.config.fleet, self.config.path, tuple(self.config.nodes),
                               self.config.refresh))
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.shield(watching)
        finally:
            await self._operations.close()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def settled(self, timeout: float) -> bool:
        """Wait until every node that is watched was read once, or has failed once; False when time ran out first."""
        try:
            async with asyncio.timeout(timeout):
                await self._started.wait()
                await self._looked_around.wait()   # at once where nothing is looked for
                while waiting := [w for w, _ in self._watchers.values() if not w.tried.is_set()]:
                    await waiting[0].tried.wait()
        except TimeoutError:
            return False
        return True

    def submit(self, command: Command) -> int:
        """Have a command carried out; gives the number of its operation, which shows up in `latest.operations`.

        Raises:
            FleetError: another cockpit acts on this fleet.
        """
        if self.latest.other_cockpit:
            raise FleetError(f"{self.latest.other_cockpit} acts on this fleet; this one only looks.",
                             "Take over with T, or use that one.", code="other-cockpit")
        return self._operations.submit(command)

    async def outcome(self, operation_id: int) -> Operation:
        """The operation, when it is over."""
        return await self._operations.outcome(operation_id)

    def cancel(self, operation_id: int) -> None:
        """Stop an operation; what it did is undone."""
        self._operations.cancel(operation_id)

    async def plan(self, command: Command) -> Operation:
        """What a command would do: an operation in state PLANNED, or REFUSED with its reason. Nothing is done."""
        return await self._operations.preview(command)

    async def propose(self, wanted: str = "", what_if: WhatIf | None = None) -> Proposal:
        """Where a model would go, how fast it would be, and why. What does not fit is no error: the proposal says so.

        Raises:
            FleetError: no such model or node, no head, or the model's file cannot be read.
        """
        with suppress(TimeoutError):           # a head that hangs tells nothing of its speed
            async with asyncio.timeout(LEARN_TIMEOUT):
                await self._witness.looked()
        return await self._operations.propose(wanted, what_if or WhatIf())

    def answer(self, question_id: int, answer: str | None) -> None:
        """Answer a question; None = no."""
        self._desk.answer(question_id, answer)

    async def reload(self) -> tuple[str, ...]:
        """Read fleet.yaml again. Problems are given back and the old one stays in force; () = the new one is."""
        if self._config_path is None:
            return ()
        try:
            config = await asyncio.to_thread(load, self._config_path)
        except ConfigErrors as error:
            self.emit(ConfigRejected(self.clock(), str(self._config_path), error.problems))
            return error.problems
        changed = {name for name in {*self.config.nodes, *config.nodes}
                   if self.config.nodes.get(name) != config.nodes.get(name) or self.config.ssh != config.ssh}
        self.config = config
        for name in changed:
            self._unwatch(name)
        self._declined = {(name, kind) for name, kind in self._declined if name not in changed}
        self._finder.reconfigure(config)
        self.emit(ConfigLoaded(self.clock(), config.fleet, config.path, tuple(config.nodes), config.refresh))
        for name in changed & self.latest.nodes.keys():     # what was known of its connection holds no more
            self.emit(NodeStateChanged(self.clock(), name, NodeState.SEEN))
        for name in tuple(self.latest.nodes):
            self._watch_if_wanted(name)
        return ()

    def add_node(self, address: str) -> None:
        """Take a machine in by hand: "host", "user@host:port" or an alias of ~/.ssh/config.

        Raises:
            FleetError: that is no address.
        """
        self._finder.add(address)

    def connect(self, node: str) -> None:
        """Try a node now: one that was only found, or one that waits for its next try. It may ask questions."""
        self._wanted.add(node)
        self._declined -= {(node, kind) for kind in QuestionKind}
        if node in self._watchers:
            self._watchers[node][0].kick()
        elif node in self.latest.nodes:
            self._watch_node(node)

    async def log_lines(self, node: str, service: str, *, tail: int = 200,
                        follow: bool = True) -> AsyncIterator[str]:
        """The last `tail` lines of a service's log, then those that come."""
        supervisor = self.supervisor(node)
        if not follow:
            chunk = await supervisor.read_log(service, limit=TAIL_BYTES)
            for line in chunk.text.splitlines()[-tail:]:
                yield line
            return
        async for line in supervisor.follow_log(service, tail=tail):
            yield line

    def head_client(self) -> HeadClient | None:
        """A client of what serves now; None when nothing does."""
        return client_of(self, self.latest.deployment)

    async def model_header(self, node: str, path: str) -> GgufHeader:
        """The header of a model on a node, by the path of its first file, all of its files together.

        Raises:
            FleetError: it is no GGUF, is damaged, or cannot be read; the node does not answer.
        """
        return await self.headers.model_of(self.transport(node), path)

    async def seeders(self) -> tuple[SeederSeen, ...]:
        """Every seeder and puller that runs on the nodes, as it answers now; one that does not says why."""
        from fleet.swarm.asking import ask_all  # all of the swarm: only who asks pays

        return await ask_all(self.latest.nodes, self.transport)

    async def measure_links(self, head: str, workers: Sequence[str]) -> dict[str, str]:
        """Measure the network between a head and workers now; gives why a way could not be measured, by node.

        The figures are in `latest.links`. A worker in use is disturbed for a moment.

        Raises:
            FleetError: there is no such node, it is not connected, or the head cannot dial it.
        """
        return await measure_links(self, node_of(self, head), [node_of(self, name) for name in workers])

    # --- what operations use (`Hands`) -----------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The newest Snapshot."""
        return self.latest

    def transport(self, node: str) -> Transport:
        """A connected transport, or the `NodeError` that says why there is none."""
        watcher = self._watchers[node][0] if node in self._watchers else None
        if watcher is None or watcher.transport is None:
            raise (watcher.error if watcher else None) or NodeUnreachable(
                f"{node} is not connected.", "Wait until it is up; `quarterdeck nodes` says why it is not.")
        return watcher.transport

    def supervisor(self, node: str) -> Supervisor:
        """Who starts and stops processes on a node."""
        known = self.latest.nodes.get(node)
        state_dir = node_config(self.config, known).state_dir if known else ""
        return Supervisor(self.transport(node), state_dir)

    def known(self, name: str) -> KnownNode | None:
        """What the sources say of a node: user, key files, hops."""
        return self._finder.known(name)

    async def reread(self, node: str, *, quick: bool = False) -> NodeReading:
        """Probe a node now: all of it, or what changes from moment to moment."""
        if node not in self._watchers:
            raise NodeUnreachable(f"{node} is not connected.", "`quarterdeck nodes` lists what there is.")
        return await self._watchers[node][0].reread(quick=quick)

    def proxies(self) -> dict[tuple[str, str], ProxyHand]:
        """Who asks and tells every proxy that is followed, by node and service; ("", "") is the one inside."""
        return self._tender.hands()

    def run_inside(self, proxy: ProxyHand, url: str) -> None:
        """Follow a proxy that runs inside this engine's process."""
        self._tender.inside(proxy, url)

    def keep_links(self, links: tuple[Link, ...]) -> None:
        """Remember links that were measured."""
        self.emit(LinksMeasured(self.clock(), links))

    def keep_swarm(self, swarm: Swarm) -> None:
        """Show a swarm as it is now."""
        self.emit(SwarmChanged(self.clock(), swarm))

    # --- events ----------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Take an event in; whoever waits is woken when it changed anything."""
        before = self.latest
        self.latest = reduce(before, event)
        for severity, text, node in notices(before, self.latest):
            self.latest = reduce(self.latest, Noted(self.clock(), self._epoch(), severity, text, node))
        if self.latest is not before and self.latest != before:
            if self._recorder is not None:
                self._recorder.take(event, self.latest)
            self.version += 1
            self._news.set()
            self._news = asyncio.Event()
        if isinstance(event, NodeRead | NodeStateChanged):
            self._judge(event.name)
            self._witness.look(event.name)
            self._tender.look(event.name)
        if isinstance(event, DeploymentJudged | OperationChanged):
            self._tender.moved()
        if isinstance(event, NodeForgotten):
            self._witness.forget(event.name)
            self._tender.forget(event.name)
            self._judge_deployment()
        if isinstance(event, NodeRead):
            self._identify(event.name, event.reading)

    def take_over(self) -> None:
        """Act on the fleet though another cockpit does; that one only looks from then on."""
        if self._presence is not None:
            self._presence.take_over()

    def _on_cockpit(self, holder: str) -> None:
        if holder != self.latest.other_cockpit:
            self.emit(CockpitSeen(self.clock(), holder))

    def _on_proxies(self, proxies: tuple[Proxy, ...]) -> None:
        self.emit(ProxiesSeen(self.clock(), proxies))

    def _note(self, severity: Severity, text: str) -> None:
        self.emit(Noted(self.clock(), self._epoch(), severity, text))

    def _judge(self, name: str) -> None:
        """Services of a node, then the deployment, by all evidence there is now."""
        node, now = self.latest.nodes.get(name), self.clock()
        if node is None:
            return
        services = judge_services(node, self._witness.evidence, now)
        if services != node.services:
            self.emit(ServicesJudged(now, name, services))
        self._judge_deployment()

    def _judge_deployment(self) -> None:
        now = self.clock()
        may = {node.name for node in self.latest.nodes.values() if may_be_head(self.config, node)}
        deployment = judge_deployment(self.latest.nodes, self._witness.evidence, self.latest.deployment, now,
                                      self.config.fleet, heads_on=may)
        if deployment != self.latest.deployment:
            self.emit(DeploymentJudged(now, deployment))
        self._learn(now)

    def _learn(self, now: float) -> None:
        """How fast the devices of what serves are, from what its head has counted."""
        deployment = self.latest.deployment
        node = self.latest.nodes.get(deployment.head)
        service = next((s for s in node.services if s.record.id == deployment.head_service), None) if node else None
        seen = self._witness.evidence.heads.get(key_of(deployment.head, service.record)) if service else None
        if service is None or seen is None or not seen.counted[0]:
            return
        found = observe(self.latest, deployment.head, head_facts(service.record.facts).reads, *seen.counted, now)
        for name, speeds in found.items():
            known = self.latest.nodes[name].speeds
            if any(known.get(device) is None or known[device].tokens != speed.tokens
                   for device, speed in speeds.items()):
                self.emit(SpeedsObserved(now, name, speeds))

    def _identify(self, name: str, reading: NodeReading) -> None:
        node = self.latest.nodes.get(name)
        if node is not None:
            self._finder.identify(name, node.address, node.host_key, reading.machine_id, reading.hostname)

    def _on_sighting(self, event: NodeFound | NodeForgotten | Event) -> None:
        self.emit(event)
        if isinstance(event, NodeForgotten):
            self._unwatch(event.name)
        if isinstance(event, NodeFound):
            self._watch_if_wanted(event.name)

    # --- nodes -----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            if self._recorder is not None:
                group.create_task(self._recorder.run())
            if self._presence is not None:
                group.create_task(self._presence.run())
            if self._recover:
                group.create_task(Recovery(self, self._desk, self._note).run())
                group.create_task(Serving(self, self._tender.wanted, self._note).run())
                if self._journal is not None:
                    group.create_task(finish(self, self._journal, self._desk, self._note, self.settled))
            self._finder.start_known()
            self._started.set()
            try:
                if self._discover:
                    group.create_task(self._guard_finder())
                    await asyncio.sleep(DISCOVERY_GRACE)
                self._looked_around.set()
                await asyncio.Event().wait()
            finally:
                for _, task in self._watchers.values():
                    task.cancel()
                await self._witness.close()
                await self._tender.close()

    def _watch_if_wanted(self, name: str) -> None:
        """Connect to this machine and to what was named; to what was found at home only where no file names nodes.

        Everything else stays in sight and waits for `connect`.
        """
        node = self.latest.nodes.get(name)
        if node is None or name in self._watchers:
            return
        if self._only_nodes is not None and name not in self._only_nodes:
            return
        if node.local or node.configured or (not self.config.nodes and self._finder.is_at_home(name)):
            self._watch_node(name)

    def _watch_node(self, name: str) -> None:
        watcher = NodeWatcher(name, opener(self, name, self._ask, accept_new=self._accept_new),
                              reader(self, name), refresh=lambda: self.config.refresh, clock=self.clock,
                              emit=self.emit)
        self._watchers[name] = watcher, self._group.create_task(self._guard(watcher))

    async def _ask(self, kind: QuestionKind, node: str, text: str, detail: str) -> str | None:
        """Ask about nodes that the user named or chose; a network full of strangers must not ask one after another.

        Who has declined is not asked again at the next try, but when they say `connect`.
        """
        known = self.latest.nodes.get(node)
        if known is not None and not (known.configured or node in self._wanted):
            return None
        if (node, kind) in self._declined:
            return None
        answer = await self._desk.ask(kind, node, text, detail)
        if answer is None:
            self._declined.add((node, kind))
        return answer

    async def _guard(self, watcher: NodeWatcher) -> None:
        """A fault of ours in watching one node must not end the others; it is said, and that node is marked."""
        while True:
            try:
                return await watcher.run()
            except Exception as error:
                problem = problem_of(error, f"while watching {watcher.name}")
            self.emit(NodeStateChanged(self.clock(), watcher.name, NodeState.BROKEN, problem,
                                       next_try=self.clock() + AGAIN_AFTER))
            self.emit(Noted(self.clock(), self._epoch(), Severity.ERROR, problem.what, watcher.name))
            watcher.tried.set()
            await asyncio.sleep(AGAIN_AFTER)

    async def _guard_finder(self) -> None:
        """Nor may one in looking for machines: those that are known stay watched."""
        try:
            await self._finder.run()
        except Exception as error:
            cause = next(iter(error.exceptions), error) if isinstance(error, ExceptionGroup) else error
            problem = problem_of(cause, "while looking for machines")
            self.emit(Noted(self.clock(), self._epoch(), Severity.ERROR, problem.what))

    def _unwatch(self, name: str) -> None:
        if name in self._watchers:
            watcher, task = self._watchers.pop(name)
            task.cancel()
            watcher.tried.set()      # nobody needs to wait for it any more


