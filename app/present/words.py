"""A glyph, a word and a tone for everything that has a state: never a colour alone."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.model import (
    DeploymentState,
    ForeignProcess,
    LinkKind,
    Node,
    NodeState,
    OperationState,
    Problem,
    ServiceKind,
    ServiceState,
    Severity,
    StepState,
)
from widgets.entries import Entry, Paragraph
from widgets.spans import Line, Span, Tone


@dataclass(frozen=True, slots=True)
class Sign:
    """How a state looks."""

    glyph: str
    word: str
    tone: Tone

    @property
    def line(self) -> Line:
        """Glyph and word."""
        return (Span(f"{self.glyph} {self.word}", self.tone),)


NODE_SIGNS = {
    NodeState.SEEN: Sign("○", "seen", Tone.MUTED),
    NodeState.CONNECTING: Sign("◌", "connecting", Tone.MUTED),
    NodeState.UP: Sign("●", "up", Tone.GOOD),
    NodeState.SILENT: Sign("◐", "silent", Tone.WARN),
    NodeState.UNREACHABLE: Sign("✕", "unreachable", Tone.BAD),
    NodeState.REFUSED: Sign("⊘", "no ssh", Tone.BAD),
    NodeState.LOCKED: Sign("⊠", "locked", Tone.WARN),
    NodeState.NEW_KEY: Sign("?", "new key", Tone.WARN),
    NodeState.CHANGED_KEY: Sign("≠", "key changed", Tone.BAD),
    NodeState.BROKEN: Sign("▲", "broken", Tone.BAD),
    NodeState.GONE: Sign("–", "gone", Tone.MUTED),
}

SERVICE_SIGNS = {
    ServiceState.STARTING: Sign("◌", "starting", Tone.MUTED),
    ServiceState.LOADING: Sign("◔", "loading", Tone.ACCENT),
    ServiceState.READY: Sign("●", "ready", Tone.GOOD),
    ServiceState.BUSY: Sign("◉", "busy", Tone.GOOD),
    ServiceState.STOPPING: Sign("◌", "stopping", Tone.MUTED),
    ServiceState.EXITED: Sign("○", "exited", Tone.MUTED),
    ServiceState.FAILED: Sign("✕", "failed", Tone.BAD),
    ServiceState.STUCK: Sign("▲", "stuck", Tone.BAD),
    ServiceState.UNKNOWN: Sign("?", "unknown", Tone.WARN),
}
FOREIGN = Sign("◇", "foreign", Tone.WARN)

DEPLOYMENT_SIGNS = {
    DeploymentState.DOWN: Sign("○", "down", Tone.MUTED),
    DeploymentState.STARTING: Sign("◌", "starting", Tone.ACCENT),
    DeploymentState.LOADING: Sign("◔", "loading", Tone.ACCENT),
    DeploymentState.SERVING: Sign("●", "serving", Tone.GOOD),
    DeploymentState.DEGRADED: Sign("▲", "degraded", Tone.BAD),
    DeploymentState.BROKEN: Sign("✕", "broken", Tone.BAD),
    DeploymentState.STOPPING: Sign("◌", "stopping", Tone.MUTED),
}

STEP_SIGNS = {
    StepState.WAITING: Sign("·", "", Tone.MUTED),
    StepState.RUNNING: Sign("▸", "running", Tone.ACCENT),
    StepState.DONE: Sign("✓", "done", Tone.GOOD),
    StepState.SKIPPED: Sign("✓", "was so", Tone.MUTED),
    StepState.FAILED: Sign("✕", "failed", Tone.BAD),
    StepState.UNDOING: Sign("↶", "undoing", Tone.WARN),
    StepState.UNDONE: Sign("↶", "undone", Tone.WARN),
}

OPERATION_SIGNS = {
    OperationState.PLANNED: Sign("·", "planned", Tone.MUTED),
    OperationState.RUNNING: Sign("▸", "running", Tone.ACCENT),
    OperationState.DONE: Sign("✓", "done", Tone.GOOD),
    OperationState.FAILED: Sign("✕", "failed, undone", Tone.BAD),
    OperationState.CANCELLED: Sign("↶", "cancelled, undone", Tone.WARN),
    OperationState.REFUSED: Sign("⊘", "refused, nothing was started", Tone.BAD),
}

SEVERITY_SIGNS = {
    Severity.INFO: Sign("·", "info", Tone.MUTED),
    Severity.WARNING: Sign("▲", "warning", Tone.WARN),
    Severity.ERROR: Sign("✕", "error", Tone.BAD),
}

LINK_WORDS = {
    LinkKind.LOOPBACK: "loopback",
    LinkKind.WIRED: "wired",
    LinkKind.WIFI: "wifi",
    LinkKind.VPN: "vpn",
    LinkKind.LINK_LOCAL: "link-local",
    LinkKind.UNKNOWN: "",
    LinkKind.CONTAINER: "container",
}

KIND_WORDS = {
    ServiceKind.WORKER: ("worker", "workers"),
    ServiceKind.COORDINATOR: ("head", "heads"),
    ServiceKind.STAGE: ("stage", "stages"),
    ServiceKind.RELAY: ("relay", "relays"),
    ServiceKind.PROXY: ("proxy", "proxies"),
    ServiceKind.SEEDER: ("seeder", "seeders"),
}


def needs_help(node: Node) -> bool:
    """A node that a person has to do something about."""
    return node.state not in (NodeState.SEEN, NodeState.CONNECTING, NodeState.UP, NodeState.GONE)


def problem_entries(problem: Problem) -> tuple[Entry, ...]:
    """What is wrong, then what to do."""
    sign = SEVERITY_SIGNS[problem.severity]
    what = Paragraph((Span(f"{sign.glyph} ", sign.tone), Span(problem.what, sign.tone)), 2)
    if not problem.remedy:
        return (what,)
    return (what, Paragraph((Span("→ ", Tone.ACCENT), Span(problem.remedy)), 2))


def program_of(foreign: ForeignProcess) -> str:
    """The name of a foreign process's program."""
    argv = foreign.process.argv
    return argv[0].rpartition("/")[2] if argv else "?"
