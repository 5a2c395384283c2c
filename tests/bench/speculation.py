"""Tokens a second with drafts over without, by the delay of the target's workers and by the way it is done.

    python tests/bench/speculation.py [--quick] [--json] [--delays 0,5,20,50,100] [--draft coarse|short]
                                      [--tightwad-python PATH] [--only lab|standin] [--tokens N] [--rounds N]

(a) In the lab (root, see CONTRIBUTING.md): a real llama-server and gemma-3-270m, split over two RPC workers that are so
far away, each with one thread; the draft model on another node, without a delay. A head has two threads, for it
computes while its workers wait. Each way has a head and workers of its
own with the flags that it is best with (`-fa off`, no checkpoints, the output matrix on the head), all are up at once
and are asked in turns, prompt by prompt; every figure is of real answers, prompts and trials included:

  plain     the head alone, asked directly
  native    the head with the draft model inside, on its own processor; as many tokens as the planner expects to be best
  strided   the proxy, strided rounds of one fixed shape throughout
  injection the proxy, drafts put into the n-gram pool of a head that verifies them by itself, throughout
  auto      what Quarterdeck does: native where `fleet.planning.drafting` expects it to pay by what was measured of
            speeds and links, else the proxy with its controller, which begins anew at each delay, before a head that
            has the pool where `fleet.planning.injection_flags` expects that to pay
  n-gram    the same without any model, on texts that repeat themselves (over plain on the same)

Heads with a pool begin anew at each delay and are each asked by one way alone: the pool would remember the answers.
  tightwad  its proxy (0.5.4), where a Python that has it is named

Passes are counted by `n_decode_total`. (b) A stand-in for a target on a GPU, which is a timer that speaks the protocol
(standin.py): 50 ms a pass, a draft of 5 ms a token that agrees in 80%. It proves what the machine's two cores cannot
show, and nothing about llama.cpp.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent))

import servers as lab_servers
from draft_models import coarse, shorter
from hosts import Load, machine
from servers import Servers, servers

from fleet.planning.drafting import Drafting, native_drafting
from fleet.planning.injection_flags import LONGEST, MATCH, SHORTEST, pool_pays
from fleet.proxy.exchange import ProxySettings, UpstreamSettings
from fleet.proxy.serve import Running, running
from fleet.speculation.choice import Choice, Mode
from fleet.speculation.session import Always
from fleet.speculation.settings import DrafterSettings, SpeculationSettings

WIRE = ("-t", "2", "-cram", "0", "-ctxcp", "0", "--swa-full", "-ot", r"^token_embd\.weight$=CPU", "-fa", "off",
        "--metrics", "--slots")
STRIDED = ("-np", "9", "-kvu", "--no-cache-idle-slots")
POOLED = (*WIRE, *STRIDED, "--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", str(MATCH), "--spec-ngram-mod-n-min",
          str(SHORTEST), "--spec-ngram-mod-n-max", str(LONGEST))
FIXED = {"strided": Choice(Mode.STRIDED, 4, 1, "", "It is fixed."),
         "injection": Choice(Mode.INJECTION, 8, 1, "", "It is fixed.", 0)}
WORKERS = 2
DRAFT = "draft.gguf"
DRAFT_PORT = 8290
PROMPTS = (
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,",
    "The months of the year are January, February, March,",
    "The alphabet: A, B, C, D, E, F,",
    "The states of the USA in alphabetical order are: Alabama, Alaska, Arizona,",
    "The days of the week are Monday, Tuesday,",
    "The multiplication table of seven: 7 x 1 = 7, 7 x 2 = 14, 7 x 3 = 21,",
)
REPEATED = ("The cat sat on the mat and looked at the dog. ", "One potato, two potato, three potato, four. ",
            "Row, row, row your boat, gently down the stream. ")


@dataclass
class Tally:
    """What one way wrote, and in what time."""

    tokens: int = 0
    seconds: float = 0.0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    requests: list[float] = field(default_factory=list)       # tokens a second of each

    @property
    def speed(self) -> float:
        """Tokens a second over all requests."""
        return self.tokens / self.seconds if self.seconds else 0.0


def post(url: str, body: dict, timeout: float = 300) -> dict:
    """The JSON that answers it."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def passes(url: str) -> int:
    """Decode passes of a head so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        line = next(line for line in answer.read().decode().splitlines() if line.startswith("llamacpp:n_decode_total "))
    return int(float(line.split()[1]))


def ask(url: str, head: str, prompt: str, tokens: int, tally: Tally) -> None:
    """One completion, counted by the target's own tokenizer."""
    before, begun = passes(head), time.monotonic()
    said = post(f"{url}/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "model": "any"})
    seconds = time.monotonic() - begun
    # tightwad's own count is one of words.
    written = len(post(f"{head}/tokenize", {"content": said["choices"][0]["text"], "add_special": False})["tokens"])
    told = said.get("usage", {}).get("completion_tokens", written)
    written = told if abs(told - written) <= 2 else written
    timings = said.get("timings") or {}
    tally.tokens += written
    tally.seconds += seconds
    tally.passes += passes(head) - before
    tally.drafted += timings.get("draft_n") or 0
    tally.accepted += timings.get("draft_n_accepted") or 0
    tally.requests.append(written / seconds)


@asynccontextmanager
async def proxy(target: str, drafter: str = "", *, fixed: Choice | None = None, ngram: bool = False
                ) -> AsyncIterator[str]:
    """Our proxy in front of a target, with a controller that knows nothing yet; gives its URL."""
    drafters = (DrafterSettings("draft", drafter),) if drafter else ()
    upstream = UpstreamSettings("head", target, speculation=SpeculationSettings(
        drafters=drafters, ngram=ngram, deadline=10.0, honesty=0.0))
    async with running(ProxySettings(port=0, upstreams=(upstream,), probe_interval=1.0)) as made:
        if fixed is not None:
            session = next(iter(made.proxy.sessions.values()))
            session._steer = lambda abilities, names: Always(fixed)      # one shape, whatever it gives
        async with asyncio.timeout(60):
            await _ready(made)
        yield made.url


async def _ready(made: Running) -> None:
    """Wait until its probes have found the target."""
    while made.proxy.routes.upstreams["head"].health.state != "ready":      # noqa: ASYNC110  it tells of no event
        await asyncio.sleep(0.05)


@contextmanager
def tightwad(python: str, target: str, drafter: str) -> Iterator[str]:
    """Its proxy in front of the same two."""
    with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        # Its own command starts a process and leaves; this is what that process runs.
        run = ("import uvicorn\nfrom tightwad.config import load_proxy_from_env\n"
               "from tightwad.proxy import create_app\n"
               "config = load_proxy_from_env()\n"
               "uvicorn.run(create_app(config), host=config.host, port=config.port, log_level='critical')\n")
        env = {**os.environ, "HOME": home, "TIGHTWAD_HOST": "127.0.0.1", "TIGHTWAD_PORT": str(port),
               "TIGHTWAD_DRAFT_URL": drafter, "TIGHTWAD_DRAFT_BACKEND": "llamacpp", "TIGHTWAD_TARGET_URL": target,
               "TIGHTWAD_TARGET_BACKEND": "llamacpp", "TIGHTWAD_MAX_DRAFT_TOKENS": "8"}
        process = subprocess.Popen([python, "-c", run], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(150):
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2):
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


async def in_turns(ways: dict[str, Callable[[str], None]], prompts: list[str]) -> None:
    """Every prompt to every way, one after another; the order turns, so that a busy moment hits all."""
    names = list(ways)
    for number, prompt in enumerate(prompts):
        for name in names[number % len(names):] + names[:number % len(names)]:
            await asyncio.to_thread(ways[name], prompt)


# ---- (a) the lab ----------------------------------------------------------------------------------------------------


class Lab:
    """Heads that are up, and what is asked of them."""

    def __init__(self, made: Servers, heads: dict[str, str], drafter: str, draft: str, options: argparse.Namespace
                 ) -> None:
        self.made, self.heads, self.drafter, self.draft, self.options = made, heads, drafter, draft, options
        self.rows: list[dict] = []
        self.pool = False

    def delay(self, milliseconds: float) -> None:
        """Of what the workers send; the draft's node has none."""
        from fleetlab import lab

        for node in self.made.nodes[1:WORKERS + 1]:
            lab.link(node, milliseconds)
        time.sleep(0.4)

    def expected(self, delay: float) -> Drafting:
        """What the planner makes of a draft in the head, and of a pool."""
        network = WORKERS * delay / 1000
        plain = _token_seconds(self.heads["plain"]) + network
        self.pool = pool_pays(plain, network)
        return native_drafting(plain, network, _token_seconds(self.drafter))

    async def measure(self, delay: float) -> None:
        """All rows of one delay."""
        with ExitStack() as stack:
            self.delay(0)
            drafting = await asyncio.to_thread(self.expected, delay)
            flags = {"injection": POOLED, "n-gram": POOLED, "native": (
                *WIRE, "-np", "1", "-md", self.draft, "--spec-type", "draft-simple", "--spec-draft-n-max",
                str(drafting.length), "--spec-draft-device", "none")}
            for number, (name, one) in enumerate(flags.items(), len(self.heads)):
                self.heads[name] = f"http://{stack.enter_context(self.made.fleet(number, WORKERS, one))}"
                post(f"{self.heads[name]}/completion", {"prompt": "Warm up with this.", "n_predict": 8})
            self.delay(delay)
            await self._measured(delay, drafting)
            self.delay(0)
        for name in flags:
            del self.heads[name]

    async def _measured(self, delay: float, drafting: Drafting) -> None:
        options, tokens = self.options, self.options.tokens
        prompts = list(PROMPTS[:2 if options.quick else len(PROMPTS)]) * options.rounds
        native = drafting.pays
        tallies = {name: Tally() for name in ("plain", "native", "strided", "injection", "auto", "tightwad")}
        with Load() as load:
            ours = self.made.processor() + time.process_time()
            async with AsyncExitStack() as stack:
                head = self.heads
                at = {"plain": (head["plain"], head["plain"]), "native": (head["native"], head["native"])}
                for name, choice in FIXED.items():
                    fixed = await stack.enter_async_context(proxy(head[name], self.drafter, fixed=choice))
                    at[name] = fixed, head[name]
                chosen = head["native" if native else "n-gram" if self.pool else "strided"]
                at["auto"] = await stack.enter_async_context(proxy(chosen, self.drafter)), chosen
                if options.tightwad_python and not options.quick:
                    other = stack.enter_context(tightwad(options.tightwad_python, head["plain"], self.drafter))
                    at["tightwad"] = (other, head["plain"])
                if options.quick:
                    del at["strided"], at["injection"]

                def way(name: str) -> Callable[[str], None]:
                    return lambda prompt: ask(*at[name], prompt, tokens, tallies[name])

                if options.quick:      # so few tokens would be those of the first trials alone
                    await asyncio.to_thread(ask, *at["auto"], PROMPTS[-1], 64, Tally())
                # By its design it is never faster than the target: a few answers tell how much slower.
                few = {"tightwad": way("tightwad")} if "tightwad" in at else {}
                await in_turns({name: way(name) for name in at if name not in few}, prompts)
                await in_turns(few, prompts[:1] if few else [])
            repeated = await self.repeating(delay)
            ours = self.made.processor() + time.process_time() - ours
        plain = tallies["plain"].speed
        for name, tally in tallies.items():
            if tally.tokens:
                self.rows.append(_row(delay, name, tally, plain, load.foreign(ours)))
        for row in self.rows:
            if row["delay_ms"] == delay and row["way"] == "auto":
                row["took"] = "native" if native else "controller"
                row["why"] = drafting.reason
        self.rows += [row | {"foreign": round(load.foreign(ours), 2), "took": "pool" if self.pool else "controller"}
                      for row in repeated]

    async def repeating(self, delay: float) -> list[dict]:
        """Texts that repeat themselves, drafted by n-grams."""
        if self.options.quick and delay != 50:
            return []
        plain, drafted = Tally(), Tally()
        tokens = self.options.tokens * (1 if self.options.quick else 2)      # a text that repeats itself is a long one
        head, alone = self.heads["n-gram" if self.pool else "strided"], self.heads["plain"]
        async with proxy(head, ngram=True) as url:
            await in_turns({
                "plain": lambda prompt: ask(alone, alone, prompt, tokens, plain),
                "n-gram": lambda prompt: ask(url, head, prompt, tokens, drafted),
            }, [text * 4 for text in REPEATED[:1 if self.options.quick else len(REPEATED)]] * self.options.rounds)
        return [_row(delay, "n-gram", drafted, plain.speed, 0.0)]


def _token_seconds(url: str) -> float:
    """Seconds of a token of a server asked directly, behind its first."""
    said = post(f"{url}/completion", {"prompt": "A short test of", "n_predict": 9, "temperature": 0,
                                      "ignore_eos": True})["timings"]
    return said["predicted_ms"] / 1000 / max(1, said["predicted_n"] - 1)


def _row(delay: float, name: str, tally: Tally, plain: float, foreign: float) -> dict:
    return {"delay_ms": delay, "way": name, "tokens_per_second": round(tally.speed, 2),
            "over_plain": round(tally.speed / plain, 3) if plain else None,
            "tokens_a_pass": round(tally.tokens / max(1, tally.passes), 2), "tokens": tally.tokens,
            "acceptance": round(tally.accepted / tally.drafted, 2) if tally.drafted else None,
            "spread": round(statistics.pstdev(tally.requests) / statistics.mean(tally.requests), 2)
            if len(tally.requests) > 1 else 0.0, "foreign": round(foreign, 2)}


def in_lab(options: argparse.Namespace) -> list[dict]:
    """Part (a)."""
    lab_servers.CONTEXT = 4096
    with servers(WORKERS + 1) as made, ExitStack() as stack:
        draft = made.model_here.with_name(DRAFT)
        if options.draft == "coarse":
            coarse(made.model_here, draft)
        else:
            shorter(made.model_here, draft, {17})
        there = f"{Path(made.model).parent}/{DRAFT}"
        flags = {"plain": (*WIRE, "-np", "1"), "strided": (*WIRE, *STRIDED)}
        node = made.nodes[WORKERS + 1]
        stack.enter_context(made.process(
            node, "llama-server", "-m", there, "--host", node["addr"], "--port", str(DRAFT_PORT), "-c", "4096", "-np",
            "2", "-t", "1", "-ngl", "0", "-cram", "0", "-ctxcp", "0", "--swa-full", "--fit", "off", "-lv", "2"))
        heads = {name: f"http://{stack.enter_context(made.fleet(number, WORKERS, one))}"
                 for number, (name, one) in enumerate(flags.items())}
        drafter = f"{node['addr']}:{DRAFT_PORT}"
        lab_servers._wait_for_health(drafter)
        bench = Lab(made, heads, f"http://{drafter}", there, options)
        for url in (*heads.values(), bench.drafter):
            post(f"{url}/completion", {"prompt": "Warm up with this.", "n_predict": 8})
        for delay in options.delays:
            asyncio.run(bench.measure(delay))
            # As it goes, or an interrupted run would tell nothing.
            show([row for row in bench.rows if row["delay_ms"] == delay], sys.stderr if options.json else sys.stdout)
        bench.delay(0)
        return bench.rows


# ---- (b) the stand-in -----------------------------------------------------------------------------------------------


@contextmanager
def standing_in(*flags: str) -> Iterator[str]:
    """A stand-in; gives its URL."""
    process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("standin.py")), *flags],
                               stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


