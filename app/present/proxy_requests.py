"""The requests of a proxy, one a row, and everything about one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from app.present.proxy import LONGEST, at, latency, number
from app.present.units import UNKNOWN, percent, span
from app.present.words import Sign
from fleet.model import Proxy, ProxyRequest
from fleet.proxy.exchange import ExchangeState
from fleet.text import visible
from widgets.entries import Entry, Fact, Gauge, Heading, Paragraph
from widgets.meters import Meter
from widgets.row_spec import Column, Row
from widgets.spans import Keep, Line, Span, Tone, joined, line
from widgets.split_bar import Part, SplitBar

COLUMNS = (
    Column("state", "state", 9, 11),
    Column("model", "model", 8, 26, keeps=16, keep=Keep.BOTH, grow=True),
    Column("upstream", "server", 6, 14, need=4, keep=Keep.BOTH),
    Column("age", "age", 6, 7, right=True),
    Column("first", "first", 7, 7, need=2, right=True),
    Column("tokens", "tokens", 6, 7, right=True),
    Column("speed", "tok/s", 5, 6, need=3, right=True),
    Column("held", "held", 5, 7, need=7, right=True),
    Column("tries", "tries", 5, 5, need=10, right=True),
    Column("drafts", "drafts", 6, 6, need=9, right=True),
    Column("cached", "cached", 6, 6, need=8, right=True),
    Column("trouble", "", 0, 34, keeps=18, need=1, grow=True),
    Column("who", "client", 6, 18, need=5, keep=Keep.END),
    Column("id", "id", 4, 16, need=11, keep=Keep.END),
)
NONE = (line(Span("No request yet. Clients point at the address above; ", Tone.MUTED), "y",
             Span(" copies it.", Tone.MUTED)),)
SIGNS: Mapping[str, Sign] = {
    ExchangeState.ARRIVED: Sign("◌", "arrived", Tone.MUTED),
    ExchangeState.HELD: Sign("‖", "held", Tone.WARN),
    ExchangeState.WAITING: Sign("◔", "prompt", Tone.ACCENT),
    ExchangeState.ANSWERING: Sign("●", "answers", Tone.GOOD),
    ExchangeState.DONE: Sign("✓", "done", Tone.MUTED),
    ExchangeState.FAILED: Sign("✕", "failed", Tone.BAD),
    ExchangeState.CANCELLED: Sign("↶", "cancelled", Tone.WARN),
    ExchangeState.REFUSED: Sign("⊘", "refused", Tone.WARN),
}
PHASES = (("held", "░", Tone.WARN), ("to the first byte", "▒", Tone.ACCENT), ("answer", "█", Tone.BAR))
ENDED = 200                    # rows at most of those that have ended


def sign_of(request: ProxyRequest) -> Sign:
    """Where it is."""
    return SIGNS.get(request.state, Sign("?", visible(request.state, limit=20), Tone.WARN))


def ordered(proxy: Proxy) -> tuple[ProxyRequest, ...]:
    """Live ones first, the oldest first; then those that ended, the newest first."""
    live = {request.id for request in proxy.live}
    ended = [request for request in reversed(proxy.ended[-ENDED:]) if request.id not in live]
    return (*proxy.live, *ended)


def find(proxy: Proxy | None, id: str) -> ProxyRequest | None:
    """The request of a row, if it is still told of."""
    return next((request for request in ordered(proxy) if request.id == id), None) if proxy is not None else None


def is_live(proxy: Proxy | None, id: str) -> bool:
    """Whether there is something to end."""
    return proxy is not None and any(request.id == id for request in proxy.live)


def rows(proxy: Proxy | None) -> tuple[Row, ...]:
    """Every request that is told of."""
    if proxy is None:
        return ()
    live = {request.id for request in proxy.live}
    return tuple(_row(request, request.id in live) for request in ordered(proxy))


@lru_cache(maxsize=4096)
def _row(request: ProxyRequest, live: bool) -> Row:
    """Cached: of hundreds that have ended, none changes any more."""
    sign = sign_of(request)
    tone = Tone.PLAIN if live else Tone.MUTED
    speed = speed_of(request)
    who = request.caller or request.client
    cells = (
        sign.line,
        (Span(visible(request.model, limit=LONGEST) or UNKNOWN, Tone.STRONG if live else Tone.PLAIN),),
        (Span(visible(request.upstream, limit=LONGEST) or UNKNOWN, tone),),
        (Span(_so_far(request.seconds) if live else latency(request.seconds), tone),),
        (Span(latency(request.to_first_byte), tone),),
        (Span(number(request.tokens) if request.tokens else UNKNOWN, tone),),
        (Span(_speed(speed), tone),),
        (Span(latency(request.held) if request.held >= 0.05 else UNKNOWN, Tone.WARN if live and request.held >= 1 else
              Tone.MUTED),),
        (Span(str(request.retried + 1) if request.retried else UNKNOWN, Tone.WARN if request.retried else Tone.MUTED),),
        (Span(percent(request.accepted / request.drafted) if request.drafted > 0 else UNKNOWN, tone),),
        (Span(_cached(request), tone),),
        trouble(request),
        (Span(visible(who, limit=LONGEST) or UNKNOWN, Tone.MUTED),),
        (Span(visible(request.id, limit=LONGEST), Tone.MUTED),),
    )
    order = (sign.word, request.model, request.upstream, request.seconds, request.to_first_byte or 0.0, request.tokens,
             speed or 0.0, request.held, request.retried, _share(request.accepted, request.drafted),
             _share(request.cached_tokens or 0, request.prompt_tokens), request.problem, who, request.id)
    more = (request.kind, request.client, request.caller, request.status, request.problem)
    return Row(request.id, cells, order=order, search=" ".join(map(str, more)))


def _so_far(seconds: float) -> str:
    """Coarse: fifty of them count on at once."""
    return span(seconds) if seconds >= 5 else "<5 s"


def _share(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0


def trouble(request: ProxyRequest) -> Line:
    """What went wrong, in the words of its code."""
    if not request.problem:
        return ()
    return (Span(_words(request.problem), Tone.WARN if request.state == ExchangeState.DONE else Tone.PLAIN),)


def _words(code: str) -> str:
    """A code as words; what the proxy calls an upstream is a server here."""
    return visible(code, limit=LONGEST).replace("_", " ").replace("upstream", "server")


def speed_of(request: ProxyRequest) -> float | None:
    """Tokens a second from the first byte on; as the proxy measured it where it tells."""
    if request.per_token is not None and request.per_token > 0:
        return 1 / request.per_token
    if request.tokens < 2 or request.to_first_byte is None:
        return None
    took = request.seconds - request.to_first_byte
    return request.tokens / took if took > 0 else None


def _speed(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if value < 99.95 else number(value)


def _cached(request: ProxyRequest) -> str:
    if request.cached_tokens is None or request.prompt_tokens <= 0:
        return UNKNOWN
    return percent(min(request.cached_tokens / request.prompt_tokens, 1.0))


def detail(proxy: Proxy | None, id: str) -> tuple[Entry, ...]:
    """Everything about a request."""
    request = find(proxy, id)
    if request is None or proxy is None:
        return (Paragraph(line(Span("This request is no longer among those that the proxy remembers.", Tone.MUTED))),)
    live = is_live(proxy, id)
    sign = sign_of(request)
    out: list[Entry] = [Heading(f"request {visible(request.id, limit=LONGEST)}", sign.line)]
    if request.problem:
        status = f", the client got status {request.status}" if request.status else ""
        out += [Paragraph(line(Span(f"{sign.glyph} {_words(request.problem)}{status}", sign.tone)), 2), Paragraph()]
    out += [
        Fact("model", line(Span(visible(request.model, limit=LONGEST) or UNKNOWN, Tone.STRONG))),
        Fact("server", line(visible(request.upstream, limit=LONGEST) or "none yet")),
        Fact("asked by", joined((line(visible(request.caller, limit=LONGEST)),
                                 line(Span(visible(request.client, limit=LONGEST), Tone.MUTED)))) or line(UNKNOWN)),
        Fact("API", line(visible(request.kind, limit=LONGEST), Span(", streamed" if request.streaming else ", in one",
                                                                   Tone.MUTED))),
        Fact("began", line(at(request.started_epoch) if request.started_epoch else UNKNOWN)),
        Fact("status", line(str(request.status) if request.status else UNKNOWN)),
        Paragraph(), Heading("time", line(span(request.seconds) if live else latency(request.seconds))),
    ]
    out += _times(request)
    out += [Paragraph(), Heading("tokens"),
            Fact("written", line(f"{request.tokens:,}", Span(f"  {_speed(speed_of(request))} tok/s", Tone.MUTED))),
            Fact("prompt", line(f"{request.prompt_tokens:,}" if request.prompt_tokens else UNKNOWN))]
    if request.cached_tokens is not None and request.prompt_tokens > 0:
        share = min(request.cached_tokens / request.prompt_tokens, 1.0)
        out.append(Gauge("cached", Meter(share, line(f"{percent(share)} of the prompt was not computed again"))))
    if request.drafted > 0:
        share = min(request.accepted / request.drafted, 1.0)
        out.append(Gauge("drafts", Meter(share, line(f"{request.accepted:,} of {request.drafted:,} accepted"))))
    if request.repairs:
        said = ", ".join(visible(repair, limit=40).replace("_", " ") for repair in request.repairs[:12])
        out += [Paragraph(), Fact("repaired", line(said))]
    return tuple(out)


def _times(request: ProxyRequest) -> list[Entry]:
    """What the time went into, in one bar and in figures."""
    first = request.to_first_byte
    held = min(request.held, request.seconds)
    until = request.seconds if first is None else min(max(first, held), request.seconds)
    spent = (held, until - held, request.seconds - until)
    bar = SplitBar(None, whole=max(request.seconds, 1e-9), longest=60, parts=tuple(
        Part(took, glyph, tone) for took, (_, glyph, tone) in zip(spent, PHASES, strict=True)))
    named = joined((line(Span(f"{glyph} ", tone), Span(f"{name} ", Tone.MUTED), latency(took))
                    for took, (name, glyph, tone) in zip(spent, PHASES, strict=True) if took >= 0.0005), "   ")
    out: list[Entry] = [Gauge("went into", bar), Fact("", named)]
    if request.retried:
        tries = f"{request.retried + 1}: the first {request.retried} met a server that did not answer"
        out.append(Fact("tries", line(Span(tries, Tone.WARN))))
    return out
