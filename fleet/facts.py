"""What is written beside a head's pid file, so that any Quarterdeck that comes later knows what runs and why.

The truth about a running fleet lives on its nodes, never in the memory of one cockpit. What is read back from a node
is untrusted: every field is checked, and a field that makes no sense is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from fleet.model import DeviceReads, Node, Share

LIST_LIMIT = 64     # shares or workers in one file: llama.cpp itself takes 16
TEXT_LIMIT = 1024
RECENT = 8          # models
MOST = 1 << 60      # of bytes, layers, tokens: what is larger is nonsense, and breaks sums and divisions


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """A worker that a head uses."""

    node: str
    service: str        # service id; "" for a worker that is not ours
    endpoint: str       # host:port as the head dials it
    pid: int = 0        # of the worker when the head was started; another one by now = the head lost it. 0 = not known


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """What a head serves and how it was planned."""

    model: str = ""
    model_path: str = ""
    context: int | None = None
    workers: tuple[WorkerRef, ...] = ()
    planned: tuple[Share, ...] = ()
    real: tuple[Share, ...] = ()         # as verified when it was brought up
    api_key_file: str = ""               # on the head; the key itself is never written down
    reads: tuple[DeviceReads, ...] = ()  # what each device does for a token, to learn how fast it is
    runtime: str = ""                    # "vllm"; "" = llama.cpp
    recent: tuple[str, ...] = ()         # models that were served before this one, the last one first

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "model": self.model, "model_path": self.model_path, "context": self.context,
            "workers": [asdict(worker) for worker in self.workers],
            "planned": [asdict(share) for share in self.planned],
            "real": [asdict(share) for share in self.real],
            "api_key_file": self.api_key_file,
            "reads": [asdict(part) for part in self.reads],
            "runtime": self.runtime,
            "recent": list(self.recent),
        }


def head_facts(facts: Mapping[str, object]) -> HeadFacts:
    """The facts of a head as a record; what cannot be understood is left out."""
    return HeadFacts(
        model=_text(facts.get("model")),
        model_path=_text(facts.get("model_path")),
        context=_count(facts.get("context")),
        workers=tuple(WorkerRef(_text(w.get("node")), _text(w.get("service")), _text(w.get("endpoint")),
                                _count(w.get("pid")) or 0)
                      for w in _mappings(facts.get("workers"))),
        planned=_shares(facts.get("planned")),
        real=_shares(facts.get("real")),
        api_key_file=_text(facts.get("api_key_file")),
        reads=tuple(DeviceReads(_text(r.get("node")), _text(r.get("device")), _count(r.get("bytes_read")) or 0,
                                _count(r.get("sends_bytes")) or 0) for r in _mappings(facts.get("reads"))),
        runtime=_text(facts.get("runtime")),
        recent=_texts(facts.get("recent")),
    )


def with_workers_of_now(facts: Mapping[str, object], nodes: Mapping[str, Node]) -> dict[str, object]:
    """A head's facts for when it is started again as it was: it connects to the workers that run by now."""
    def now(worker: WorkerRef) -> WorkerRef:
        node = nodes.get(worker.node)
        records = node.reading.services if node and node.reading else ()
        pid = next((record.pid for record in records if record.id == worker.service and record.alive), 0)
        return replace(worker, pid=pid)

    return {**facts, "workers": [asdict(now(worker)) for worker in head_facts(facts).workers]}


def _shares(value: object) -> tuple[Share, ...]:
    return tuple(
        Share(node=_text(s.get("node")), device=_text(s.get("device")), endpoint=_text(s.get("endpoint")),
              fraction=_number(s.get("fraction")), layers=_count(s.get("layers")),
              model_bytes=_count(s.get("model_bytes")), kv_bytes=_count(s.get("kv_bytes")),
              compute_bytes=_count(s.get("compute_bytes")))
        for s in _mappings(value))


def _mappings(value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, list | tuple):
        return []
    return [item for item in value[:LIST_LIMIT] if isinstance(item, Mapping)]


def _text(value: object) -> str:
    return value[:TEXT_LIMIT] if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(item[:TEXT_LIMIT] for item in value[:RECENT] if isinstance(item, str) and item)


def recent_after(facts: HeadFacts, model: str) -> tuple[str, ...]:
    """What was served before, once `model` is served in the place of what these facts tell of."""
    return tuple(dict.fromkeys(name for name in (facts.model, *facts.recent) if name and name != model))[:RECENT]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST
    return float(value) if known else None
