"""Detached processes on a node: start, stop, adopt, list, forget.

Nothing of ours stays on a node but the processes themselves, a `keeper` shell beside each, and the
state folder. A process is known by pid and start time together; nothing is signalled before both
match, checked on the node by the same script that sends the signal.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fleet.errors import (
    NotOurs,
    PortTaken,
    ServiceError,
    StartFailed,
    StopFailed,
)
from fleet.model import Process, ServiceKind, ServiceRecord
from fleet.nodes.folder import Answer, number
from fleet.nodes.listeners import in_the_way, read_listeners
from fleet.nodes.logs import Logs
from fleet.nodes.notes import Notes
from fleet.nodes.records import Listing, json_object, read_listing
from fleet.nodes.services import ServiceSpec, StopReport, check_id, one_line
from fleet.nodes.supervise import script
from fleet.nodes.transport import Completed, Transport, with_arguments

_TICK = 0.1                    # seconds between two looks of a script on the node


class Supervisor(Logs, Notes):
    """The services of one node.

    `state_dir` is the folder that fleet.yaml wants ("" = the usual one). `settle` is how many
    seconds a new process is watched before it counts as started, unless its port listens sooner;
    `log_check` how often its keeper looks at the size of its log; `grace` the seconds between the
    rungs of a stop.
    """

    def __init__(self, transport: Transport, state_dir: str = "", *, settle: float = 1.5, log_check: int = 15,
                 grace: float = 3.0) -> None:
        super().__init__(transport, state_dir)
        self._settle = settle
        self._log_check = log_check
        self._grace = grace

    # ------------------------------------------------------------------------------------------
    # What is there

    async def listing(self) -> Listing:
        """The state folder of the node, with what is wrong in it."""
        return read_listing((await self._run("list", ())).text)

    async def records(self) -> tuple[ServiceRecord, ...]:
        """The services of the node, running or ended."""
        return (await self.listing()).records

    async def spec(self, id: str) -> ServiceSpec:
        """What a service was started from, to start it again as it was. Raises ServiceError when there is none."""
        pid_json, facts_json = await self._read_facts(id)
        return ServiceSpec.read(id, json_object(pid_json), json_object(facts_json))

    # ------------------------------------------------------------------------------------------
    # Start

    async def start(self, spec: ServiceSpec, *, on_note: Callable[[str], None] | None = None) -> ServiceRecord:
        """Start a process, detached from us and from the connection; returns when it runs.

        Any end within `settle` seconds is a failure, also with status 0: a worker that cannot have
        its port ends so. `on_note` gets a sentence where something else was put right on the way.

        Raises:
            PortTaken: somebody listens there, and who.
            StartFailed: it ended, its program is not there, or nothing could be written down.
            ServiceError: a service of this id runs already (code "running"), or is being started.
        """
        spec.check()
        name = self._transport.name
        rest = one_line(spec.written(), f"{spec.id}'s pid file")[1:]
        facts = one_line(spec.facts, f"{spec.id}'s facts")
        survey = await self._run("survey", (str(spec.port), spec.argv[0]))
        self._refuse(spec, survey)
        keeper = with_arguments(script("keeper"), (
            str(spec.log_limit), str(self._log_check), "deaf" if spec.kind is ServiceKind.WORKER else "", rest,
            spec.cwd, str(len(spec.env)), *(text for pair in spec.env.items() for text in pair), *spec.argv))
        done = await self._run(
            "launch", (spec.id, facts, str(spec.port), str(max(1, round(self._settle / _TICK)))),
            stdin=keeper.encode("utf-8", "surrogateescape"), timeout=self._settle * 3 + 15)
        answer = Answer(done.text)
        self._raise_if_not_written(answer, spec.id, starting=True)
        if "busy" in answer.words:
            raise ServiceError(f"{spec.id} on {name} is being started by somebody else right now.",
                               "Wait a moment and look again.", code="busy")
        if "running" in answer.words:
            raise ServiceError(f"{spec.id} runs on {name} already (pid {answer.words['running']}).",
                               "Stop or restart it instead.", code="running")
        if on_note is not None and "stale" in answer.words:
            on_note(_stale_sentence(spec.id, name, answer.words["stale"]))
        if "ended" in answer.words:
            raise self._ended(spec, done, answer)
        return self._one_record(done, spec.id)

    def _refuse(self, spec: ServiceSpec, survey: Completed) -> None:
        name, text = self._transport.name, survey.text
        listing = read_listing(text)
        for record in listing.records:
            if record.id == spec.id and record.alive:
                raise ServiceError(f"{spec.id} runs on {name} already (pid {record.pid}).",
                                   "Stop or restart it instead.", code="running")
        taken = in_the_way(read_listeners(text, spec.port), spec.bind) if spec.port else None
        if taken is not None:
            ours = next((record.id for record in listing.records if record.alive and record.pid == taken.pid), "")
            raise PortTaken(
                f"Port {spec.port} on {name} is taken: {f'our {ours}, ' if ours else ''}{taken.owner} listens on "
                f"{taken.host}:{taken.port}.",
                f"Stop {ours or 'that process'}, or set another port in fleet.yaml.", pid=taken.pid,
                program=taken.program)
        match Answer(text).words.get("program"):
            case "missing":
                raise StartFailed(f"{spec.argv[0]} is not there on {name}.",
                                  "Set nodes.<name>.llama to the folder with the llama.cpp programs.",
                                  code="no-program")
            case "not-executable":
                raise StartFailed(f"{spec.argv[0]} on {name} cannot be executed.",
                                  "Make it executable (chmod +x) and see that its disk is not mounted noexec.",
                                  code="no-program")

    def _ended(self, spec: ServiceSpec, done: Completed, answer: Answer) -> ServiceError:
        _, _, log = done.text.partition("\nlog\n")
        tail = "\n".join(log.rstrip().split("\n")[-20:])
        status = number(answer.words["ended"])
        last = next((line.strip() for line in reversed(tail.split("\n")) if line.strip()), "")
        if spec.port and (taken := in_the_way(read_listeners(done.text.partition("\nlog\n")[0], spec.port), spec.bind)):
            return PortTaken(f"{spec.id} on {self._transport.name} ended at once: port {spec.port} was taken by "
                             f"{taken.owner} in the meantime.", "Stop that process, or set another port in fleet.yaml.",
                             pid=taken.pid, program=taken.program)
        return StartFailed(
            f"{spec.id} on {self._transport.name} ended while it was starting, with "
            f"{'an unknown status' if status is None else f'status {status}'}"
            f"{f': {last[:300]}' if last else ' and wrote nothing'}",
            "Its log says more; correct what it complains of and start it again.", exit_status=status, log_tail=tail)

    # ------------------------------------------------------------------------------------------
    # Adopt

    async def adopt(self, process: Process, kind: ServiceKind, port: int, bind: str = "", fleet: str = "", *,
                    build: str = "", id: str = "") -> ServiceRecord:
        """Take a process that somebody else started under our care: write its pid file.

        Where its output goes to a file, that is its log from now on; where not, it has none. Nobody
        waits for it, so its exit status stays unknown.

        Raises:
            NotOurs: pid and start time do not match a running process.
            ServiceError: a service of this id runs already.
        """
        id = id or f"{kind.value}-{port or process.pid}"
        spec = ServiceSpec(id=id, kind=kind, argv=process.argv or ("unknown",), port=port, bind=bind, build=build,
                           fleet=fleet, facts={"adopted": True})
        check_id(id)
        done = await self._run("adopt", (id, str(process.pid), process.start_time,
                                         one_line(spec.written(), f"{id}'s pid file")[1:], one_line(spec.facts, id)))
        answer = Answer(done.text)
        self._raise_if_not_written(answer, id)
        if "gone" in answer.words:
            raise NotOurs(f"Process {process.pid} on {self._transport.name} is not there any more"
                          f"{' (another one has its number now)' if answer.words['gone'] == 'recycled' else ''}.",
                          "Look at the processes again.")
        if "running" in answer.words or "busy" in answer.words:
            raise ServiceError(f"A service {id} runs on {self._transport.name} already.", "Stop it first.",
                               code="running")
        return self._one_record(done, id)

    # ------------------------------------------------------------------------------------------
    # Stop

    async def stop(self, id: str, *, on_phase: Callable[[str], None] | None = None) -> StopReport:
        """End a service: TERM, `grace` seconds, TERM, `grace` seconds, KILL, to its process group.

        A busy llama-server needs the second TERM. `on_phase` gets "TERM", "TERM again", "KILL",
        "gone" and "port free" as they come. Its record and log stay until `forget`. What does not
        run is fine, and whatever its keeper left is ended.

        Raises:
            StopFailed: it is another user's, or still there after KILL.
        """
        check_id(id)
        return await self._end(id, ("service", self._state_dir, id), on_phase, 0, "")

    async def end_process(self, pid: int, start_time: str, *, port: int = 0, bind: str = "",
                          on_phase: Callable[[str], None] | None = None) -> StopReport:
        """The same ladder for a process that is no service of ours. The user was asked first.

        Raises:
            NotOurs: the pid belongs to another process by now; nothing was signalled.
            StopFailed: it is another user's, or still there after KILL.
        """
        return await self._end("", ("process", str(pid), start_time), on_phase, port, bind)

    async def _end(self, id: str, who: tuple[str, ...], on_phase: Callable[[str], None] | None, port: int,
                   bind: str) -> StopReport:
        started = time.monotonic()
        phases: list[str] = []
        label = f"{id or f'Process {who[1]}'} on {self._transport.name}"

        def phase(word: str) -> None:
            phases.append(word)
            if on_phase is not None:
                on_phase(word)

        answer = await self._rung(who, "0", 0.0)
        written = json_object(answer.bars.get("pid", ""))
        if isinstance(written.get("port"), int) and isinstance(written.get("bind"), str):
            port, bind = int(str(written["port"])), str(written["bind"])
        rss = number(answer.words.get("rss", ""))
        was_running = "gone" not in answer.words
        if not id and answer.words.get("gone") == "recycled":
            raise NotOurs(f"{label} is another process by now; nothing was signalled.", "Look at the processes again.")
        for signal, word in (("TERM", "TERM"), ("TERM", "TERM again"), ("KILL", "KILL")):
            if "gone" in answer.words:
                break
            if "refused" in answer.words:
                raise StopFailed(f"{label} belongs to {answer.words['refused'] or 'another user'} and does not take "
                                 "our signal.",
                                 "Sign in to the node as that user, or end it there.")
            phase(word)
            answer = await self._rung(who, signal, self._grace)
        else:
            if "gone" not in answer.words:
                state = answer.words.get("still", "")
                raise StopFailed(
                    f"{label} is still there after TERM, TERM and KILL"
                    f"{' (it waits for a disk or a driver, state D)' if state.startswith('D') else ''}.",
                    "Look at the node's kernel log; it may have to be restarted.")
        if was_running:
            phase("gone")
        done = await self._run("after", (id, str(port)), timeout=20)
        owner = in_the_way(read_listeners(done.text, port), bind) if port else None
        if was_running and port and owner is None:
            phase("port free")
        return StopReport(tuple(phases), number(Answer(done.text).words.get("exit", "")), time.monotonic() - started,
                          None if not port else owner is None, None if rss is None else rss * 1024, was_running,
                          owner.owner if owner else "")

    async def _rung(self, who: tuple[str, ...], signal: str, wait: float) -> Answer:
        done = await self._transport.run(script("end"), (*who, signal, str(round(wait / _TICK))), timeout=wait * 3 + 12)
        answer = Answer(done.text)
        if not answer.words.keys() & {"gone", "still", "refused"}:
            raise self._unreadable(done)
        return answer

    # ------------------------------------------------------------------------------------------
    # What is written beside a service

    async def forget(self, id: str) -> bool:
        """Take away the folder of a service that has ended; False when there is none.

        Raises:
            ServiceError: it still runs (code "running"), or somebody starts it right now.
        """
        check_id(id)
        answer = Answer((await self._run("forget", (id,), timeout=20)).text)
        if "alive" in answer.words:
            raise ServiceError(f"{id} on {self._transport.name} still runs.", "Stop it first.", code="running")
        if "busy" in answer.words or "kept" in answer.words:
            raise ServiceError(f"The folder of {id} on {self._transport.name} could not be taken away.",
                               "Try again; see that the disk is writable.", code="busy")
        return "forgot" in answer.words

    async def forget_ended(self) -> tuple[str, ...]:
        """Take away the folders of all services that have ended, stale and unreadable pid files with them."""
        done = await self._run("forget", (), timeout=30)
        return tuple(line.removeprefix("forgot ") for line in done.text.splitlines() if line.startswith("forgot "))

    def _one_record(self, done: Completed, id: str) -> ServiceRecord:
        for record in read_listing(done.text).records:
            if record.id == id:
                return record
        raise self._unreadable(done)


def _stale_sentence(id: str, node: str, stale: str) -> str:
    verdict, _, pid = stale.partition(" ")
    why = {"recycled": f"its pid {pid} belongs to another process by now",
           "unreadable": "it could not be read"}.get(verdict, f"its process {pid} has ended")
    return f"Cleaned the old pid file of {id} on {node}: {why}."