async def in_stead(options: argparse.Namespace) -> dict:
    """Part (b)."""
    tallies = {name: Tally() for name in ("plain", "fixed", "auto", "tightwad")}
    with standing_in("--pass-ms", "50") as target, \
            standing_in("--pass-ms", "5", "--agree", "0.8", "--draft", "--slots", "4") as drafter, ExitStack() as stack:
        async with proxy(target, drafter) as ours, proxy(target, drafter, fixed=FIXED["strided"]) as fixed:
            at = {"plain": target, "auto": ours} | ({} if options.quick else {"fixed": fixed})
            if options.tightwad_python:
                at["tightwad"] = stack.enter_context(tightwad(options.tightwad_python, target, drafter))

            def way(name: str, tokens: int) -> Callable[[str], None]:
                return lambda prompt: ask(at[name], target, prompt, tokens, tallies[name])

            if options.quick:
                await asyncio.to_thread(ask, ours, target, "tell me of trials", 200, Tally())
            counts = {"plain": 64, "fixed": 200, "auto": 300 if options.quick else 400,
                      "tightwad": 32 if options.quick else 64}
            await in_turns({name: way(name, counts[name]) for name in at},
                           [f"tell me story {number}" for number in range(1 if options.quick else 6)])
    plain = tallies["plain"].speed
    return {name: _row(0, name, tally, plain, 0.0) for name, tally in tallies.items() if tally.tokens}


