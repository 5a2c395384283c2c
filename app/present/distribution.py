"""Where a model could be brought to: rows of the other machines, and the dialog that shows the plan."""

from __future__ import annotations

from collections.abc import Collection

from app.present.dialogs import Dialog
from app.present.units import size
from fleet.events import Distribute
from fleet.model import Node, NodeState, Snapshot
from fleet.models.inventory import Model
from widgets.entries import Fact
from widgets.row_spec import Column, Row
from widgets.spans import Keep, Span, Tone, line

COLUMNS = (
    Column("chosen", "", 1, 1),
    Column("node", "node", 8, 30, keep=Keep.BOTH, grow=True),
    Column("has", "model", 8, 16),
    Column("free", "free", 8, 9, right=True, need=1),
)


def targets(snapshot: Snapshot, model: Model) -> tuple[Node, ...]:
    """Machines that could get it: all of the fleet but the ones that have it whole, unless that is every one."""
    have = set(model.paths)
    return tuple(node for node in snapshot.nodes.values() if node.name not in have
                 and (node.configured or node.state is NodeState.UP))


def rows(snapshot: Snapshot, model: Model, chosen: Collection[str]) -> tuple[Row, ...]:
    """A row for each."""
    partly = {place.node for place in model.places}
    return tuple(Row(node.name, (
        line(Span("✓" if node.name in chosen else " ", Tone.GOOD)),
        line(node.name),
        line(Span("a part of it" if node.name in partly else "up" if node.state is NodeState.UP else node.state.value,
                  Tone.PLAIN if node.state is NodeState.UP else Tone.MUTED)),
        line(size(_free(node))),
    )) for node in targets(snapshot, model))


def _free(node: Node) -> int | None:
    disks = node.reading.disks if node.reading else ()
    return max((disk.free for disk in disks if disk.writable and disk.free is not None), default=None)


def distribute(model: Model, source: str, path: str, to: tuple[str, ...]) -> Dialog:
    """Ask, with the plan, before bytes move."""
    return Dialog(f"Distribute {model.name}?", (
        Fact("from", line(Span(source, Tone.STRONG), f"  {path}")),
        Fact("to", line(Span(", ".join(to), Tone.STRONG))),
        Fact("bytes", line(f"{size(model.size)} to each of {len(to)}; the source sends about {size(model.size)}")),
    ), "Distribute", Distribute(f"{source}:{path}", to), dangerous=False, planned=True)
