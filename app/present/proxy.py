"""A proxy at a glance: where it is, what goes through it, and the servers behind it. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence

from app.present.units import FRESH, UNKNOWN, count, percent, span
from app.present.words import Sign, problem_entries
from fleet.model import Problem, Proxy, ProxyUpstream, Severity, Snapshot
from fleet.proxy.exchange import ExchangeState
from fleet.proxy.upstream import Health
from fleet.text import visible
from widgets.entries import Cut, Entry
from widgets.meters import Meter
from widgets.row_spec import Column, Row
from widgets.spans import Keep, Line, Span, Tone, fit, joined, line
from widgets.sparkline import nice_top

UPSTREAMS = (
    Column("state", "state", 9, 10),
    Column("name", "server", 6, 20, keep=Keep.BOTH),
    Column("load", "running", 10, 16, need=1),
    Column("models", "models", 8, 40, need=2),
    Column("tokens", "tokens", 6, 7, need=4, right=True),
    Column("asked", "asked", 5, 7, need=5, right=True),
    Column("failed", "failed", 6, 6, need=3, right=True),
    Column("why", "", 0, 70, keeps=34, grow=True),
)
EMPTY = (
    line(Span("No proxy runs. ", Tone.MUTED), "s", Span(" starts one on this machine:", Tone.MUTED)),
    line(Span("one address for all clients, that holds requests", Tone.MUTED)),
    line(Span("while a model is swapped instead of dropping them.", Tone.MUTED)),
    (),
    line(Span("In a shell:      ", Tone.MUTED), "quarterdeck proxy start"),
    line(Span("With the model:  ", Tone.MUTED), "proxy: {enabled: true}", Span(" in fleet.yaml", Tone.MUTED)),
)
EMPTY_READ_ONLY = (line(Span("No proxy runs.", Tone.MUTED)),)
NO_UPSTREAM = (line(Span("No server stands behind it.", Tone.MUTED)),)
HEALTH_SIGNS: Mapping[str, Sign] = {
    Health.UNKNOWN: Sign("?", "unasked", Tone.MUTED),
    Health.READY: Sign("●", "ready", Tone.GOOD),
    Health.LOADING: Sign("◔", "loading", Tone.ACCENT),
    Health.TRIAL: Sign("◐", "on trial", Tone.WARN),
    Health.BROKEN: Sign("✕", "broken", Tone.BAD),
    "lost": Sign("✕", "lost", Tone.BAD),       # ended for good, as the fleet knows
}
DEAD = (Health.BROKEN, "lost")
BUSY = Sign("◉", "busy", Tone.GOOD)
HELD = Sign("‖", "held", Tone.WARN)
LONGEST = 160                  # characters of what a server says of itself
SAMPLES = 600                  # of the history that are looked at
LIVE_TOP = 4.0                 # requests: the least that the scale of the lower chart ends at


def key_of(proxy: Proxy) -> str:
    """What tells one proxy from another."""
    return f"{proxy.node}\0{proxy.service}"


def chosen(snapshot: Snapshot, key: str) -> Proxy | None:
    """The proxy of that key, else the first one."""
    return next((each for each in snapshot.proxies if key_of(each) == key),
                snapshot.proxies[0] if snapshot.proxies else None)


def place(proxy: Proxy, snapshot: Snapshot) -> str:
    """Where it runs."""
    node = snapshot.nodes.get(proxy.node)
    if not proxy.node and not proxy.service:
        return "inside this Quarterdeck"
    return "on this machine" if not proxy.node or (node is not None and node.local) else f"on {proxy.node}"


def is_old(proxy: Proxy, snapshot: Snapshot, now: float) -> bool:
    """Whether what stands there is not what is so now."""
    return proxy.problem is not None or now - proxy.read_at > FRESH * snapshot.refresh


def sign_of(proxy: Proxy, snapshot: Snapshot, now: float) -> Sign:
    """How it is, and how old that is."""
    old = span(max(now - proxy.read_at, 5))
    if proxy.problem is not None:
        return Sign("✕", f"no answer, {old} old", Tone.BAD)
    if is_old(proxy, snapshot, now):
        return Sign("▲", f"{old} old", Tone.WARN)
    if proxy.stopping:
        return Sign("◌", "stopping", Tone.WARN)
    return Sign("●", "live", Tone.GOOD)


def title(proxy: Proxy | None, snapshot: Snapshot, now: float) -> Line:
    """State, address, place, since when."""
    if proxy is None:
        return ()
    parts: list[Line] = [sign_of(proxy, snapshot, now).line, (Span(visible(proxy.url, limit=LONGEST), Tone.STRONG),)]
    if len(snapshot.proxies) > 1:
        number = [key_of(each) for each in snapshot.proxies].index(key_of(proxy)) + 1
        parts.append((Span(f"{number} of {len(snapshot.proxies)}, ] next", Tone.ACCENT),))
    parts.append((Span(place(proxy, snapshot), Tone.MUTED),))
    if proxy.started_epoch:
        parts.append((Span(f"since {at(proxy.started_epoch)}", Tone.MUTED),))
    return joined(parts)


def at(epoch: float) -> str:
    """Time of day; a figure that is no time gives the sign for not known."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(epoch))
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def troubles(proxy: Proxy | None) -> tuple[Entry, ...]:
    """What is wrong with it, worst first, each with what to do."""
    if proxy is None:
        return ()
    found: list[Problem] = [proxy.problem] if proxy.problem is not None else []
    if not found and not proxy.upstreams:
        found.append(Problem("no-upstream", "No server stands behind it: every request is refused.",
                             "Bring a model up (1, then b), or name servers below `proxy: upstreams:` in fleet.yaml.",
                             Severity.WARNING))
    elif not found and all(upstream.health in DEAD for upstream in proxy.upstreams):
        found.append(Problem("all-broken", "No server behind it answers: requests wait for one, and are refused then.",
                             "Their reasons stand below; 1 shows the machines."))
    return tuple(entry for problem in found for entry in problem_entries(problem))


