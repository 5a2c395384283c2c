"""A model on its way to several machines: how far, how fast, who has which pieces, what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from app.present.units import FRESH, UNKNOWN, count, percent, size, span
from app.present.words import Sign, problem_entries
from fleet.model import PeerState, Problem, Severity, Snapshot, Swarm, SwarmPeer
from fleet.text import visible
from widgets.bitfield import MOST_PIECES, Pieces, sets_of
from widgets.entries import Cut, Entry
from widgets.meters import Meter
from widgets.ramp import Graphs
from widgets.row_spec import Column, Row, text_of
from widgets.spans import Keep, Line, Span, Tone, joined, line

COLUMNS = (
    Column("state", "state", 9, 11),
    Column("node", "machine", 7, 18, keep=Keep.BOTH),
    Column("pieces", "pieces", 12, 160, keeps=16, grow=True),
    Column("done", "done", 4, 4, right=True),
    Column("down", "↓ MB/s", 6, 6, right=True),
    Column("up", "↑ MB/s", 6, 6, need=3, right=True),
    Column("left", "left", 6, 8, need=2, right=True),
    Column("trouble", "", 0, 44, need=1, keeps=22, grow=True),
)
EMPTY = (
    line(Span("No model is on its way. A swarm brings one to every", Tone.MUTED)),
    line(Span("machine: the source sends each piece about once, and", Tone.MUTED)),
    line(Span("the machines give the pieces to each other.", Tone.MUTED)),
    (),
    line(Span("In a shell:  ", Tone.MUTED), "quarterdeck swarm distribute MODEL --to NODES"),
)
SIGNS: Mapping[PeerState, Sign] = {
    PeerState.WAITING: Sign("·", "waiting", Tone.MUTED),
    PeerState.CHECKING: Sign("◌", "checking", Tone.MUTED),
    PeerState.PULLING: Sign("◔", "pulling", Tone.ACCENT),
    PeerState.VERIFYING: Sign("◕", "verifying", Tone.ACCENT),
    PeerState.DONE: Sign("✓", "whole", Tone.GOOD),
    PeerState.SEEDING: Sign("●", "seeding", Tone.GOOD),
    PeerState.SENDING: Sign("◔", "by SFTP", Tone.ACCENT),
    PeerState.STOPPED: Sign("‖", "stopped", Tone.WARN),
    PeerState.FAILED: Sign("✕", "failed", Tone.BAD),
}
SOURCE = Sign("◆", "source", Tone.GOOD)
WHOLE = (PeerState.DONE, PeerState.SEEDING)
GIVING = (PeerState.CHECKING, PeerState.PULLING, PeerState.VERIFYING, *WHOLE)   # others can get pieces from them
MOVING = (PeerState.PULLING, PeerState.SENDING, PeerState.VERIFYING, PeerState.CHECKING)
FIELD_TONES = {PeerState.FAILED: Tone.MUTED, PeerState.STOPPED: Tone.MUTED}
THRIFTY = 1.2                  # times the file that a source sends when the machines share well
LONGEST = 160                  # characters of what somebody else said


def chosen(snapshot: Snapshot, id: str) -> Swarm | None:
    """The swarm of that id; else the newest that runs, else the newest."""
    swarms = snapshot.swarms
    if not swarms:
        return None
    running = [swarm for swarm in swarms if swarm.ended is None]
    return next((swarm for swarm in swarms if swarm.id == id), (running or list(swarms))[-1])


def receivers(swarm: Swarm) -> tuple[SwarmPeer, ...]:
    """The machines that the model goes to."""
    return tuple(peer for peer in swarm.peers if not peer.source)


def share(swarm: Swarm) -> float | None:
    """How much of all that has to arrive has arrived; None where nothing has to."""
    whole = swarm.size * len(receivers(swarm))
    return min(moved(swarm) / whole, 1.0) if whole > 0 else None


def moved(swarm: Swarm) -> int:
    """Bytes that have arrived."""
    return sum(min(peer.done_bytes, swarm.size) for peer in receivers(swarm))


def left(swarm: Swarm) -> float | None:
    """Seconds until the last machine has it, by what each says; None where one that pulls does not know."""
    times = [peer.eta for peer in receivers(swarm) if peer.state in (PeerState.PULLING, PeerState.SENDING)]
    known = [eta for eta in times if eta is not None]
    return max(known) if known and len(known) == len(times) else None


def sign_of(swarm: Swarm) -> Sign:
    """How the whole of it stands."""
    peers = receivers(swarm)
    failed = sum(peer.state is PeerState.FAILED for peer in peers)
    if failed:
        return Sign("✕", f"{failed} failed", Tone.BAD)
    if not peers:
        return Sign("●", "seeding", Tone.GOOD)
    if all(peer.state in WHOLE for peer in peers):
        return Sign("✓", "whole on every machine" if len(peers) > 1 else "whole", Tone.GOOD)
    if swarm.ended is not None:
        return Sign("‖", "stopped", Tone.WARN)
    return Sign("◔", "on its way", Tone.ACCENT)


def is_old(swarm: Swarm, snapshot: Snapshot, now: float) -> bool:
    """Whether a swarm that runs was not heard of for a while."""
    return swarm.ended is None and now - swarm.read_at > FRESH * snapshot.refresh


def title(swarm: Swarm | None, snapshot: Snapshot, now: float) -> Line:
    """State, how old that is, name."""
    if swarm is None:
        return ()
    parts: list[Line] = [sign_of(swarm).line]
    if is_old(swarm, snapshot, now):
        parts.append((Span(f"▲ {span(max(now - swarm.read_at, 5))} old", Tone.WARN),))
    elif swarm.ended is None:
        parts.append((Span("live", Tone.MUTED),))
    else:
        parts.append((Span(f"ended {span(now - swarm.ended)} ago", Tone.MUTED),))
    if len(snapshot.swarms) > 1:
        number = [each.id for each in snapshot.swarms].index(swarm.id) + 1
        parts.append((Span(f"{number} of {len(snapshot.swarms)}, ] next", Tone.ACCENT),))
    parts.append((Span(visible(swarm.name, limit=LONGEST), Tone.STRONG),))
    return joined(parts)


def summary(swarm: Swarm | None, snapshot: Snapshot, now: float, *, wide: bool) -> tuple[Entry, ...]:
    """How far it is, how fast it goes, and what it costs the source."""
    if swarm is None:
        return ()
    old = is_old(swarm, snapshot, now)
    tone = Tone.MUTED if old else Tone.PLAIN
    peers = receivers(swarm)
    done = share(swarm)
    running = swarm.ended is None
    speed = sum(peer.down for peer in swarm.peers) if running else 0.0
    eta = left(swarm) if running else None
    whole = sum(peer.state in WHOLE for peer in peers)
    total = size(swarm.size * len(peers))
    first: list[Line] = []
    if done is not None:
        first.append(Meter(round(done, 3), line(Span(f"{floor_percent(done):>4}", Tone.MUTED if old else Tone.STRONG)),
                           Tone.MUTED if old else Tone.BAR, longest=40).drawn(46 if wide else 26))
    if running and peers and whole < len(peers):
        first.append(line(Span(f"{span(eta)} left" if eta is not None else "time left not known", tone)))
        first.append(line(Span(f"{mb(speed)} MB/s", tone), Span(" in all", Tone.MUTED)))
    if done is not None:
        first.append(line(Span(f"{size(moved(swarm))} of {total}", Tone.MUTED)))
    second = [line(Span(f"{whole} of {count(len(peers), 'machine')} whole", tone)) if peers else (),
              _ratio(swarm, tone),
              line(Span(f"{size(swarm.size)} in {swarm.pieces:,} pieces of {size(swarm.piece_size)}", Tone.MUTED))]
    return (Cut(joined(first)), Cut(joined(second))) if first else (Cut(joined(second)),)


def _ratio(swarm: Swarm, tone: Tone) -> Line:
    """What the source has sent, in files: about one is what a swarm is for."""
    if swarm.size <= 0 or not receivers(swarm):
        return ()
    times = swarm.sent_by_source / swarm.size
    word = Span(f"{times:.2f}x", tone if times <= THRIFTY or tone is Tone.MUTED else Tone.WARN)
    return line(Span("source sent ", Tone.MUTED), word, Span(" the file", Tone.MUTED))


def floor_percent(done: float) -> str:
    """A share that says 100% for the whole alone."""
    return percent(1.0) if done >= 1 else f"{min(int(done * 100), 99)}%"


def mb(rate: float) -> str:
    """Bytes a second in millions, in at most six characters."""
    value = max(rate, 0.0) / 1e6
    if value != value:
        return UNKNOWN
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


# -- machines -------------------------------------------------------------------------------------


def peer_sign(peer: SwarmPeer) -> Sign:
    """Where a machine stands; the one that the model came from is called that while it gives."""
    return SOURCE if peer.source and peer.state in WHOLE else SIGNS[peer.state]


def rows(swarm: Swarm | None, graphs: Graphs = Graphs.BLOCKS) -> tuple[Row, ...]:
    """The source first, then as they came."""
    if swarm is None:
        return ()
    return tuple(_row(swarm, peer, graphs) for peer in sorted(swarm.peers, key=lambda peer: not peer.source))


def _row(swarm: Swarm, peer: SwarmPeer, graphs: Graphs) -> Row:
    sign = peer_sign(peer)
    whole = peer.state in WHOLE
    done = 1.0 if whole else min(peer.done_bytes / swarm.size, 0.999) if swarm.size > 0 else 0.0
    tone = Tone.GOOD if whole else FIELD_TONES.get(peer.state, Tone.BAR)
    eta = span(peer.eta) if peer.eta is not None and peer.state in MOVING else UNKNOWN
    name = visible(peer.node, limit=LONGEST)
    return Row(
        peer.node,
        (sign.line, (Span(name, Tone.STRONG),),
         Pieces(None, tone=tone, have=peer.have, pieces=min(swarm.pieces, MOST_PIECES), graphs=graphs),
         line(floor_percent(done)), _rate(peer.down), _rate(peer.up),
         line(Span("soon" if eta == "a moment" else eta, Tone.PLAIN if eta != UNKNOWN else Tone.MUTED)), trouble(peer)),
        order=(sign.word, peer.node, peer.have_count, done, peer.down, peer.up, peer.eta or 0.0,
               peer.problem.what if peer.problem else ""))


def _rate(rate: float) -> Line:
    return line(Span(mb(rate))) if rate >= 50_000 else line(Span(UNKNOWN, Tone.MUTED))


def trouble(peer: SwarmPeer) -> Line:
    """What is wrong with it, in short: its problem, else whom it does not get anything from any more."""
    if peer.problem is not None:
        tone = Tone.BAD if peer.problem.severity is Severity.ERROR else Tone.WARN
        return (Span(visible(peer.problem.what, limit=LONGEST), tone),)
    banned = [flow.source for flow in peer.flows if flow.state == "banned"]
    return (Span(visible(f"banned {', '.join(banned)}", limit=LONGEST), Tone.WARN),) if banned else ()


def fields(swarm: Swarm | None) -> tuple[bytes, ...]:
    """The pieces of every machine that gives some."""
    return tuple(peer.have for peer in swarm.peers if peer.state in GIVING) if swarm is not None else ()


def copies_words(swarm: Swarm | None) -> Line:
    """How rare the rarest pieces are."""
    if swarm is None or swarm.pieces <= 0:
        return ()
    pieces = min(swarm.pieces, MOST_PIECES)
    at_least = sets_of(fields(swarm), pieces)
    none = pieces - at_least[0].bit_count()
    once = at_least[0].bit_count() - at_least[1].bit_count()
    if none:
        return (Span(f"✕ {count(none, 'piece is', 'pieces are')} nowhere", Tone.BAD),)
    if once:
        return (Span(f"▲ {count(once, 'piece', 'pieces')} on 1 machine", Tone.WARN),)
    return (Span("✓ each twice or more", Tone.GOOD),)


# -- what is wrong --------------------------------------------------------------------------------


def troubles(swarm: Swarm | None) -> tuple[Entry, ...]:
    """Who was banned and why, then which machines failed, each with what to do."""
    if swarm is None:
        return ()
    found: list[Problem] = []
    by_source: dict[str, list[int]] = {}
    for ban in swarm.bans:
        by_source.setdefault(ban.source, []).append(ban.piece)
    for source, pieces in list(by_source.items())[:4]:
        by = sorted({ban.node for ban in swarm.bans if ban.source == source})
        named = ", ".join(str(piece) for piece in pieces[:4]) + (" ..." if len(pieces) > 4 else "")
        what = (f"{source} is banned: it sent wrong bytes for {'piece' if len(pieces) == 1 else 'pieces'} {named}, "
                f"noticed by {', '.join(by[:4])}.")
        found.append(Problem("banned", visible(what, limit=400), f"Check the disk and the memory of {visible(source)}, "
                             "then its copy of the model (v)."))
    failed = [peer for peer in receivers(swarm) if peer.state is PeerState.FAILED and peer.problem is not None]
    for peer in failed[:4]:
        problem = peer.problem
        assert problem is not None
        found.append(Problem(problem.code, visible(f"{peer.node}: {problem.what}", limit=400), problem.remedy))
    return tuple(entry for problem in found for entry in problem_entries(problem))


def summary_text(swarm: Swarm, table: tuple[Row, ...]) -> str:
    """All machines as plain text, to be copied."""
    lines = [visible(f"{swarm.name}  {sign_of(swarm).word}  {floor_percent(share(swarm) or 0.0)}")]
    lines += ["  ".join(filter(None, map(text_of, row.cells))) for row in table]
    return "\n".join(lines)
