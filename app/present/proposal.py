"""A proposal as text: one line a device, what a token's time is made of, why, and what would be better. Pure."""

from __future__ import annotations

from textwrap import wrap

from app.output import table
from app.present.units import UNKNOWN, count, size
from fleet.model import Link, LinkKind
from fleet.planning.propose import DevicePlan, Proposal
from fleet.planning.shares import UNKNOWN_ROOM
from fleet.planning.situation import Level
from fleet.text import visible

HEADERS = ("NODE", "DEVICE", "LAYERS", "WEIGHTS", "KV", "COMPUTE", "FREE", "LINK")
RIGHT = frozenset({3, 4, 5, 6})
MS = 1000.0
LEAST_TERM = 0.05              # milliseconds: what rounds to none is not listed


def proposal_lines(proposal: Proposal, columns: int = 80) -> list[str]:
    """The whole answer of `quarterdeck plan`; sentences are wrapped to `columns`."""
    lines = [visible(headline(proposal))]
    if proposal.problem is not None:
        lines += _paragraphs([proposal.problem.what], "", columns)
        lines += _paragraphs([proposal.problem.remedy], "  ", columns)
    if proposal.fits:
        lines += ["", *table(HEADERS, [_row(device) for device in shown(proposal)], right=RIGHT)]
        lines += ["", *_terms(proposal)]
    minds = tuple(str(verdict) for verdict in proposal.verdicts if verdict.level is not Level.OK)
    for title, sentences in (("flags for the network", proposal.flag_reasons), ("why", proposal.sentences),
                             ("better", proposal.suggestions), ("mind", minds)):
        if sentences:
            lines += ["", f"{title}:", *_paragraphs(sentences, "  ", columns)]
    return lines


def headline(proposal: Proposal) -> str:
    """The plan in a line."""
    name = f"{proposal.model} on {proposal.head}, mode {proposal.mode.value}"
    if not proposal.fits:
        return f"{name}: no plan fits"
    speed = f"{_rate(proposal.prediction.tokens_per_second)} tok/s predicted, " if proposal.prediction else ""
    return f"{name}: {speed}context {proposal.context}, {count(proposal.slots, 'slot')}, KV {kv_types(proposal)}"


def kv_types(proposal: Proposal) -> str:
    """The types of K and V; one word where they are one."""
    return proposal.type_k if proposal.type_k == proposal.type_v else f"{proposal.type_k}/{proposal.type_v}"


def shown(proposal: Proposal) -> tuple[DevicePlan, ...]:
    """The devices that are worth a line: all but a head's processor that holds no layer."""
    host = proposal.host
    return (*((host,) if host is not None and host.layers else ()), *proposal.devices)


def layer_range(device: DevicePlan) -> str:
    """Layers as "0-19", with "+out" where the output layer is among them."""
    first, last = device.first_layer, device.last_layer
    if first is None or last is None:
        return "none"
    last -= device.has_output
    layers = "" if last < first else str(first) if last == first else f"{first}-{last}"
    return f"{layers}{'+' if layers else ''}out" if device.has_output else layers


def link_text(link: Link | None, *, measured: bool) -> str:
    """What lies between a device and the head; "~" before what was never measured."""
    if link is None:
        return "in the head"
    kind = "" if link.kind is LinkKind.UNKNOWN else f"{link.kind.value} "
    return f"{kind}{'' if measured else '~'}{link.round_trip * MS:.1f} ms"


def _row(device: DevicePlan) -> tuple[str, ...]:
    name = device.device if device.name in ("", device.device) else f"{device.device} ({device.name})"
    sizes = [size(part) if device.layers else UNKNOWN for part in (device.weights, device.kv, device.compute)]
    free = size(device.free) if device.limit < UNKNOWN_ROOM else UNKNOWN
    return (device.node, name, layer_range(device), *sizes, free,
            link_text(device.link, measured=device.link_measured))


def _terms(proposal: Proposal) -> list[str]:
    """What a token's time is made of."""
    if proposal.prediction is None or not proposal.prediction.terms:
        return []
    rows = []
    for device in shown(proposal):
        if not device.layers:
            continue
        rows.append((f"{device.read_seconds * MS:.1f} ms",
                     f"{device.device} on {device.node} reads at {device.speed.bytes_per_second / 1e9:.0f} GB/s"
                     f"{' (a guess)' if device.speed.guessed else ''}"))
        if device.wait_seconds:
            rows.append((f"{device.wait_seconds * MS:.1f} ms", f"round trip to {device.node}, and work at both ends"))
        if device.send_seconds * MS >= LEAST_TERM:
            rows.append((f"{device.send_seconds * MS:.1f} ms", f"what {device.node} sends back"))
    total = f"{proposal.prediction.seconds_per_token * MS:.1f} ms"
    return [f"a token takes {total}:", *(line for line in table(("", ""), rows, right=frozenset({0}), indent="  ")[1:])]


def _rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second:.1f}" if tokens_per_second < 100 else f"{tokens_per_second:.0f}"


def _paragraphs(sentences: tuple[str, ...] | list[str], indent: str, columns: int) -> list[str]:
    return [line for sentence in sentences if sentence
            for line in wrap(visible(sentence), columns, initial_indent=indent, subsequent_indent=indent,
                             break_on_hyphens=False, break_long_words=False)]