# -- figures --------------------------------------------------------------------------------------


def speeds(proxy: Proxy) -> tuple[float, ...]:
    """Tokens a second over time, oldest first."""
    return tuple(sample.tokens_per_second for sample in proxy.history[-SAMPLES:])


def loads(proxy: Proxy) -> tuple[float, ...]:
    """Requests over time, live and held."""
    return tuple(float(sample.live + sample.waiting) for sample in proxy.history[-SAMPLES:])


def scale(values: Sequence[float], least: float = 1.0) -> tuple[float, tuple[str, str]]:
    """(what the highest column stands for, the words at both ends)."""
    top = nice_top(max((value for value in values if value == value), default=0.0))
    top = max(top, least)
    return top, (f"{number(top):>5}", f"{'0':>5}")


def number(amount: float) -> str:
    """A count in at most five characters: 870, 12.4k, 1.2M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= size * 0.9995:
            return f"{amount / size:.1f}{unit}" if amount < size * 99.95 else f"{amount / size:.0f}{unit}"
    return f"{amount:.0f}" if amount == amount else UNKNOWN


def latency(seconds: float | None) -> str:
    """A wait, in two or three digits."""
    if seconds is None or seconds != seconds or seconds < 0:
        return UNKNOWN
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 0.995:
        return f"{round(seconds * 100) * 10} ms"
    return f"{seconds:.1f} s" if seconds < 99.95 else span(seconds)


def percentile(values: Iterable[float | None], share: float) -> float | None:
    """The value that `share` of them do not exceed (nearest rank)."""
    known = sorted(value for value in values if value is not None and value == value)
    return known[min(max(math.ceil(len(known) * share), 1), len(known)) - 1] if known else None


def figures(proxy: Proxy, *, wide: bool, old: bool) -> tuple[Entry, ...]:
    """Totals: what goes on now, and how it went for the last requests."""
    strong, plain_tone = (Tone.MUTED, Tone.MUTED) if old else (Tone.STRONG, Tone.PLAIN)
    ended = proxy.ended
    now = proxy.history[-1].tokens_per_second if proxy.history else None
    speed = line(Span(f"{now:.1f}" if now is not None else UNKNOWN, strong), Span(" tok/s", plain_tone))
    running = sum(each.state != ExchangeState.HELD for each in proxy.live)
    live = line(Span(str(running), strong), Span(" live", plain_tone))
    held = line(Span(f"{proxy.waiting} held", plain_tone if not proxy.waiting or old else Tone.WARN))
    failed = _failed(proxy, plain_tone)
    waits = [("first byte", [each.to_first_byte for each in ended]), ("a token", [each.per_token for each in ended])]
    rows = [line(Span(f"{name:<11}", Tone.MUTED), *_pair(values, plain_tone)) for name, values in waits]
    if not wide:
        return (Cut(joined((speed, live, held, failed))), Cut(joined(rows, "   ")))
    drafts, cached = _drafts(proxy), _cached(proxy)
    left = (speed, joined((live, held)), line(Span(f"{proxy.total:,} requests", plain_tone)), failed)
    right = (*rows, line(Span(f"{'drafts':<11}", Tone.MUTED), Span(drafts, plain_tone)),
             line(Span(f"{'cached':<11}", Tone.MUTED), Span(cached, plain_tone)))
    return tuple(Cut((*fit(one, 24), Span(" "), *other)) for one, other in zip(left, right, strict=True))


def _pair(values: list[float | None], tone: Tone) -> Line:
    return line(Span("p50 ", Tone.MUTED), Span(f"{latency(percentile(values, 0.5)):>7}", tone),
                Span("  p95 ", Tone.MUTED), Span(f"{latency(percentile(values, 0.95)):>7}", tone))


def _failed(proxy: Proxy, tone: Tone) -> Line:
    failed = sum(each.state == ExchangeState.FAILED for each in proxy.ended)
    refused = sum(each.state == ExchangeState.REFUSED for each in proxy.ended)
    if not proxy.ended:
        return line(Span("none has ended", Tone.MUTED))
    if not failed and not refused:
        return line(Span(f"✓ none of {len(proxy.ended)} failed", Tone.MUTED if tone is Tone.MUTED else Tone.GOOD))
    words = [f"{failed} failed" if failed else "", f"{refused} refused" if refused else ""]
    return line(Span(f"✕ {', '.join(filter(None, words))}",
                     Tone.MUTED if tone is Tone.MUTED else Tone.BAD if failed else Tone.WARN))


def _drafts(proxy: Proxy) -> str:
    requests = (*proxy.ended, *proxy.live)
    drafted, accepted = sum(each.drafted for each in requests), sum(each.accepted for each in requests)
    return f"{percent(accepted / drafted)} of {number(drafted)} accepted" if drafted > 0 else "none"


def _cached(proxy: Proxy) -> str:
    told = [each for each in proxy.ended if each.cached_tokens is not None]
    prompt = sum(each.prompt_tokens for each in told)
    if prompt <= 0:
        return "not told"
    share = min(sum(each.cached_tokens or 0 for each in told) / prompt, 1.0)
    return f"{percent(share)} of {number(prompt)} tokens"


# -- upstreams ------------------------------------------------------------------------------------


def upstream_rows(proxy: Proxy | None) -> tuple[Row, ...]:
    """The servers behind it, as it knows them."""
    return tuple(_upstream(upstream) for upstream in proxy.upstreams) if proxy is not None else ()


def upstream_sign(upstream: ProxyUpstream) -> Sign:
    """Health; that it is held or busy only where it is well."""
    known = HEALTH_SIGNS.get(upstream.health, Sign("?", visible(upstream.health, limit=20), Tone.WARN))
    if upstream.held and upstream.health not in DEAD:
        return HELD
    return BUSY if upstream.busy and upstream.health == Health.READY else known


def _upstream(upstream: ProxyUpstream) -> Row:
    sign = upstream_sign(upstream)
    models = ", ".join(upstream.models) or UNKNOWN
    slots = upstream.slots
    figures_of = f"{f'{upstream.running}/{slots}':>4}" if slots else f"{upstream.running} running"
    share = min(upstream.running / slots, 1.0) if slots else None
    failed = Span(str(upstream.failures), Tone.BAD if upstream.failures else Tone.MUTED)
    return Row(
        upstream.name,
        (sign.line, (Span(visible(upstream.name, limit=LONGEST), Tone.STRONG),),
         Meter(share, line(figures_of), longest=10), (Span(visible(models, limit=LONGEST)),),
         line(number(upstream.tokens)), line(number(upstream.requests)), (failed,), why(upstream)),
        order=(sign.word, upstream.name, upstream.running, models, upstream.tokens, upstream.requests,
               upstream.failures, ""),
        search=f"{upstream.url} {upstream.backend}")


def why(upstream: ProxyUpstream) -> Line:
    """Why it is not simply ready: what it is held for, or the reason that was found."""
    parts: list[Line] = []
    if upstream.held:
        parts.append(progress(upstream.progress))
    if upstream.reason:
        tone = HEALTH_SIGNS[upstream.health].tone if upstream.health in HEALTH_SIGNS else Tone.WARN
        parts.append((Span(visible(upstream.reason, limit=LONGEST), tone),))
    return joined(parts)


def progress(told: Mapping[str, object]) -> Line:
    """What an upstream is held for, in words. The object is free of form: a share, a step, a title are known."""
    words = [visible(str(told[name]), limit=60) for name in ("title", "what", "step", "message", "detail")
             if isinstance(told.get(name), str) and told[name]]
    share = next((told[name] for name in ("progress", "fraction", "share", "done")
                  if isinstance(told.get(name), int | float) and not isinstance(told.get(name), bool)), None)
    out: list[Line] = [line(Span(word, Tone.WARN)) for word in words[:2]]
    if isinstance(share, int | float) and 0 <= share <= 1:
        out.append(line(Span(percent(float(share)), Tone.WARN)))
    left = told.get("retry_after", told.get("seconds"))
    if isinstance(left, int | float) and not isinstance(left, bool) and 0 < left < 1e6:
        out.append(line(Span(f"about {span(float(left))} more", Tone.MUTED)))
    return joined(out) or line(Span("admits nothing for now", Tone.WARN))


def held_words(proxy: Proxy) -> Line:
    """How much waits, and for what."""
    if not proxy.waiting:
        return ()
    names = [upstream.name for upstream in proxy.upstreams if upstream.held] + list(proxy.held_models)
    behind = f" for {visible(', '.join(names), limit=60)}" if names else ""
    return line(Span(f"‖ {count(proxy.waiting, 'request waits', 'requests wait')}{behind}", Tone.WARN))
