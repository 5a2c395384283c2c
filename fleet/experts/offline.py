"""A routing trace of a model of this machine that nothing serves: run by a stock libllama, in a process of its own.

It needs llama.cpp's shared libraries and nothing else: no compiler, no preloading. Tested with b10068 on x86-64.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from tempfile import TemporaryDirectory

from fleet.errors import OperationFailed
from fleet.experts.layout import Layout
from fleet.experts.trace import MOST_BYTES, read_trace
from fleet.experts.traces import check_model
from fleet.runtimes.binaries import bundled
from fleet.text import visible

PROMPT = "Write down, step by step, how a kitchen is built, what it costs, and who has to be asked first.\n"
MOST_TOKENS = 1500             # of its context of 2048
_TIMEOUT = 3600.0              # seconds: a large model on a slow disk
_SHARE = 4                     # of main memory, the part that may go to what is no mapped file
_LEAST = 2 << 30


def libraries() -> str:
    """The folder with libllama: of the engine extra, or beside the llama-server on PATH.

    Raises:
        OperationFailed: there is none.
    """
    server = shutil.which("llama-server")
    for folder in (bundled() or "", os.path.dirname(os.path.realpath(server)) if server else ""):
        if folder and any(entry.startswith("libllama.") for entry in os.listdir(folder)):
            return folder
    raise OperationFailed("There is no llama.cpp with shared libraries on this machine.",
                          "pip install 'quarterdeck[engine]', or put one on PATH.", code="no-llama")


def trace_offline(path: str, layout: Layout, tokens: int, prompt: str = PROMPT) -> bytes:
    """Run the model on the prompt and what it goes on with, up to so many tokens; the trace as the shim writes them.

    Raises:
        OperationFailed: it cannot be run, or not be traced.
    """
    layers = max(layer.layer for layer in layout.experts.layers) + 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with TemporaryDirectory(prefix="quarterdeck-trace-") as folder, \
            as_file(files("fleet.experts").joinpath("offline_child.py")) as child:
        out = f"{folder}/trace"
        words = [sys.executable, "-I", str(child), libraries(), path, out, str(layers), str(layout.experts.count),
                 str(min(tokens, MOST_TOKENS)), str(max(_LEAST, memory // _SHARE))]
        try:
            done = subprocess.run(words, input=prompt.encode(), capture_output=True, timeout=_TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            raise _failed(path, f"it took more than {_TIMEOUT / 60:.0f} minutes") from None
        said = done.stdout.decode("utf-8", "replace").strip()
        if done.returncode != 0 or not said.startswith("ok "):
            why = said.removeprefix("none ") or f"its process ended with status {done.returncode}"
            raise _failed(path, visible(why)[:300])
        with open(out, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    trace = read_trace(data)
    if not trace.passes:
        raise _failed(path, "this llama.cpp shows no choice of experts")
    check_model(trace, layout.experts)
    return data


def _failed(path: str, why: str) -> OperationFailed:
    return OperationFailed(f"{path} cannot be traced here: {why}.",
                           "Serve it with `experts: {budget: ...}` and record the running head instead.", code="trace")
