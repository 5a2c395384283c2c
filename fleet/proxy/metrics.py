"""The proxy's figures as Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleet.proxy.hold import Gate
from fleet.proxy.records import Histogram, Records
from fleet.proxy.routing import Routes
from fleet.proxy.upstream import Health

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_COUNTERS = (
    ("tokens", "Tokens written.", "tokens"), ("prompt_tokens", "Tokens of prompts.", "prompt_tokens"),
    ("drafted_tokens", "Tokens that a draft proposed.", "drafted"),
    ("accepted_tokens", "Tokens of a draft that were kept.", "accepted"),
    ("retries", "Requests sent once more to another upstream.", "retried"),
    ("held_seconds", "Seconds that requests waited.", "held_seconds"),
)


def prometheus(records: Records, routes: Routes, gate: Gate) -> bytes:
    """Every figure of the proxy."""
    lines: list[str] = []
    pairs = {key: {"model": key[0], "upstream": key[1]} for key in records.sums}
    _family(lines, "requests_total", "counter", "Requests that have ended, by how.", (
        ({**pairs[key], "state": state}, count)
        for key, sums in records.sums.items() for state, count in sums.by_state.items()))
    for name, words, attribute in _COUNTERS:
        _family(lines, f"{name}_total", "counter", words,
                ((pairs[key], getattr(sums, attribute)) for key, sums in records.sums.items()))
    _histograms(lines, "time_to_first_byte_seconds", "From a request's arrival to the first byte of its answer.",
                ((pairs[key], sums.first_byte) for key, sums in records.sums.items()))
    _histograms(lines, "time_per_token_seconds", "Between two tokens of a streamed answer.",
                ((pairs[key], sums.per_token) for key, sums in records.sums.items()))
    _family(lines, "live_requests", "gauge", "Requests that run or wait.", [({}, len(records.live))])
    _family(lines, "waiting_requests", "gauge", "Requests that wait for an upstream.", [({}, gate.waiting)])
    _family(lines, "waiting_bytes", "gauge", "Bytes of their bodies.", [({}, gate.waiting_bytes)])
    ups = [({"upstream": up.name}, up) for up in routes.upstreams.values()]
    _family(lines, "upstream_running_requests", "gauge", "Requests that run on an upstream.",
            ((labels, up.running) for labels, up in ups))
    _family(lines, "upstream_slots", "gauge", "Requests that an upstream can run at once, where it says.",
            ((labels, up.slots) for labels, up in ups if up.slots is not None))
    _family(lines, "upstream_held", "gauge", "1 where nothing new is admitted.",
            ((labels, int(up.held)) for labels, up in ups))
    _family(lines, "upstream_connections", "gauge", "Open connections.", ((labels, up.pool.open) for labels, up in ups))
    _family(lines, "upstream_state", "gauge", "1 for the state that an upstream is in.", (
        ({**labels, "state": str(state)}, int(up.health.state is state)) for labels, up in ups for state in Health))
    _family(lines, "start_time_seconds", "gauge", "When the proxy started, since the epoch.", [({}, records.started)])
    return ("\n".join(lines) + "\n").encode()


def _family(lines: list[str], name: str, kind: str, words: str,
            samples: Iterable[tuple[Mapping[str, str], float]]) -> None:
    lines += [f"# HELP quarterdeck_proxy_{name} {words}", f"# TYPE quarterdeck_proxy_{name} {kind}"]
    lines += [f"quarterdeck_proxy_{name}{_labels(labels)} {value:g}" if isinstance(value, float)
              and not value.is_integer() else f"quarterdeck_proxy_{name}{_labels(labels)} {int(value)}"
              for labels, value in samples]


def _histograms(lines: list[str], name: str, words: str,
                samples: Iterable[tuple[Mapping[str, str], Histogram]]) -> None:
    full = f"quarterdeck_proxy_{name}"
    lines += [f"# HELP {full} {words}", f"# TYPE {full} histogram"]
    for labels, histogram in samples:
        total = 0
        for end, count in zip((*histogram.ends, None), histogram.counts, strict=True):
            total += count
            bound = "+Inf" if end is None else f"{end:g}"
            lines.append(f"{full}_bucket{_labels({**labels, 'le': bound})} {total}")
        lines.append(f"{full}_sum{_labels(labels)} {histogram.sum:.6f}")
        lines.append(f"{full}_count{_labels(labels)} {total}")


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    text = value.encode("utf-8", "replace").decode()[:200]
    return text.replace("\\", r"\\").replace('"', r'\"').replace("\n", r"\n")
