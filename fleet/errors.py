"""Every error that the engine raises on purpose.

    FleetError
    ├── ConfigError                 fleet.yaml or the environment says something that cannot be
    ├── NodeError                   one machine
    │   ├── NodeUnreachable         no answer from its address in time
    │   ├── NodeRefused             the machine answers, its SSH port does not
    │   ├── ConnectionDropped       was connected, is not any more
    │   ├── SignInFailed            no key, password or passphrase was accepted
    │   ├── HostKeyUnknown          never seen, and nobody accepted it
    │   ├── HostKeyChanged          known_hosts has another key for this name
    │   ├── ShellUnusable           signed in, but /bin/sh does not do what it is told
    │   └── CommandTimeout          a command ran past its time
    ├── ServiceError                one process on a node
    │   ├── LeaseHeld               another cockpit is at work there
    │   ├── PortTaken               somebody else listens there
    │   ├── PortClosed              nobody listens there, or nobody answers
    │   ├── StartFailed             it ended, or never answered
    │   ├── StopFailed              it would not end
    │   └── NotOurs                 pid and start time do not match what was written down
    ├── ModelFileError              a file is no GGUF that can be read
    ├── PlanRefused                 a plan cannot work on this fleet: nothing was started
    └── OperationFailed             a step failed: what was done has been undone

Each carries two sentences for the person who reads it: `what` is wrong and where, and the
`remedy`. `str(error)` is both.
"""

from __future__ import annotations

NO_SUCH = "no-such"   # the code of a refusal because the node, service or model that was asked for does not exist


class FleetError(Exception):
    """Something a person has to know about, in two sentences.

    `what` says what is wrong and where; `remedy` says what to do about it ("" when nothing can be
    done); `code` is a stable word for scripts and tests.
    """

    code = "error"

    def __init__(self, what: str, remedy: str = "", *, code: str | None = None) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}".strip()


class ConfigError(FleetError):
    """fleet.yaml or an environment variable says something that cannot be."""

    code = "config"


class NodeError(FleetError):
    """One machine does not do what is needed of it."""

    code = "node"


class NodeUnreachable(NodeError):
    """No answer from the node's address within its time."""

    code = "unreachable"


class NodeRefused(NodeError):
    """The machine answers, but nothing listens on its SSH port."""

    code = "refused"


class ConnectionDropped(NodeError):
    """The connection was there and is lost."""

    code = "dropped"


class SignInFailed(NodeError):
    """The node let nobody in: no key, password or passphrase was accepted."""

    code = "sign-in"


class HostKeyUnknown(NodeError):
    """The node's host key was never seen before and nobody accepted it."""

    code = "host-key-unknown"


class HostKeyChanged(NodeError):
    """known_hosts holds another key for this node."""

    code = "host-key-changed"


class ShellUnusable(NodeError):
    """Signed in, but the node's /bin/sh does not give an answer that can be read."""

    code = "shell"


class CommandTimeout(NodeError):
    """A command on the node ran past its time and was ended."""

    code = "timeout"


class ServiceError(FleetError):
    """One process on a node."""

    code = "service"


class PortTaken(ServiceError):
    """Another process listens on the port: `pid` and `program`, where the node tells."""

    code = "port-taken"

    def __init__(self, what: str, remedy: str = "", *, pid: int | None = None, program: str = "",
                 code: str | None = None) -> None:
        super().__init__(what, remedy, code=code)
        self.pid = pid
        self.program = program


class LeaseHeld(ServiceError):
    """Somebody else is at work there: `holder` as they named themselves, "" when it is not known."""

    code = "lease-held"

    def __init__(self, what: str, remedy: str = "", *, holder: str = "", code: str | None = None) -> None:
        super().__init__(what, remedy, code=code)
        self.holder = holder


class PortClosed(ServiceError):
    """A connection to a service was refused (code port-closed) or not answered in time (port-silent)."""

    code = "port-closed"


class StartFailed(ServiceError):
    """The process ended while it was starting, or never answered.

    `exit_status` is the shell's (128 + signal), None when it never ran or still does; `log_tail`
    the last lines that it wrote.
    """

    code = "start-failed"

    def __init__(self, what: str, remedy: str = "", *, exit_status: int | None = None, log_tail: str = "",
                 code: str | None = None) -> None:
        super().__init__(what, remedy, code=code)
        self.exit_status = exit_status
        self.log_tail = log_tail


class StopFailed(ServiceError):
    """The process is still there after TERM, TERM and KILL."""

    code = "stop-failed"


class NotOurs(ServiceError):
    """The pid is there, but its start time says that it is another process."""

    code = "not-ours"


class ModelFileError(FleetError):
    """A model file is not what it should be: no GGUF, damaged, or of a kind that llama.cpp does not load."""

    code = "model-file"


class PlanRefused(FleetError):
    """A plan cannot work on this fleet; nothing was started. Code NO_SUCH: what was asked for does not exist."""

    code = "refused-plan"


class OperationFailed(FleetError):
    """A step of an operation failed; what it had done before has been undone."""

    code = "operation-failed"
