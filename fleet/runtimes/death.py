"""Why a process ended: the likely cause in one sentence, from its exit status and the end of its log.

Exit codes alone mislead: a worker ends with 0 when its port is taken, and a head that found no memory
for its KV cache says so and then ends by a segmentation fault (seen on b10068). So what the log
complains of comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from fleet.model import Problem, ServiceKind
from fleet.runtimes.head_lines import Fault, FaultKind, body, fault_of
from fleet.runtimes.vllm_death import is_vllm, vllm_cause
from fleet.runtimes.worker_log import read_banner

MOST_LINES = 400
_REMOTE = re.compile(r"RPC(\d+)\[(.+)\]")
_SIGNALS = {"SIGHUP": 129, "SIGINT": 130, "SIGILL": 132, "SIGABRT": 134, "SIGBUS": 135, "SIGKILL": 137,
            "SIGSEGV": 139, "SIGPIPE": 141, "SIGTERM": 143}

# What only follows from another complaint: told when there is no other.
_CONSEQUENCES = (FaultKind.MODEL, FaultKind.VALUE, FaultKind.DEVICE)
_AT_START = (FaultKind.CONNECT, FaultKind.MISMATCH)      # older heads go on after these


def cause_of_death(kind: ServiceKind, exit_status: int | None, log_tail: str) -> Problem:
    """The likely cause, and what to do.

    Args:
        kind: what it was.
        exit_status: as a shell gives it, 128 + signal for a signal; None = nobody saw it.
        log_tail: the end of its log.
    """
    if is_vllm(kind, log_tail):
        return vllm_cause(log_tail) or _by_status(kind, exit_status)
    faults = [fault for line in log_tail.splitlines()[-MOST_LINES:] if (fault := fault_of(body(line[:1000])))]
    fault = _decisive(faults)
    if fault is not None:
        if fault.kind is FaultKind.BIND and not fault.subject and (banner := read_banner(log_tail)):
            fault = replace(fault, subject=banner.endpoint)     # a worker prints its banner even then
        return _FAULTS[fault.kind](fault, faults)
    return _by_status(kind, exit_status)


def _decisive(faults: Sequence[Fault]) -> Fault | None:
    """The complaint that explains the end best: the last that is a cause; what follows from it is not."""
    causes = [fault for fault in faults if fault.kind not in _CONSEQUENCES]
    fatal = [fault for fault in causes if fault.kind not in _AT_START]
    for kind in (FaultKind.MEMORY, FaultKind.NO_FILE, FaultKind.NOT_GGUF):
        if found := [fault for fault in fatal if fault.kind is kind]:
            return found[-1]
    for found in (fatal, [fault for fault in causes if fault.kind is FaultKind.MISMATCH], causes):
        if found:
            return found[-1]
    for kind in (FaultKind.DEVICE, FaultKind.MODEL, FaultKind.VALUE):
        if found := [fault for fault in faults if fault.kind is kind]:
            return found[-1]
    return None


# ---------------------------------------------------------------------------------------------
# By what the log says

Explain = Callable[[Fault, Sequence[Fault]], Problem]


def _endpoint(faults: Sequence[Fault]) -> str:
    return next((fault.subject for fault in faults if fault.kind is FaultKind.CONNECT), "")


def _mismatch(fault: Fault, faults: Sequence[Fault]) -> Problem:
    where = f" at {_endpoint(faults)}" if _endpoint(faults) else ""
    return Problem("protocol-mismatch", f"The worker{where} speaks RPC protocol {fault.subject}, which this head does "
                   "not take: they are of different llama.cpp builds.", "Use the same build on head and workers.")


def _connect(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("worker-unreachable", f"The head could not reach its worker at {fault.subject}.",
                   "See whether that worker runs, and whether a firewall is between them.")


def _crash(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("worker-crashed", "A worker died or hung up while the head was using it, and the head ends itself "
                   "then.", "See the workers' logs, then bring the model up again.")


def _devices(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("too-many-devices", "llama.cpp splits over 15 devices at most, and more were given.",
                   "Name fewer workers, or fewer devices of them.")


def _memory(fault: Fault, faults: Sequence[Fault]) -> Problem:
    on = next((f.subject for f in faults if f.kind is FaultKind.MEMORY and f.subject), "the device")
    if remote := _REMOTE.fullmatch(on):
        on = f"device {remote[1]} of the worker at {remote[2]}"
    return Problem("out-of-memory", f"There was not enough memory on {on}.",
                   "Give that device a smaller share, shorten the context, or use a smaller quantisation.")


def _bind(fault: Fault, faults: Sequence[Fault]) -> Problem:
    if hosts := [f for f in faults if f.kind is FaultKind.HOST]:
        return _host(hosts[-1], faults)
    at = fault.subject or "its address and port"
    return Problem("port-taken", f"It could not listen on {at}: the port is taken, or the machine does not have that "
                   "address.", "See what listens there, or set another `port:` or address.")


def _host(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("bad-host", f"{fault.subject or 'What was given'} is no IPv4 address, and a worker binds nothing "
                   "else.", "Set `rpc_address:` of the node to its IPv4 address.")


def _device(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("unknown-device", f"There is no device {fault.subject}.",
                   "List the devices with `llama-server --list-devices` on that machine, and correct `devices:`.")


def _no_file(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("no-model", f"The model file {fault.subject} is not there or cannot be read.",
                   "Copy it to the head, or correct `file:` of the model.")


def _not_gguf(fault: Fault, faults: Sequence[Fault]) -> Problem:
    begins = f" (it begins with '{fault.subject}')" if fault.subject else ""
    return Problem("not-gguf", f"The model file is not a GGUF{begins}.", "Fetch the file again.")


def _model(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("model-refused", f"llama-server could not load the model: {fault.subject}",
                   "A newer llama.cpp may know this model; or the file is damaged.")


def _flag(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("unknown-flag", f"This build does not know the option {fault.subject}.",
                   "Correct `extra_args:`, or use another llama.cpp build.")


def _value(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("bad-argument", f"It refused an argument: {fault.subject}", "Correct it in fleet.yaml.")


def _library(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("library-missing", f"It needs the library {fault.subject}, which that machine does not have.",
                   "Install it there, or use another llama.cpp build.")


def _assert(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("aborted", f"llama.cpp stopped itself: a check failed ({fault.subject}).",
                   "That is a fault of this build with this model or device; try another build.")


def _gpu(fault: Fault, faults: Sequence[Fault]) -> Problem:
    return Problem("gpu-error", f"The GPU or its driver failed: {fault.subject}",
                   "See the machine's kernel log; a restart of it helps often.")


_FAULTS: dict[FaultKind, Explain] = {
    FaultKind.MISMATCH: _mismatch, FaultKind.CONNECT: _connect, FaultKind.CRASH: _crash, FaultKind.MEMORY: _memory,
    FaultKind.BIND: _bind, FaultKind.HOST: _host, FaultKind.DEVICE: _device, FaultKind.DEVICES: _devices,
    FaultKind.NO_FILE: _no_file, FaultKind.NOT_GGUF: _not_gguf, FaultKind.MODEL: _model, FaultKind.FLAG: _flag,
    FaultKind.VALUE: _value, FaultKind.LIBRARY: _library, FaultKind.ASSERT: _assert, FaultKind.GPU: _gpu}


# ---------------------------------------------------------------------------------------------
# By the exit status alone


def _by_status(kind: ServiceKind, status: int | None) -> Problem:
    worker = kind is ServiceKind.WORKER
    match status:
        case None:
            return Problem("ended", "It ended, and nobody saw how: the machine was restarted, or lost power.",
                           "Start it again.")
        case 141 if worker:
            return Problem("broken-pipe", "A client went away before it had read the worker's answer, and that ended "
                           "the worker (SIGPIPE): a probe or a head that was cut off.",
                           "Start it again; workers that Quarterdeck starts do not mind this.")
        case 134 if kind is ServiceKind.COORDINATOR:
            return Problem("aborted", "llama-server stopped itself (SIGABRT): most likely one of its workers died or "
                           "is of another build.", "See the workers' logs, then bring the model up again.")
        case 134 if worker:
            return Problem("aborted", "The worker stopped itself (SIGABRT): a check in llama.cpp failed.",
                           "See the end of its log; an operation that its device lacks does this.")
        case 137:
            return Problem("killed", "It was killed (SIGKILL): by the kernel because memory ran out, or by hand.",
                           "See the machine's kernel log for 'Out of memory'; give it a smaller share.")
        case 132:
            return Problem("illegal-instruction", "Its program uses instructions that this processor does not have.",
                           "Use a llama.cpp built on or for that machine, and name its folder as `llama:`.")
        case 139 | 135:
            return Problem("crashed", "It crashed (a memory fault in llama.cpp or in a driver).",
                           "Try another build; a context too large for the memory does this too.")
        case 143 | 129 | 130:
            return Problem("ended-by-signal", "Somebody ended it (SIGTERM, SIGINT or SIGHUP).", "Start it again.")
        case 126 | 127:
            return Problem("not-run", "The program could not be run: it is not there, is not for this system, or "
                           "lacks a library.", "Install llama.cpp there, or name its folder as `llama:`.")
        case 0 if worker:
            return Problem("ended", "The worker ended by itself with status 0, as it does when it cannot listen.",
                           "See whether its port is taken and its address is one of that machine.")
        case 0:
            return Problem("ended", "It ended by itself, without an error.", "Start it again.")
    name = next((name for name, code in _SIGNALS.items() if code == status), "")
    how = f"by signal {status - 128}{f' ({name})' if name else ''}" if status > 128 else f"with status {status}"
    return Problem("ended", f"It ended {how}.", "Its log says more.")
