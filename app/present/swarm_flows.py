"""Who gives to whom: a row for each machine that receives, a column for each that gives. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from app.present.swarm import LONGEST, mb
from app.present.units import UNKNOWN, size
from fleet.model import Swarm, SwarmFlow
from fleet.text import visible
from widgets.entries import Entry, Paragraph
from widgets.ramp import DENSITY, Graphs, level_of
from widgets.spans import Keep, Line, Span, Tone, cut, fit, joined, line, printable

CELL = 9                       # cells of a column: a shade and a rate
NAME = 11
FLOWING = 50_000.0             # bytes a second: less counts as nothing
STATES = {"banned": ("✕ banned", Tone.BAD), "away": ("away", Tone.MUTED), "useless": ("·", Tone.TRACK)}


def sources_of(swarm: Swarm) -> tuple[str, ...]:
    """Everybody who gave something or was asked, the source of the model first, then by what they gave."""
    given: dict[str, int] = {}
    for peer in swarm.peers:
        for flow in peer.flows:
            given[flow.source] = given.get(flow.source, 0) + flow.received
    first = {peer.node for peer in swarm.peers if peer.source}
    return tuple(sorted(given, key=lambda name: (name not in first, -given[name], name)))


def matrix(swarm: Swarm | None, graphs: Graphs = Graphs.BLOCKS) -> tuple[Entry, ...]:
    """The table of flows, or why there is none."""
    if swarm is None:
        return ()
    sources = sources_of(swarm)
    if not sources:
        return (Paragraph(line(Span("Nothing has gone from machine to machine yet.", Tone.MUTED))),)
    got = tuple((peer.node, peer.flows) for peer in swarm.peers if peer.flows and not peer.source)
    return (Flows(sources, got, graphs),)


@dataclass(frozen=True, slots=True)
class Flows:
    """The table as an entry of a pane: as many givers as fit, the last column holds the others together."""

    sources: tuple[str, ...]
    got: tuple[tuple[str, tuple[SwarmFlow, ...]], ...]       # by receiver
    graphs: Graphs = Graphs.BLOCKS

    def lines(self, width: int) -> tuple[Line, ...]:
        """Names of givers, then a line for each that receives."""
        room = max((width - NAME) // (CELL + 1), 1)
        shown = self.sources if len(self.sources) <= room else self.sources[:max(room - 1, 1)]
        rest = self.sources[len(shown):]
        most = max((flow.received for _, flows in self.got for flow in flows), default=0)
        titles = [_name(name, CELL, right=True) for name in shown] + (["others".rjust(CELL)] if rest else [])
        out: list[Line] = [fit(line(Span(" " * NAME + "".join(f" {name}" for name in titles), Tone.MUTED)), width)]
        for node, flows in self.got:
            by_source = {flow.source: flow for flow in flows}
            cells = [_cell(by_source.get(name), most, self.graphs, own=name == node) for name in shown]
            if rest:
                others = [by_source[name] for name in rest if name in by_source]
                cells.append(_cell(_together(others), most, self.graphs))
            spans = (span for cell in cells for span in (Span(" "), *cell))
            out.append(fit(line(Span(_name(node, NAME), Tone.STRONG), *spans), width))
        return tuple(out)


def _name(text: str, width: int, *, right: bool = False) -> str:
    """A name in exactly `width` cells, wide characters too."""
    shown = cut(visible(text, limit=LONGEST), width if right else width - 1, Keep.BOTH)
    pad = " " * (width - cell_len(printable(shown)))
    return pad + shown if right else shown + pad


def _together(flows: Sequence[SwarmFlow]) -> SwarmFlow | None:
    if not flows:
        return None
    return SwarmFlow("", sum(flow.received for flow in flows), sum(flow.rate for flow in flows))


def _cell(flow: SwarmFlow | None, most: int, graphs: Graphs, *, own: bool = False) -> Line:
    """How much it was, as a shade, and how fast it goes now; exactly CELL cells."""
    if own:
        return (Span(" " * CELL),)
    if flow is None:
        return (Span(f"{'·':>{CELL}}", Tone.TRACK),)
    if flow.state in STATES and (flow.state != "useless" or not flow.received):
        word, tone = STATES[flow.state]
        return (Span(f"{word:>{CELL}}", tone),)
    ramp = DENSITY[Graphs.ASCII if graphs is Graphs.ASCII else Graphs.BLOCKS]
    shade = ramp[level_of(flow.received, most, len(ramp))] * 2
    moving = flow.rate >= FLOWING
    figure = f"{mb(flow.rate) if moving else UNKNOWN:>{CELL - 3}}"
    return (Span(f"{shade} ", Tone.BAR), Span(figure, Tone.PLAIN if moving else Tone.MUTED))


def flow_words(flow: SwarmFlow) -> Line:
    """A flow in words, for the page of a machine."""
    parts: list[Line] = [line(size(flow.received))]
    if flow.rate >= FLOWING:
        parts.append(line(f"{mb(flow.rate)} MB/s"))
    words: Mapping[str, tuple[str, Tone]] = {
        "banned": ("✕ banned", Tone.BAD), "away": ("away", Tone.WARN), "useless": ("has nothing new", Tone.MUTED)}
    if flow.state in words:
        parts.append((Span(*words[flow.state]),))
    if flow.trouble:
        parts.append((Span(visible(flow.trouble, limit=LONGEST), Tone.WARN),))
    return joined(parts)
