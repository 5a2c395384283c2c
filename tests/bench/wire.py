"""What the flags of a head cost and save when its workers are behind a network: prompts and tokens, side by side.

    python tests/bench/wire.py [--quick] [--json] [--delays 0,1,5,10] [--workers 1,2] [--rounds N] [--only NAME,...]

Needs root and the lab (see CONTRIBUTING.md), llama.cpp and the demo's model. Every variant has a head and workers of
its own; all are up at the same time and are asked in turns, so that a busy moment hits all of them. Asked are a short
prompt (10 tokens), a long one (2,000), the second turn of that conversation (prompt reuse), and the long prompt again
with its last sentence changed (what a rollback costs). Medians over the rounds; RTT is what the delay makes it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hosts import Load, machine
from servers import Servers, servers

SHORT_TOKENS, LONG_TOKENS, WRITTEN = 10, 2000, 24
OUTPUT_ON_HEAD = ("-ot", "token_embd.weight=CPU")
NO_CHECKPOINTS = ("-ctxcp", "0", "--swa-full")
VARIANTS: dict[str, tuple[str, ...]] = {
    "own": (),                                                          # llama-server's own choice
    "cram": ("-cram", "0"),
    "out": ("-cram", "0", *OUTPUT_ON_HEAD),
    "ckpt": ("-cram", "0", *NO_CHECKPOINTS),
    "ckpt+out": ("-cram", "0", *NO_CHECKPOINTS, *OUTPUT_ON_HEAD),
    "ckpt+out+fa": ("-cram", "0", *NO_CHECKPOINTS, *OUTPUT_ON_HEAD, "-fa", "off"),
    "fa alone": ("-fa", "off"),                                         # a trap
    "no swa-full": ("-cram", "0", "-ctxcp", "0", *OUTPUT_ON_HEAD, "-fa", "off"),   # another
}
WORDS = ["river", "stone", "light", "green", "under", "seven", "window", "often", "paper", "quiet", "garden",
         "small", "bridge", "winter", "mountain", "table", "silver", "morning", "road", "glass", "simple", "orange",
         "letter", "cloud", "wooden", "market", "early", "sound", "ship"]


def text_of(tokens: int, seed: int) -> str:
    """About that many tokens of words that come in another order for every seed: nothing of it is cached."""
    return " ".join(WORDS[(seed * 7919 + i * i * 31 + i * (seed + 3)) % len(WORDS)] for i in range(tokens))


def ask(address: str, prompt: str, written: int) -> dict:
    """One completion's own figures: tokens read and reused, milliseconds, tokens a second."""
    body = json.dumps({"prompt": prompt, "n_predict": written, "temperature": 0, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"http://{address}/completion", body, {"Content-Type": "application/json"})
    begun = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as answer:
        said = json.load(answer)
    timings = said["timings"]
    after_first = max(1, timings["predicted_n"] - 1)
    return {"text": said["content"], "seconds": time.monotonic() - begun, "prompt_ms": timings["prompt_ms"],
            "read": timings["prompt_n"], "reused": timings.get("cache_n", 0),
            "tokens_per_second": after_first / timings["predicted_ms"] * 1000}


def one_round(address: str, seed: int) -> dict[str, float]:
    """The four requests to one head."""
    short = ask(address, text_of(SHORT_TOKENS, seed), WRITTEN)
    long_text = text_of(LONG_TOKENS, seed + 1)
    long = ask(address, long_text, WRITTEN)
    turn = ask(address, f"{long_text}{long['text']} And what came after that?", 2)
    changed = ask(address, f"{long_text} But tell it in another way.", 2)
    return {"short_ms": short["prompt_ms"], "long_ms": long["prompt_ms"], "turn_ms": turn["prompt_ms"],
            "turn_reused": turn["reused"] / max(1, turn["reused"] + turn["read"]), "changed_ms": changed["prompt_ms"],
            "tokens_per_second": short["tokens_per_second"], "tokens_per_second_long": long["tokens_per_second"]}


def measure(made: Servers, variants: dict[str, tuple[str, ...]], workers: int, delays: list[float],
            rounds: int) -> list[dict]:
    """All rows of one number of workers."""
    rows = []
    seed = 0
    with ExitStack() as stack:
        up = {name: stack.enter_context(made.fleet(number, workers, flags))
              for number, (name, flags) in enumerate(variants.items())}
        for name in up:
            ask(up[name], text_of(SHORT_TOKENS, 9), 4)
        for delay in delays:
            made.delay(delay)
            samples: dict[str, list[dict]] = {name: [] for name in up}
            with Load() as load:
                ours = made.processor()
                for _ in range(rounds):
                    for name, address in up.items():
                        seed += 2
                        samples[name].append(one_round(address, seed))
                ours = made.processor() - ours
            for name, taken in samples.items():
                rows.append({"workers": workers, "delay_ms": delay, "variant": name,
                             **{key: round(statistics.median(row[key] for row in taken), 3) for key in taken[0]},
                             "foreign": round(load.foreign(ours), 2)})
        made.delay(0)
    return rows


def show(rows: list[dict]) -> None:
    """The table for people."""
    print(f"{'workers':>7} {'RTT ms':>6}  {'flags':12} {'short ms':>9} {'long ms':>9} {'turn ms':>9} {'reused':>7} "
          f"{'changed ms':>10} {'tok/s':>6} {'(long)':>6}")
    for row in rows:
        print(f"{row['workers']:7} {row['delay_ms']:6g}  {row['variant']:12} {row['short_ms']:9.0f} "
              f"{row['long_ms']:9.0f} {row['turn_ms']:9.0f} {row['turn_reused']:7.0%} {row['changed_ms']:10.0f} "
              f"{row['tokens_per_second']:6.1f} {row['tokens_per_second_long']:6.1f}")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="0 and 5 ms, one worker, one round, no traps")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--delays", default="")
    parser.add_argument("--workers", default="")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--only", default="", help="variants, by name")
    options = parser.parse_args()
    quick = ("own", "cram", "ckpt+out", "ckpt+out+fa")
    wanted = options.only.split(",") if options.only else quick if options.quick else VARIANTS
    variants = {name: VARIANTS[name] for name in wanted}
    delays = [float(part) for part in (options.delays or ("0,5" if options.quick else "0,1,5,10")).split(",")]
    counts = [int(part) for part in (options.workers or ("1" if options.quick else "1,2")).split(",")]
    rows = []
    with servers(max(counts)) as made:
        for workers in counts:
            rows += measure(made, variants, workers, delays, options.rounds or (1 if options.quick else 3))
    if options.json:
        print(json.dumps({"machine": machine(), "rows": rows}))
    else:
        show(rows)
        print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
