"""Runs a model with a stock libllama and writes what its routers choose. A program of its own: it may crash.

    python offline_child.py FOLDER MODEL OUT LAYERS EXPERTS TOKENS MOST_MEMORY     the prompt is on stdin

Only functions that libllama and libggml-base export, by ctypes; no header and no compiler. Parameters go by value as
blobs larger than they can be: whoever is called reads its own part. Where the evaluation callback stands in those of a
context, their defaults tell: two null pointers before the types of K and V, both F16. "ok TOKENS", or "none WHY".

MOST_MEMORY bounds what is not a mapped file, so that a second copy of the weights fails instead of filling the machine.
"""

from __future__ import annotations

import ctypes
import glob
import os
import resource
import struct
import sys
import time
from ctypes import c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p

BLOB, CONTEXT, F16 = 1024, 2048, 1
CHOICE = b"ffn_moe_topk-"
MOST_IDS = 1 << 22


class Blob(ctypes.Structure):
    """Parameters that nobody here knows the layout of."""

    _fields_ = [("bytes", ctypes.c_ubyte * BLOB)]


class Batch(ctypes.Structure):
    """llama_batch, as it has been since 2024."""

    _fields_ = [("tokens", c_int32), *((name, c_void_p) for name in ("ids", "embd", "pos", "n_seq", "seq", "logits"))]


class Unable(Exception):
    """Why it cannot be done."""


def library(folder: str, name: str) -> ctypes.CDLL:
    """One of llama.cpp's shared libraries."""
    stem = f"{glob.escape(folder)}/{name}"
    found = sorted(glob.glob(f"{stem}.so*")) or sorted(glob.glob(f"{stem}.dylib"))
    if not found:
        raise Unable(f"there is no {name} in {folder}")
    return ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL)


def function(home: ctypes.CDLL, name: str, result: object, *arguments: object):
    """An exported function with its types."""
    try:
        found = getattr(home, name)
    except AttributeError:
        raise Unable(f"this libllama has no {name}") from None
    found.restype, found.argtypes = result, list(arguments)
    return found


def callback_place(defaults: bytes) -> int:
    """Where the evaluation callback stands in the parameters of a context."""
    places = [at for at in range(0, BLOB - 24, 8) if defaults[at:at + 16] == bytes(16)
              and defaults[at + 16:at + 24] == struct.pack("<II", F16, F16)]
    if len(places) != 1:
        raise Unable("this libllama's parameters are not understood")
    return places[0]


