"""Everything about one machine of a swarm, and what is asked before a swarm is stopped. Pure."""

from __future__ import annotations

from app.present.swarm import LONGEST, WHOLE, floor_percent, mb, peer_sign, receivers, share
from app.present.swarm_flows import flow_words
from app.present.units import UNKNOWN, count, size, span
from app.present.words import problem_entries
from fleet.model import Swarm, SwarmPeer
from fleet.text import visible
from widgets.bitfield import MOST_PIECES, PieceMap
from widgets.entries import Entry, Fact, Gauge, Heading, Paragraph
from widgets.meters import Meter
from widgets.ramp import DENSITY, Graphs
from widgets.spans import Span, Tone, joined, line

PAGE_MAP, PANE_MAP = 20, 8     # lines of the map of pieces, at most
NAMES = 12                     # machines listed below a heading


def detail(swarm: Swarm | None, node: str, graphs: Graphs = Graphs.BLOCKS, *,
           map_lines: int = PAGE_MAP) -> tuple[Entry, ...]:
    """The page of a machine; `map_lines` is how high the map of its pieces may be."""
    peer = next((peer for peer in swarm.peers if peer.node == node), None) if swarm is not None else None
    if swarm is None or peer is None:
        return (Paragraph(line(Span("This machine is no longer part of the swarm.", Tone.MUTED))),)
    out: list[Entry] = [Heading(visible(peer.node, limit=LONGEST), peer_sign(peer).line)]
    if peer.problem is not None:
        out += [*problem_entries(peer.problem), Paragraph()]
    out += _bans(swarm, peer)
    whole = peer.state in WHOLE
    done = 1.0 if whole else min(peer.done_bytes / swarm.size, 0.999) if swarm.size > 0 else 0.0
    out += [
        Gauge("done", Meter(round(done, 3), line(f"{floor_percent(done):>4}  {size(peer.done_bytes)} of "
                                                 f"{size(swarm.size)}"))),
        Fact("pieces", line(f"{peer.have_count:,} of {swarm.pieces:,}, {size(swarm.piece_size)} each")),
        Fact("speed", line(f"↓ {mb(peer.down)} MB/s  ↑ {mb(peer.up)} MB/s")),
        Fact("left", line(span(peer.eta) if peer.eta is not None else UNKNOWN)),
    ]
    if not whole:
        out += [Paragraph(), Heading("pieces", _legend(graphs)),
                PieceMap(peer.have, min(swarm.pieces, MOST_PIECES), map_lines, Tone.BAR, graphs)]
    return (*out, *_given(swarm, peer))


def _legend(graphs: Graphs) -> tuple[Span, ...]:
    if graphs is Graphs.BRAILLE:
        return (Span("higher: more of them are there", Tone.MUTED),)
    words = ("none", "some", "half", "most", "all")
    return joined(line(Span(f"{glyph} ", Tone.TRACK if word == "none" else Tone.BAR), Span(word, Tone.MUTED))
                  for glyph, word in zip(DENSITY[graphs], words, strict=True))


def _given(swarm: Swarm, peer: SwarmPeer) -> list[Entry]:
    """Whom it gets from and whom it gives to, with a bar for the share."""
    out: list[Entry] = []
    got = sorted(peer.flows, key=lambda flow: -flow.received)
    gave = sorted(((other.node, flow) for other in swarm.peers for flow in other.flows if flow.source == peer.node),
                  key=lambda pair: -pair[1].received)
    for name, pairs in (("gets from", [(flow.source, flow) for flow in got]), ("gives to", gave)):
        whole = sum(flow.received for _, flow in pairs)
        if not pairs:
            continue
        out += [Paragraph(), Heading(name, line(size(whole)))]
        out += [Gauge(visible(other, limit=LONGEST), Meter(flow.received / whole if whole else 0.0, flow_words(flow)),
                      room=16) for other, flow in pairs[:NAMES]]
        if len(pairs) > NAMES:
            out.append(Paragraph(line(Span(f"and {len(pairs) - NAMES} more", Tone.MUTED))))
    return out


def _bans(swarm: Swarm, peer: SwarmPeer) -> list[Entry]:
    about = [ban for ban in swarm.bans if peer.node in (ban.node, ban.source)]
    if not about:
        return []
    out: list[Entry] = []
    for ban in about[:NAMES]:
        what = f"✕ {ban.source} sent wrong bytes for piece {ban.piece} to {ban.node}{': ' + ban.why if ban.why else ''}"
        out.append(Paragraph(line(Span(visible(what, limit=2 * LONGEST), Tone.BAD)), 2))
    return [*out, Paragraph()]


def stop(swarm: Swarm) -> tuple[str, tuple[Entry, ...]]:
    """Before a distribution is stopped half way."""
    waiting = [visible(peer.node, limit=LONGEST) for peer in receivers(swarm) if peer.state not in WHOLE]
    return "Stop this distribution?", (
        Fact("model", line(Span(visible(swarm.name, limit=LONGEST), Tone.STRONG))),
        Fact("so far", line(floor_percent(share(swarm) or 0.0))),
        Fact("not whole", line(", ".join(waiting[:NAMES]) or "none", Span(
            f"  {count(len(waiting), 'machine')}", Tone.MUTED))),
        Paragraph(),
        Paragraph(line("Pieces that have arrived are kept: distributing it again goes on from there.")),
    )
