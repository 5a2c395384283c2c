"""The Steps around a distribution: program, manifest, the hub's hash, the seeder at the source, and the end."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from contextlib import aclosing

from fleet.errors import FleetError, NodeError, OperationFailed, PortTaken, ServiceError
from fleet.model import Node, ServiceKind, ServiceRecord
from fleet.models.facts import facts_of
from fleet.node import Manifest, SwarmError, parse_manifest
from fleet.node.manifest import BIGGEST_MANIFEST, SUFFIX, TIGHTWAD_SUFFIX
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.following import Follower
from fleet.operations.hands import Hands, Known, node_of
from fleet.operations.plan import Report, Step
from fleet.planning.choose import node_config
from fleet.planning.planned import size
from fleet.swarm.deal import (
    Deal,
    Party,
    allowed_addresses,
    bind_address,
    digest_of,
    first_port,
    piece_size,
    seeder_argv,
)
from fleet.swarm.push import Parcels
from fleet.text import visible

LOG_LIMIT = 1 << 20          # bytes: four lines a second are told
READ_TIMEOUT = 60.0          # seconds for a manifest
PORT_TRIES = 5
LOOK_EVERY = 0.5             # seconds between two looks at a log
_MAKE = 'exec "$@" </dev/null 2>&1'


def parcels(hands: Hands, party: Party) -> Parcels:
    """What pushes small files to a node."""
    state_dir = node_config(hands.config, node_of(hands, party.node)).state_dir
    return Parcels(hands.transport(party.node), state_dir, party.ground.python)


class PushProgram(Step):
    """Bring the zipapp to everybody who has a python3; to those that come later, then."""

    def __init__(self, hands: Hands, deal: Deal) -> None:
        self._hands, self._deal = hands, deal
        able = [party for party in (deal.source, *deal.targets) if not party.by_hand and not party.late]
        self._parties = able
        self.title = f"Bring the swarm's program to {len(able)} node{'s' if len(able) > 1 else ''}"

    async def do(self, report: Report) -> None:
        async def one(party: Party) -> None:
            party.program = await parcels(self._hands, party).push_program()

        answers = await asyncio.gather(*(one(party) for party in self._parties), return_exceptions=True)
        for party, answer in zip(self._parties, answers, strict=True):
            if isinstance(answer, NodeError) and party is not self._deal.source:
                party.late = True            # lost just now; it is tried again with the pulls
            elif isinstance(answer, BaseException):
                raise answer


class MakeManifest(Step):
    """Hash the model at the source, unless a manifest of these files lies beside it."""

    def __init__(self, hands: Hands, known: Known, deal: Deal) -> None:
        self._hands, self._known, self._deal = hands, known, deal
        self.node = deal.source.node
        self.title = f"Hash {visible(deal.name)} ({size(deal.size)}) on {deal.source.node}"

    async def check(self) -> str | None:
        deal = self._deal
        for suffix in (SUFFIX, TIGHTWAD_SUFFIX):
            if deal.paths[0] + suffix in deal.source.ground.files:
                manifest = await self._read(deal.paths[0] + suffix)
                if manifest is not None and tuple(entry.size for entry in manifest.files) == deal.sizes \
                        and tuple(entry.name for entry in manifest.files) == deal.names:
                    deal.manifest = manifest
                    return f"a manifest of {manifest.count} pieces lies beside it"
        return None

    async def do(self, report: Report) -> None:
        deal, source = self._deal, self._deal.source
        transport = self._hands.transport(source.node)
        argv = [source.ground.python, source.program, "manifest", *deal.paths,
                "--piece-size", str(piece_size(deal.size))]
        if (facts := await self._facts()) is not None:
            argv += ["--facts", await parcels(self._hands, source).push("facts.json", facts)]
        said: dict = {}
        async with aclosing(transport.lines(_MAKE, argv)) as lines:
            async for line in lines:
                try:
                    told = json.loads(line)
                except (ValueError, RecursionError):
                    continue                 # a remark of python's own
                if isinstance(told, dict) and told.get("event") in ("done", "error"):
                    said = told
                elif isinstance(told, dict) and isinstance(told.get("done"), int):
                    report("hashing", min(1.0, told["done"] / deal.size))
        if said.get("event") != "done":
            raise OperationFailed(
                f"The manifest of {visible(deal.name)} could not be made on {source.node}"
                f"{': ' + visible(str(said['what']), limit=300) if said.get('what') else '.'}",
                visible(str(said.get("remedy") or "See that the folder of the model can be written there."), limit=300),
                code="manifest")
        deal.manifest = await self._read(deal.paths[0] + SUFFIX)
        if deal.manifest is None:
            raise OperationFailed(f"The manifest of {visible(deal.name)} on {source.node} cannot be read.",
                                  "Look at the disk there.", code="manifest")
        report(f"{deal.manifest.count} pieces", 1.0)

    async def _facts(self) -> bytes | None:
        """What the header says, to carry along; a file that is no GGUF can be moved too."""
        try:
            header = await self._known.headers.model_of(self._hands.transport(self._deal.source.node),
                                                        self._deal.paths[0])
        except FleetError:
            return None
        facts = facts_of(header)
        return json.dumps({"architecture": facts.architecture[:200], "quantisation": facts.quantisation[:200],
                           "parameters": facts.parameters}).encode()

    async def _read(self, path: str) -> Manifest | None:
        data = await self._hands.transport(self._deal.source.node).read_file(path, 0, BIGGEST_MANIFEST + 1,
                                                                             timeout=READ_TIMEOUT)
        try:
            return parse_manifest(data)
        except SwarmError:
            return None


class CheckHashes(Step):
    """Compare the manifest with what the hub says of the files, before a byte moves."""

    title = "Compare with the hub's SHA-256"

    def __init__(self, deal: Deal) -> None:
        self._deal = deal

    async def do(self, report: Report) -> None:
        for entry, wanted in zip(self._deal.known.files, self._deal.sha256, strict=True):
            if entry.sha256 != wanted:
                raise OperationFailed(
                    f"{visible(entry.name)} on {self._deal.source.node} has the SHA-256 {entry.sha256[:16]}..., and "
                    f"the hub's is {wanted[:16]}...: it is another file. Nothing was moved.",
                    "Fetch it again from the hub; should the file be new, take its manifest away first.",
                    code="other-hash")
        report("the same")


class StartSource(Step):
    """Have a seeder at the source that gives every piece once; one of this model that runs already is taken over."""

    def __init__(self, hands: Hands, deal: Deal) -> None:
        self._hands, self._deal = hands, deal
        self.node = deal.source.node
        self.title = f"Seed {visible(deal.name)} on {deal.source.node}"

    async def do(self, report: Report) -> None:
        deal, source = self._deal, self._deal.source
        deal.started = self._hands.clock()
        nodes = self._hands.snapshot().nodes
        here = node_of(self._hands, source.node)
        others = [nodes[party.node] for party in deal.targets if party.node in nodes]
        deal.allowed = allowed_addresses((here, *others))
        if not await self._take_over(here):
            deal.token = secrets.token_urlsafe(32)
            source.bind = bind_address(here, others)
            source.port = first_port(deal.known.id, here)
            await start_source(self._hands, deal)
        await self._until_it_serves(report)

    async def undo(self, report: Report) -> None:
        await stop(self._hands, self._deal, (self._deal.source,))

    async def _take_over(self, node: Node) -> bool:
        """Whether a seeder of this model runs; then its token, address and port are ours too."""
        deal, supervisor = self._deal, self._hands.supervisor(node.name)
        record = await record_now(self._hands, deal, node.name)
        if record is None:
            return False
        if is_ours(record, deal) and deal.limit == 0:
            token = await self._token_of(record)
            if token and digest_of(token) == record.facts.get("token"):
                deal.token, deal.source.bind, deal.source.port = token, record.bind, record.port
                return True
        await supervisor.stop(record.id)
        return False

    async def _token_of(self, record: ServiceRecord) -> str:
        state_folder = record.folder.rpartition("/services/")[0]
        try:
            data = await self._hands.transport(self.node).read_file(f"{state_folder}/secrets/{record.id}", 0, 1024)
        except FleetError:
            return ""
        return data.decode("ascii", "replace").strip()

    async def _until_it_serves(self, report: Report) -> None:
        deal, count = self._deal, self._deal.known.count
        follower = Follower(self._hands, deal, deal.source)
        while not follower.told.url:
            await follower.poll()
            if follower.told.problem is not None or not await follower.is_alive():
                await follower.poll()
                why = follower.told.problem
                raise ServiceError(f"The seeder on {self.node} ended: {why.what if why else 'it did not say why'}",
                                   why.remedy if why else "Its log says more.", code="seeder")
            if follower.told.phase == "checking" and follower.told.done_bytes:
                report("checking what is on disk", min(1.0, follower.told.done_bytes / deal.size))
            if not follower.told.url:
                await asyncio.sleep(LOOK_EVERY)
        if follower.told.have_count != count:
            raise OperationFailed(
                f"{count - follower.told.have_count} of {count} pieces of {visible(deal.name)} on {self.node} are not "
                "what its manifest says: the file changed, or its disk is bad. Nothing was moved.",
                f"If the file is right, take {visible(deal.paths[0])}{SUFFIX} away and distribute it again.",
                code="changed")
        report(f"{deal.source.bind}:{deal.source.port}")


class CleanUp(Step):
    """Stop every seeder, take the token away, and look again at what the nodes have."""

    title = "Stop the seeders and take the token away"

    def __init__(self, hands: Hands, deal: Deal) -> None:
        self._hands, self._deal = hands, deal

    async def do(self, report: Report) -> None:
        await stop(self._hands, self._deal, (self._deal.source, *self._deal.targets))


# ---------------------------------------------------------------------------------------------
# Services


async def record_now(hands: Hands, deal: Deal, node: str) -> ServiceRecord | None:
    """The node's service of this model that runs, asked now; None when none does."""
    records = await hands.supervisor(node).records()
    return next((record for record in records if record.id == deal.service and record.alive), None)