class Run:
    """One model, loaded, and a file that its choices go to."""

    def __init__(self, folder: str, out, layers: int, experts: int) -> None:
        base, ggml, llama = (library(folder, name) for name in ("libggml-base", "libggml", "libllama"))
        self._llama, self._out, self._layers, self._experts = llama, out, layers, experts
        self._name = function(base, "ggml_get_name", c_char_p, c_void_p)
        self._elements = function(base, "ggml_nelements", c_int64, c_void_p)
        self._rows = function(base, "ggml_nrows", c_int64, c_void_p)
        self._bytes = function(base, "ggml_nbytes", c_size_t, c_void_p)
        self._get = function(base, "ggml_backend_tensor_get", None, c_void_p, c_void_p, c_size_t, c_size_t)
        self._callback = ctypes.CFUNCTYPE(c_bool, c_void_p, c_bool, c_void_p)(self._on_tensor)
        self._quiet = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)(lambda *_: None)
        function(llama, "llama_log_set", None, c_void_p, c_void_p)(ctypes.cast(self._quiet, c_void_p), None)
        function(ggml, "ggml_backend_load_all_from_path", None, c_char_p)(os.fsencode(folder))
        function(llama, "llama_backend_init", None)()
        self._decode = function(llama, "llama_decode", c_int32, c_void_p, Batch)
        self._one = function(llama, "llama_batch_get_one", Batch, c_void_p, c_int32)
        out.write(struct.pack("=8s4IQ", b"QDMOETRC", 1, layers, experts, 1, time.time_ns()))

    def load(self, path: str) -> None:
        """Read the model, and make a context that shows us its tensors."""
        llama = self._llama
        model = function(llama, "llama_model_load_from_file", c_void_p, c_char_p, Blob)(
            os.fsencode(path), function(llama, "llama_model_default_params", Blob)())
        if not model:
            raise Unable("it cannot be loaded")
        told = function(llama, "llama_context_default_params", Blob)()
        place = callback_place(bytes(told.bytes))
        ours = struct.pack("<QQ", ctypes.cast(self._callback, c_void_p).value, 0)
        ctypes.memmove(ctypes.addressof(told) + place, ours, len(ours))
        ctypes.memmove(ctypes.addressof(told), struct.pack("<I", CONTEXT), 4)       # its first member: n_ctx
        self._context = function(llama, "llama_init_from_model", c_void_p, c_void_p, Blob)(model, told)
        if not self._context:
            raise Unable("it has no room for a context")
        function(llama, "llama_set_n_threads", None, c_void_p, c_int32, c_int32)(
            self._context, os.cpu_count() or 1, os.cpu_count() or 1)
        self._vocabulary = function(llama, "llama_model_get_vocab", c_void_p, c_void_p)(model)

    def say(self, prompt: bytes, tokens: int) -> int:
        """Read the prompt and go on from there; how many tokens were decoded."""
        llama, ids = self._llama, (c_int32 * CONTEXT)()
        tokenize = function(llama, "llama_tokenize", c_int32, c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool,
                            c_bool)
        count = tokenize(self._vocabulary, prompt, len(prompt), ids, CONTEXT // 2, True, True)
        if count <= 0:
            raise Unable("the prompt is empty, or longer than 1024 tokens")
        chain = function(llama, "llama_sampler_chain_init", c_void_p, c_bool)(False)
        add = function(llama, "llama_sampler_chain_add", None, c_void_p, c_void_p)
        add(chain, function(llama, "llama_sampler_init_temp", c_void_p, c_float)(0.8))
        add(chain, function(llama, "llama_sampler_init_dist", c_void_p, c_uint32)(1))
        sample = function(llama, "llama_sampler_sample", c_int32, c_void_p, c_void_p, c_int32)
        if self._decode(self._context, self._one(ids, count)):
            raise Unable("the prompt cannot be decoded")
        done = 0
        for done in range(1, min(tokens, CONTEXT - count - 1) + 1):
            token = c_int32(sample(chain, self._context, -1))
            if self._decode(self._context, self._one(ctypes.addressof(token), 1)):
                raise Unable(f"decoding failed after {done - 1} tokens")
        return done

    def _on_tensor(self, tensor: int, ask: bool, _user: int) -> bool:
        name = self._name(tensor) or b""
        if not name.startswith(CHOICE):
            return not ask                   # asked: not wanted; shown: go on
        if ask:
            return True
        rows, elements, span = self._rows(tensor), self._elements(tensor), self._bytes(tensor) // 4
        number = name[len(CHOICE):]
        if not number.isdigit() or rows <= 0 or not 0 < elements <= span <= MOST_IDS or int(number) >= self._layers:
            return False
        used, ids = elements // rows, (c_int32 * span)()
        self._get(tensor, ids, 0, 4 * span)
        stride = (span - used) // (rows - 1) if rows > 1 else used
        chosen = [one for row in range(rows) for one in ids[row * stride:row * stride + used]]
        if not all(0 <= one < self._experts for one in chosen):
            return False
        self._out.write(struct.pack(f"=HHI{len(chosen)}H", int(number), used, rows, *chosen))
        return True


def main() -> None:
    folder, model, out, layers, experts, tokens, most = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (int(most), int(most)))
    try:
        with open(out, "wb") as file:
            run = Run(folder, file, int(layers), int(experts))
            run.load(model)
            done = run.say(sys.stdin.buffer.read(1 << 20), int(tokens))
    except (Unable, OSError, MemoryError) as error:
        print("none", str(error) or type(error).__name__, flush=True)
        os._exit(1)                          # what libllama does at an ordinary end is not our business
    print("ok", done, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
