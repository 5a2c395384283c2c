"""What a dialog says before a proxy is started or ended, or one of its requests is. Pure."""

from __future__ import annotations

from dataclasses import replace

from app.present import dialogs
from app.present.dialogs import Dialog
from app.present.proxy import LONGEST, place
from app.present.proxy_requests import sign_of
from app.present.services import find
from app.present.units import UNKNOWN, count, span
from fleet.events import CancelRequest, StartProxy, StopService
from fleet.model import Proxy, ProxyRequest, Snapshot
from fleet.text import visible
from widgets.entries import Entry, Fact, Paragraph
from widgets.spans import Span, Tone, line


def start(node: str = "") -> Dialog:
    """Before a proxy is started; "" = on this machine."""
    entries = (
        Fact("host", line(Span(node or "this machine", Tone.STRONG))),
        Fact("process", line("quarterdeck's proxy, a process of its own: it outlives the cockpit")),
        Fact("command", line("quarterdeck proxy start", Span("  does the same", Tone.MUTED))),
        Paragraph(),
        Paragraph(line(Span("Address, keys and servers are those of `proxy:` in fleet.yaml; without them it listens on "
                            "this machine alone.", Tone.MUTED))),
    )
    return Dialog("Start the proxy?", entries, "Start", StartProxy(node), dangerous=False)


def can_stop(proxy: Proxy | None) -> bool:
    """One inside this engine ends with it, and not before."""
    return proxy is not None and bool(proxy.service) and not proxy.stopping


def stop(snapshot: Snapshot, proxy: Proxy) -> Dialog:
    """Before a proxy is ended: the process, and whom that hits."""
    selected = find(snapshot, f"{proxy.node}\0{proxy.service}")
    known = dialogs.stop(snapshot, selected) if selected is not None else None
    title = f"Stop the proxy {place(proxy, snapshot)}?"
    if known is None:
        entries: tuple[Entry, ...] = (Fact("host", line(Span(proxy.node or "this machine", Tone.STRONG))),
                                      Fact("process", line(proxy.service)))
        known = Dialog(title, entries, "Stop", StopService(proxy.node, proxy.service))
    address = Fact("address", line(visible(proxy.url, limit=LONGEST)))
    return replace(known, title=title, entries=(*known.entries, address, Paragraph(), *_whom(proxy)))


def _whom(proxy: Proxy) -> tuple[Entry, ...]:
    if not proxy.live:
        quiet = "No request is live. Clients find nothing at its address until it is started again."
        return (Paragraph(line(Span(quiet, Tone.MUTED))),)
    what = f"{count(len(proxy.live), 'live request gets', 'live requests get')} a few seconds to end, then an error."
    return (Paragraph(line(Span("▲ ", Tone.WARN), Span(what, Tone.WARN)), 2),)


def cancel(proxy: Proxy, request: ProxyRequest) -> Dialog:
    """Before a request is ended."""
    who = visible(" ".join(filter(None, (request.caller, request.client))), limit=LONGEST)
    entries = (
        Fact("request", line(Span(visible(request.id, limit=LONGEST), Tone.STRONG))),
        Fact("model", line(visible(request.model, limit=LONGEST) or UNKNOWN)),
        Fact("host", line(visible(request.upstream, limit=LONGEST) or "none yet: it waits")),
        Fact("client", line(who or UNKNOWN)),
        Fact("so far", line(*sign_of(request).line, f"  {span(request.seconds)}, {count(request.tokens, 'token')}")),
        Paragraph(),
        Paragraph(line("Its client gets an error and the end of its stream; the server stops working on it.")),
    )
    return Dialog("End this request?", entries, "End it", CancelRequest(proxy.node, proxy.service, request.id))
