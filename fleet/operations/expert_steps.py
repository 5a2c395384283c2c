"""Steps of a bring-up whose experts are read from disk: the shim, an empty page cache, and a limit that holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fleet.errors import FleetError, OperationFailed
from fleet.experts.bound import bound_of, drop, release
from fleet.experts.shim import STATS, NoShim, Shim, prepare
from fleet.model import NodeState
from fleet.nodes.folder import Answer, number
from fleet.operations.hands import Hands, node_of
from fleet.operations.plan import Report, Step
from fleet.operations.streaming import Streaming
from fleet.planning.choose import node_config

MIB = 1 << 20
# The group of memory that a process is in, by /proc: its limit, what it has, what it had at the most, kills.
_LOOK = r"""[ -r "/proc/$1/cgroup" ] || exit 0
qd_one() { if [ -r "$2" ]; then IFS= read -r qd_text <"$2" && printf '%s %s\n' "$1" "$qd_text"; fi; }
while IFS= read -r qd_line; do
    qd_path=${qd_line#*:*:}
    case ${qd_line#*:} in
    memory:* | *,memory:* | memory,*:*) qd_group=/sys/fs/cgroup/memory${qd_path%/} ;;
    :*) qd_group=/sys/fs/cgroup${qd_path%/} ;;
    *) continue ;;
    esac
    [ -r "$qd_group/memory.limit_in_bytes" ] || [ -r "$qd_group/memory.max" ] || continue
    qd_one limit "$qd_group/memory.limit_in_bytes"
    qd_one limit "$qd_group/memory.max"
    qd_one peak "$qd_group/memory.max_usage_in_bytes"
    qd_one peak "$qd_group/memory.peak"
    for qd_file in memory.oom_control memory.events; do
        [ ! -r "$qd_group/$qd_file" ] || sed -n 's/^oom_kill /kills /p' "$qd_group/$qd_file"
    done
    break
done <"/proc/$1/cgroup"
[ ! -r "/proc/$1/cwd/$2" ] || printf 'counting yes\n'
"""


def steps_before(hands: Hands, node: str, streaming: Streaming) -> list[Step]:
    """What comes between the end of the old head and the start of the new one."""
    steps: list[Step] = [HaveShim(hands, node, streaming)] if streaming.wants_shim else []
    return [*steps, EmptyCache(hands, node, streaming)]


class HaveShim(Step):
    """Build the shim there, or here for a node of the same kind; without it the head runs all the same.

    Here alone: a library that another node handed out would run on this one with all of its rights.
    """

    def __init__(self, hands: Hands, node: str, streaming: Streaming) -> None:
        self.title = f"Have the expert shim on {node}"
        self.node = node
        self._hands, self._streaming = hands, streaming

    async def do(self, report: Report) -> None:
        hands, node = self._hands, node_of(self._hands, self.node)
        arch = node.reading.arch if node.reading else ""
        alike = [other.name for other in hands.snapshot().nodes.values() if other.local and other.name != node.name
                 and other.state is NodeState.UP and other.reading and arch and other.reading.arch == arch]
        program = self._streaming.program
        found = await prepare(hands.transport(self.node), node_config(hands.config, node).state_dir, program=program,
                              others=[hands.transport(name) for name in alike])
        self._streaming.shim = found
        if isinstance(found, Shim):
            report(found.how)
        elif self._streaming.needs_shim:
            raise OperationFailed(found.what, found.remedy or "Take `experts:` from this model.", code="no-shim")
        else:
            report(f"goes without: {found.what}")


class EmptyCache(Step):
    """Take the model out of the page cache: what another group has there is outside the limit, and free."""

    def __init__(self, hands: Hands, node: str, streaming: Streaming) -> None:
        self.title = f"Take the model out of the page cache of {node}"
        self.node = node
        self._hands, self._streaming = hands, streaming

    async def do(self, report: Report) -> None:
        paths = self._streaming.paths
        stayed = await drop(self._hands.transport(self.node), paths)
        if stayed is None:
            raise OperationFailed(
                f"Whether {self.node} has the model in its page cache cannot be seen: there is neither python3 nor "
                "fincore. What is there already would be outside the budget.", "Install python3 there.",
                code="cached")
        for path, left in zip(paths, stayed, strict=True):
            if left.much:
                who = f" Process {', '.join(map(str, left.pids))} has it mapped." if left.pids else ""
                raise OperationFailed(
                    f"{left.bytes // MIB} of {left.size // MIB} MiB of {path} on {self.node} stay in the page cache, "
                    f"outside the budget: what the head finds there is free until it is gone.{who}",
                    "End what uses the file, and try again.", code="cached")
        report("empty")


class LimitHolds(Step):
    """See that the head is inside its limit, that nothing of it had to be killed, and that the shim counts."""

    def __init__(self, hands: Hands, node: str, service: str, streaming: Streaming) -> None:
        self.title = "See that the limit of memory holds"
        self.node = node
        self._hands, self._service, self._streaming = hands, service, streaming

    async def do(self, report: Report) -> None:
        records = await self._hands.supervisor(self.node).records()
        pid = next((record.pid for record in records if record.id == self._service), 0)
        done = await self._hands.transport(self.node).run(_LOOK, (str(pid), STATS), timeout=10.0)
        words = Answer(done.text).words
        limit, peak = number(words.get("limit", "")), number(words.get("peak", ""))
        wanted = self._streaming.bound.limit
        if limit is None or abs(limit - wanted) > MIB:
            raise OperationFailed(f"The head on {self.node} is not inside its limit: its group allows "
                                  f"{'what there is' if limit is None else f'{limit // MIB} MiB'}.",
                                  "See the head's log.", code="no-limit")
        told = f"{wanted // MIB} MiB" + (f", {peak // MIB} at the most until now" if peak else "")
        if isinstance(self._streaming.shim, Shim):
            told += ", the shim counts" if "counting" in words else ", the shim has found nothing to count"
        elif isinstance(self._streaming.shim, NoShim):
            told += ", without the shim"
        report(told)


async def put_back(hands: Hands, node: str, facts: Mapping[str, object], report: Callable[[str], None]) -> None:
    """Remove the limit of a head that has ended, and put back what was set for it.

    What cannot be put back is told, and keeps nothing from going on.
    """
    bound = bound_of(facts)
    if bound is None:
        return
    try:
        for told in await release(hands.transport(node), bound):
            report(told)
    except FleetError as error:
        report(f"its limit is not removed: {error.what}")
