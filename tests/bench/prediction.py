"""Is a token as fast as was predicted? A model over workers behind a delayed network, against `fleet.planning.timing`.

    python tests/bench/prediction.py [--quick] [--json] [--delays 0,1,5] [--rounds N]

Needs root and the lab, llama.cpp and the demo's model. In every round the head alone is measured too: what it reads a
second is the processor's speed of that moment, learned as the engine learns it from a head that serves. Links are
measured as before a bring-up. A figure is the median time between two tokens of a stream; ratios are taken within a
round and their median is held against the limit. Rounds in which others used the machine are left out where enough
quiet ones are left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hosts import Load, machine
from servers import Servers, servers
from wire import OUTPUT_ON_HEAD, VARIANTS, text_of

from fleet.model import DeviceReads, Link, Node, Snapshot
from fleet.models.gguf import GgufHeader, read_header
from fleet.planning.observed import observe
from fleet.planning.split import layer_map
from fleet.planning.timing import Part, Speed, predict, read_bytes

LIMIT = 0.25         # of what is measured
WRITTEN = 48
QUIET = 0.35         # of the machine, used by others
FEWEST = 3           # rounds


@dataclass(frozen=True, slots=True)
class Case:
    """One way to serve the model."""

    name: str
    workers: int
    flags: tuple[str, ...] = ()

    @property
    def output_on_head(self) -> bool:
        """Whether its logits cross no wire."""
        return OUTPUT_ON_HEAD[1] in self.flags or not self.workers


ALONE = Case("head alone", 0)
CASES = (ALONE, Case("1 worker", 1, VARIANTS["ckpt+out"]), Case("2 workers", 2, VARIANTS["ckpt+out"]))
LOGITS = Case("1 worker, logits over the wire", 1, VARIANTS["ckpt"])


def seconds_per_token(address: str, seed: int) -> float:
    """Median time between two tokens of a stream."""
    body = json.dumps({"prompt": text_of(10, seed), "n_predict": WRITTEN, "temperature": 0, "ignore_eos": True,
                       "stream": True}).encode()
    request = urllib.request.Request(f"http://{address}/completion", body, {"Content-Type": "application/json"})
    times = []
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.startswith(b"data:") and b'"stop":true' not in line:
                times.append(time.monotonic())
    return statistics.median(after - before for before, after in pairwise(times[2:]))


def reads_of(header: GgufHeader, case: Case, nodes: list[dict]) -> list[DeviceReads]:
    """What each device does for a token: `-ts 1,1` as llama.cpp deals it."""
    vocabulary, width = header.n_vocab or 0, header.number("{arch}.embedding_length") or 0
    output = read_bytes(header, header.n_layers)
    if not case.workers:
        whole = sum(read_bytes(header, layer) for layer in range(header.n_layers + 1))
        return [DeviceReads(nodes[0]["name"], "CPU", whole)]
    dealt = layer_map(header.n_layers, (1.0,) * case.workers, header.n_layers + 1)
    found = [DeviceReads(nodes[0]["name"], "CPU", output if case.output_on_head else 0)]
    for number, node in enumerate(nodes[1:case.workers + 1]):
        layers = [layer for layer, device in enumerate(dealt) if device == number and layer < header.n_layers]
        last = dealt[-1] == number and not case.output_on_head
        found.append(DeviceReads(node["name"], "CPU", sum(read_bytes(header, layer) for layer in layers)
                                 + (output if last else 0), 4 * (vocabulary if last else width)))
    return found


def predicted(reads: list[DeviceReads], speed: float, links: dict[str, Link]) -> float:
    """Tokens a second, every processor being as fast as the head's: they are one."""
    return predict([Part(part.node, part.device, part.bytes_read, part.sends_bytes, Speed(speed, "observed"),
                         links.get(part.node)) for part in reads]).tokens_per_second


def learned(header: GgufHeader, made: Servers, seconds: float) -> float:
    """What the engine would take the processor's speed for, after a head alone has written at that pace."""
    name = made.nodes[0]["name"]
    snapshot = Snapshot(nodes={name: Node(name)})
    found = observe(snapshot, name, reads_of(header, ALONE, made.nodes), 100, 100 * seconds, 0.0)
    return found[name]["CPU"].bytes_per_second


def measure(made: Servers, delays: list[float], rounds: int, cases: tuple[Case, ...]) -> list[dict]:
    """A row for each delay and case."""
    header = header_of(made.model_here)
    rows = []
    with ExitStack() as stack:
        up = {case: stack.enter_context(made.fleet(number, case.workers, case.flags))
              for number, case in enumerate(cases)}
        for address in up.values():
            seconds_per_token(address, 3)
        seed = 0
        for delay in delays:
            made.delay(delay)
            links = {}
            for node in made.nodes[1:]:
                way = made.way(node)
                if way.why:
                    sys.exit(f"the link to {node['name']} cannot be measured: {way.why}")
                links[node["name"]] = Link(way.round_trip, way.bytes_per_second)
            taken = []
            for _ in range(rounds):
                with Load() as load:
                    ours = made.processor()
                    seed += 1
                    seconds = {case: seconds_per_token(address, seed) for case, address in up.items()}
                    ours = made.processor() - ours
                taken.append((load.foreign(ours), seconds))
            quiet = [row for row in taken if row[0] <= QUIET]
            kept = quiet if len(quiet) >= min(FEWEST, rounds) else sorted(taken, key=lambda row: row[0])[:FEWEST]
            for case in cases[1:]:
                reads = reads_of(header, case, made.nodes)
                pairs = [(predicted(reads, learned(header, made, seconds[ALONE]), links), 1 / seconds[case])
                         for _, seconds in kept]
                rows.append({
                    "delay_ms": delay, "case": case.name, "rounds": len(kept),
                    "foreign": round(statistics.median(foreign for foreign, _ in kept), 2),
                    "round_trip_ms": round(max(link.round_trip for link in links.values()) * 1000, 2),
                    "alone": round(statistics.median(1 / seconds[ALONE] for _, seconds in kept), 1),
                    "predicted": round(statistics.median(pair[0] for pair in pairs), 1),
                    "measured": round(statistics.median(pair[1] for pair in pairs), 1),
                    "ratio": round(statistics.median(pair[0] / pair[1] for pair in pairs), 3)})
    return rows


def header_of(path: Path) -> GgufHeader:
    """The header of a file here."""
    async def read(offset: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    return asyncio.run(read_header(read, path.stat().st_size))


def main() -> int:
    """Measure, print, and end with 1 when a prediction is too far from what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9, no logits over the wire")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--delays", default="0,1,5")
    parser.add_argument("--rounds", type=int, default=0)
    options = parser.parse_args()
    cases = CASES if options.quick else (*CASES, LOGITS)
    with servers(2) as made:
        rows = measure(made, [float(part) for part in options.delays.split(",")],
                       options.rounds or (3 if options.quick else 9), cases)
    far = [row for row in rows if row["case"] != LOGITS.name and not abs(row["ratio"] - 1) <= LIMIT]
    if options.json:
        print(json.dumps({"machine": machine(), "limit": LIMIT, "rows": rows, "within": not far}))
    else:
        for row in rows:
            print(f"{row['delay_ms']:4g} ms, {row['case']:31}: predicted {row['predicted']:5.1f}, measured "
                  f"{row['measured']:5.1f} tokens/s, ratio {row['ratio']:.2f} (alone {row['alone']:.1f}, round trip "
                  f"{row['round_trip_ms']} ms, {row['rounds']} rounds, others {row['foreign']:.0%})")
        print(machine())
    return int(bool(far))


if __name__ == "__main__":
    sys.exit(main())
