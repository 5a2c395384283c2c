"""The Step that spreads a model: every target pulls and gives on, and all of it is told in one place.

A target whose process dies is started again, one that is lost is waited for as long as others still pull, and one
that sends wrong bytes is named. What the Step cannot finish stays on the disks for the next run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fleet.errors import FleetError, NodeError, NodeUnreachable, OperationFailed, PortClosed, ServiceError
from fleet.model import NodeState, Problem
from fleet.model.swarm import PeerState
from fleet.operations.distribute_look import look_at_target, refuse_full
from fleet.operations.distribute_steps import is_ours, parcels, record_now, start, start_source, stop
from fleet.operations.following import Follower
from fleet.operations.hands import Hands, node_of
from fleet.operations.plan import Report, Step
from fleet.operations.sending import Sending
from fleet.operations.swarm_picture import Standing, picture
from fleet.swarm.deal import Deal, Party, bind_address, dial_address, digest_of, first_port, node_at, puller_argv
from fleet.swarm.ways import Way, way_to_source
from fleet.text import visible

LOOK_EVERY = 0.5       # seconds between two looks at a log
ALIVE_EVERY = 3.0      # and between two looks at whether the process is there
AGAIN = 1.0            # seconds before a node that is away is tried again
AWAY = 30.0            # seconds that nodes which are away are waited for when all others are done
TRIES = 4              # starts of one process that gets nowhere
RETRIED = frozenset({"no-peers", "peer", "busy", "port"})     # codes of errors after which another start may do
_MAKE_FOLDER = 'mkdir -p -- "$1"'


@dataclass
class Line:
    """One target: its process, and where it stands."""

    party: Party
    follower: Follower
    state: PeerState = PeerState.WAITING
    problem: Problem | None = None
    settled: bool = False             # it has the model, or will not get it this time
    away: bool = True                 # nothing is going on there
    tries: int = TRIES
    best: int = -1                    # pieces that it had at its last start
    way: Way | None = None
    sending: Sending | None = None
    looked: float = -ALIVE_EVERY
    bad: bool = False                 # it sent wrong bytes


class Spread(Step):
    """Pullers that seed, on every target; the Step is over when each has the model or cannot have it."""

    def __init__(self, hands: Hands, deal: Deal) -> None:
        self.title = f"Spread it to {len(deal.targets)} node{'s' if len(deal.targets) > 1 else ''}"
        self._hands, self._deal = hands, deal
        self._lines: list[Line] = []
        self._over = asyncio.Event()
        self._fatal: FleetError | None = None
        self._alone_since: float | None = None

    async def do(self, report: Report) -> None:
        deal = self._deal
        self._lines = [Line(party, Follower(self._hands, deal, party)) for party in deal.targets]
        self._source = Follower(self._hands, deal, deal.source)
        await self._settle_ports()
        ended = PeerState.STOPPED
        try:
            async with asyncio.TaskGroup() as group:
                for line in self._lines:
                    group.create_task(self._serve(line))
                group.create_task(self._watch_source())
                await self._tell_until_over(report)
            ended = PeerState.DONE
        finally:
            for line in self._lines:
                if line.way is not None:
                    await line.way.close()
            self._tell(ended)
        self._judge()

    async def undo(self, report: Report) -> None:
        await stop(self._hands, self._deal, self._deal.targets)

    # --- one target ------------------------------------------------------------------------------

    async def _serve(self, line: Line) -> None:
        """Bring one target to its end, through losses of its node and deaths of its process."""
        while not self._over.is_set():
            try:
                await self._ready(line)
                line.away = False
                if line.party.by_hand:
                    await self._send(line)
                    return
                await self._have_running(line)
                await self._follow(line)
                return
            except (NodeError, PortClosed) as error:     # the node is away, or the source's seeder is just down
                line.away = True
                if not line.settled:
                    line.state, line.problem = PeerState.WAITING, _problem(error)
                await self._pause(AGAIN)
            except FleetError as error:
                self._give_up(line, _problem(error))
                return

    async def _ready(self, line: Line) -> None:
        """The node is up, and what it has is known."""
        node, party = node_of(self._hands, line.party.node), line.party
        if node.state is not NodeState.UP or node.reading is None:
            raise NodeUnreachable(f"{node.name} is {node.state.value}.", node.problem.remedy if node.problem else "")
        if party.late:
            party.ground = await look_at_target(self._hands, self._deal, node)
            refuse_full(self._deal, {node.name: party.ground})
            party.late = False
        if not party.by_hand:
            await self._hands.transport(node.name).run(_MAKE_FOLDER, (party.ground.folder,))
            parcel = parcels(self._hands, party)
            party.program = party.program or await parcel.push_program()
            manifest = self._deal.known
            party.manifest_path = await parcel.push(f"{manifest.id}.manifest", manifest.as_bytes())

    async def _have_running(self, line: Line) -> None:
        """A puller of this very run: the one that runs, or a new one."""
        deal, party, supervisor = self._deal, line.party, self._hands.supervisor(line.party.node)
        record = await record_now(self._hands, deal, party.node)
        if record is not None and is_ours(record, deal) and record.facts.get("token") == digest_of(deal.token):
            line.way = line.way or await self._way(line, record.facts.get("forward"))
            if line.way.port in (0, record.facts.get("forward")):
                party.port, party.bind = record.port, record.bind
                return
        if record is not None:
            await supervisor.stop(record.id)
        line.way = line.way or await self._way(line)
        line.follower.renew()
        secret = await supervisor.write_secret(deal.service, deal.token.encode())
        way, peers = line.way, self._peers(party)
        await start(self._hands, deal, party, lambda: puller_argv(deal, party, secret, (way.url, *peers), way.url,
                                                                  deal.allowed), forward=way.port)

    async def _way(self, line: Line, wished: object = None) -> Way:
        nodes, deal = self._hands.snapshot().nodes, self._deal
        address = dial_address(nodes[deal.source.node], nodes[line.party.node])
        return await way_to_source(self._hands.transport(line.party.node), self._hands.transport(deal.source.node),
                                   address, deal.source.bind, deal.source.port,
                                   wished if isinstance(wished, int) else 0)

    def _peers(self, party: Party) -> list[str]:
        """Where the other targets serve, as this one dials them."""
        nodes, found = self._hands.snapshot().nodes, []
        for other in self._deal.targets:
            if other is not party and not other.by_hand and other.port and {other.node, party.node} <= nodes.keys():
                address = dial_address(nodes[other.node], nodes[party.node])
                if address:
                    found.append(f"http://{address}:{other.port}")
        return found

    async def _follow(self, line: Line) -> None:
        """Until the whole swarm is over: it still serves when it is done."""
        follower = line.follower
        while not self._over.is_set():
            await follower.poll()
            told = follower.told
            self._update(line)
            if told.problem is not None or await self._is_dead(line):
                await follower.poll()
                if line.settled:
                    return
                self._restart_or_give_up(line)
                await self._pause(AGAIN)
                await self._have_running(line)
            await self._pause(LOOK_EVERY)

    async def _is_dead(self, line: Line) -> bool:
        if self._hands.clock() - line.looked < ALIVE_EVERY:
            return False
        line.looked = self._hands.clock()
        alive = await line.follower.is_alive()
        if alive is None and not line.settled:
            raise ServiceError(f"The puller on {line.party.node} was taken away by somebody.",
                               "What came is kept: distribute the model again.", code="stopped")
        return not alive

    def _restart_or_give_up(self, line: Line) -> None:
        told = line.follower.told
        if told.problem is not None and told.problem.code not in RETRIED:
            raise OperationFailed(told.problem.what, told.problem.remedy, code=told.problem.code)
        if told.have_count > line.best:          # it got somewhere: its death was none of its own making
            line.best, line.tries = told.have_count, TRIES
        line.tries -= 1
        if line.tries <= 0:
            why = told.problem
            raise OperationFailed(f"The puller on {line.party.node} ended again and again"
                                  f"{': ' + why.what if why else '.'}", why.remedy if why else "Its log says more.",
                                  code="puller")

    def _update(self, line: Line) -> None:
        told = line.follower.told
        if line.bad:
            return
        if told.finished:
            line.settled, line.problem = True, None
            line.state = PeerState.SEEDING
        elif told.phase:
            line.problem = None
            line.state = {"checking": PeerState.CHECKING, "verifying": PeerState.VERIFYING}.get(
                told.phase, PeerState.PULLING)

    def _give_up(self, line: Line, problem: Problem) -> None:
        line.settled, line.state, line.problem, line.away = True, PeerState.FAILED, problem, True

    async def _send(self, line: Line) -> None:
        """A node without python3: from one that has the whole, so that the source need not send it again."""
        while not self._over.is_set():
            ready = [other for other in self._lines if other.state is PeerState.SEEDING]
            pulling = [other for other in self._lines if not other.party.by_hand and not other.settled]
            if ready or not pulling:
                break
            await self._pause(LOOK_EVERY)
        else:
            return
        giver = ready[0].party if ready else self._deal.source
        line.state = PeerState.SENDING
        line.sending = Sending(self._hands, self._deal, line.party, giver)
        await line.sending.run()
        line.settled, line.state = True, PeerState.DONE

    # --- the source ------------------------------------------------------------------------------

    async def _watch_source(self) -> None:
        """Keep the seeder up. The pulls go on among themselves while its node is away."""
        tries, looked = TRIES, self._hands.clock()
        while not self._over.is_set():
            try:
                await self._source.poll()
                if self._hands.clock() - looked > ALIVE_EVERY or self._source.told.problem is not None:
                    looked = self._hands.clock()
                    alive = await self._source.is_alive()
                    if alive is None or (not alive and tries <= 0):
                        why = self._source.told.problem
                        self._fatal = ServiceError(
                            f"The seeder on {self._deal.source.node} "
                            f"{'was taken away by somebody' if alive is None else 'ended again and again'}"
                            f"{': ' + why.what if why else '.'}",
                            "What came is kept: distribute the model again.", code="seeder")
                        self._over.set()
                        return
                    if not alive:
                        tries -= 1
                        self._source.renew()
                        await start_source(self._hands, self._deal)
            except NodeError:
                await self._pause(AGAIN)     # the others have most of it by now, and it may come back
            except FleetError as error:
                self._fatal = error
                self._over.set()
            await self._pause(LOOK_EVERY)

    # --- all together ----------------------------------------------------------------------------

    async def _settle_ports(self) -> None:
        """Every target's address and port, so that each can be told of all others from the start."""
        nodes, deal = self._hands.snapshot().nodes, self._deal
        members = [nodes[party.node] for party in (deal.source, *deal.targets) if party.node in nodes]
        for party in deal.targets:
            node = nodes.get(party.node)
            if node is None or (party.by_hand and not party.late):
                continue
            party.bind = bind_address(node, [other for other in members if other.name != node.name])
            party.port = first_port(deal.known.id, node)
            service = deal.service
            known = next((r for r in (node.reading.services if node.reading else ()) if r.id == service and r.alive),
                         None)
            if known is not None:
                party.bind, party.port = known.bind, known.port

    async def _tell_until_over(self, report: Report) -> None:
        while not self._over.is_set():
            self._name_bad_ones()
            self._tell()
            have = sum(line.settled and line.state is not PeerState.FAILED for line in self._lines)
            report(f"{have} of {len(self._lines)} have it", self._fraction())
            if all(line.settled for line in self._lines):
                self._over.set()
            self._wait_for_lost_ones()
            await self._pause(LOOK_EVERY)

    def _wait_for_lost_ones(self) -> None:
        """Nodes that are away are waited for while others work, and a while longer."""
        left = [line for line in self._lines if not line.settled]
        if not left or not all(line.away for line in left):
            self._alone_since = None
            return
        now = self._hands.clock()
        self._alone_since = now if self._alone_since is None else self._alone_since
        if now - self._alone_since >= AWAY:
            for line in left:
                why = line.problem.what if line.problem else f"{line.party.node} did not answer."
                self._give_up(line, Problem("away", why, "Distribute the model again when it is back: what came is "
                                                         "kept."))

    def _name_bad_ones(self) -> None:
        for line in self._lines:
            for ban in line.follower.bans.values():
                name = self._node_at(line, ban.url)
                what = f"{name} sent wrong bytes (piece {ban.piece}) to {line.party.node}."
                if name == self._deal.source.node:
                    self._fatal = OperationFailed(what, f"The file on {name} changed, or its disk or memory is bad: "
                                                  "make its manifest again, or take another copy.", code="wrong-bytes")
                    self._over.set()
                bad = next((other for other in self._lines if other.party.node == name), None)
                if bad is not None and not bad.bad:
                    bad.bad = True
                    self._give_up(bad, Problem("wrong-bytes", what, f"Its disk or memory is bad: check them, then "
                                               f"`quarterdeck swarm verify` {visible(self._deal.name)} there."))

    def _node_at(self, line: Line, url: str) -> str:
        forwards = {f"127.0.0.1:{line.way.port}": self._deal.source.node} if line.way and line.way.port else {}
        return node_at(url, self._hands.snapshot().nodes, self._deal, forwards)

    def _fraction(self) -> float:
        done = sum(self._deal.size if line.settled else self._done_bytes(line) for line in self._lines)
        return done / (self._deal.size * len(self._lines))

    def _done_bytes(self, line: Line) -> int:
        return line.sending.done if line.sending is not None else min(line.follower.told.done_bytes, self._deal.size)

    def _tell(self, ended: PeerState | None = None) -> None:
        now = self._hands.clock()
        standings = [Standing(line.party, line.follower, line.state, line.problem, self._done_bytes(line),
                              line.sending, lambda url, line=line: self._node_at(line, url)) for line in self._lines]
        sent = self._source.sent + sum(line.sending.read_at_source for line in self._lines if line.sending is not None)
        swarm = picture(self._deal, self._source, standings, sent, now, ended)
        self._hands.keep_swarm(swarm)

    def _judge(self) -> None:
        """Raise when somebody does not have the model."""
        if self._fatal is not None:
            raise self._fatal
        failed = [line for line in self._lines if line.state is PeerState.FAILED and line.problem is not None]
        if failed:
            first = failed[0].problem
            raise OperationFailed(
                f"{len(self._lines) - len(failed)} of {len(self._lines)} nodes have {visible(self._deal.name)}. "
                + " ".join(_named(line) for line in failed),
                first.remedy if first else "", code=first.code if first else "")

    async def _pause(self, seconds: float) -> None:
        """That long, or until it is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return


def _named(line: Line) -> str:
    what = line.problem.what if line.problem else ""
    return what if line.party.node in what else f"{line.party.node}: {what}"


def _problem(error: FleetError) -> Problem:
    return Problem(error.code, error.what, error.remedy)