# ---- figures --------------------------------------------------------------------------------------------------------


def summary(rows: list[dict], stand: dict) -> dict:
    """The figures by which one run is held against another."""
    def over(way: str, delay: float | None = None) -> list[float]:
        return [row["over_plain"] for row in rows if row["way"] == way and delay in (None, row["delay_ms"])]

    found: dict = {"auto_over_plain_min": min(over("auto"), default=None)}
    for delay in sorted({row["delay_ms"] for row in rows}):
        found[f"auto_over_plain_{delay:g}ms"] = next(iter(over("auto", delay)), None)
        best = max((row["over_plain"] for row in rows if row["delay_ms"] == delay
                    and row["way"] in ("plain", "native", "strided", "injection")), default=None)
        auto = next(iter(over("auto", delay)), 0)
        found[f"auto_over_best_fixed_{delay:g}ms"] = round(auto / best, 3) if best else None
    found["ngram_over_plain_50ms"] = next(iter(over("n-gram", 50)), None)
    found["tightwad_over_plain_lab_50ms"] = next(iter(over("tightwad", 50)), None)
    found["standin_over_plain"] = stand.get("auto", {}).get("over_plain")
    found["tightwad_over_plain"] = stand.get("tightwad", {}).get("over_plain")
    return found


def show(rows: list[dict], to: TextIO = sys.stdout) -> None:
    """A table for people."""
    for row in rows:
        accepted = f"{row['acceptance']:.0%} of the head's drafts right" if row["acceptance"] is not None else ""
        print(f"{row['delay_ms']:5g} ms  {row['way']:9} {row['tokens_per_second']:7.1f} tok/s  "
              f"{row['over_plain']:5.2f}x {row['tokens_a_pass']:5.2f} tokens/pass  spread {row['spread']:4.0%}  "
              f"others {row['foreign']:4.0%}  {row.get('took', '')} {accepted}".rstrip(), file=to, flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="0 and 50 ms, few tokens, after a first answer that is not counted; no strided and no "
                        "injection row, tightwad with the stand-in only: a minute and a half")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--delays", default="")
    parser.add_argument("--draft", choices=("coarse", "short"), default="coarse", help="Q2_K, or 17 of 18 layers")
    parser.add_argument("--tightwad-python", default="", help="a Python that has tightwad 0.5.4; else it is left out")
    parser.add_argument("--only", choices=("lab", "standin"), default="")
    parser.add_argument("--tokens", type=int, default=0, help="of each answer")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    options.tokens = options.tokens or (32 if options.quick else 96)
    options.delays = [float(part) for part in (options.delays or ("0,50" if options.quick else "0,5,20,50,100")
                                               ).split(",")]
    if options.tightwad_python and not shutil.which(options.tightwad_python):
        sys.exit(f"There is no {options.tightwad_python}: name a Python that has tightwad 0.5.4, or leave it out.")
    with suppress(OSError):      # as the servers: before everything else that runs here, tightwad's proxy too
        os.setpriority(os.PRIO_PROCESS, 0, int(lab_servers.PRIORITY))
    rows = [] if options.only == "standin" else in_lab(options)
    stand = {} if options.only == "lab" else asyncio.run(in_stead(options))
    found = summary(rows, stand)
    if options.json:
        print(json.dumps({**found, "machine": machine(), "draft": options.draft, "rows": rows, "standin": stand,
                          "tightwad": "measured" if options.tightwad_python else "left out: no Python named"}))
    else:
        print("A stand-in for a GPU target (a timer, no model): 50 ms a pass, draft 5 ms a token, 80% agreement")
        show([row | {"delay_ms": 50} for row in stand.values()])
        print("\n".join(f"{name}: {value}" for name, value in found.items() if value is not None))
        print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