def is_ours(record: ServiceRecord, deal: Deal) -> bool:
    """Whether it serves this very manifest and is not being ended."""
    return record.facts.get("swarm") == deal.known.id and not record.stopping


async def start(hands: Hands, deal: Deal, party: Party, argv: Callable[[], tuple[str, ...]],
                **facts: object) -> ServiceRecord:
    """Start a party's process detached, on the next port when somebody took the wanted one meanwhile."""
    tries = PORT_TRIES
    while True:
        spec = ServiceSpec(
            id=deal.service, kind=ServiceKind.SEEDER, argv=argv(), port=party.port, bind=party.bind,
            fleet=hands.config.fleet, log_limit=LOG_LIMIT,
            facts={"swarm": deal.known.id, "name": deal.name[:200], "token": digest_of(deal.token),
                   "source": party is deal.source, "folder": party.ground.folder or deal.folder, **facts})
        try:
            return await hands.supervisor(party.node).start(spec)
        except PortTaken:
            tries -= 1
            if not tries:
                raise
            party.port += 1


async def start_source(hands: Hands, deal: Deal) -> None:
    """Start the seeder that gives every piece once."""
    secret = await hands.supervisor(deal.source.node).write_secret(deal.service, deal.token.encode())
    await start(hands, deal, deal.source, lambda: seeder_argv(deal, secret, deal.allowed))


async def stop(hands: Hands, deal: Deal, parties: tuple[Party, ...]) -> None:
    """End the parties' processes and take their tokens away; what is finished on their disks stays.

    Raises:
        FleetError: on one it could not be done; on all others it was.
    """
    if deal.manifest is None:
        return

    async def one(party: Party) -> None:
        supervisor = hands.supervisor(party.node)
        if not party.by_hand:
            await supervisor.stop(deal.service)
            await supervisor.forget(deal.service)
            await supervisor.remove_secret(deal.service)
        await hands.reread(party.node)

    known = [party for party in parties if not party.late]
    answers = await asyncio.gather(*(one(party) for party in known), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, NodeError):
            raise answer       # a node that is away is asked again by the next run, and its process ends by itself

