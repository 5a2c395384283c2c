"""Installs as TinyTitan's repacker would leave them, a few kilobytes large: the documented form, not a real model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

STRIDE = 16_384


def manifest(listed: dict[str, bytes], *, layers: int = 2, experts: int = 4, used: int = 2, magic: str = "SSDAI",
             **changes: object) -> dict:
    """A manifest over these files; `changes` replace what it says."""
    told = {
        "magic": magic, "versionMajor": 1, "versionMinor": 0, "flags": 0, "modelID": "tiny-moe-4bit",
        "sourceSnapshotHash": "0" * 64, "arch": {"numLayers": layers, "numExperts": experts, "topKExperts": used},
        "quant": {"routedExpert": {"weightBits": 4, "scheme": "affine", "groupSize": 64}},
        "files": {path: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                  for path, data in listed.items()},
        "expertsPerLayer": experts, "numLayers": layers, "expertStride": STRIDE if experts else 0}
    return {**told, **changes}


def layout(layers: int = 2, experts: int = 4) -> dict:
    """Where its experts lie."""
    return {"expertStride": STRIDE, "numLayers": layers, "expertsPerLayer": experts,
            "layers": [{"layer": layer, "file": f"layer_{layer:02d}.bin",
                        "experts": [{"offset": number * STRIDE, "size": STRIDE, "tensors": {}}
                                    for number in range(experts)]} for layer in range(layers)]}


def payload(layers: int = 2, experts: int = 4) -> dict[str, bytes]:
    """Its files, but for manifest and receipt."""
    found = {"model_weights.bin": b"weights" * 100, "tokenizer/tokenizer.json": b"{}"}
    if experts:
        found["packed_experts/layout.json"] = json.dumps(layout(layers, experts)).encode()
    for layer in range(layers if experts else 0):
        found[f"packed_experts/layer_{layer:02d}.bin"] = bytes([layer]) * (STRIDE * experts)
    return found


def install(folder: Path, *, receipt: bool = True, magic: str = "SSDAI", experts: int = 4) -> Path:
    """A whole install in a folder, verified or not."""
    files = payload(experts=experts)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    text = json.dumps(manifest(files, magic=magic, experts=experts)).encode()
    (folder / "manifest.json").write_bytes(text)
    if receipt:
        (folder / "verified-install.json").write_text(json.dumps(receipt_of(folder, files, text)))
    return folder


def receipt_of(folder: Path, files: dict[str, bytes], text: bytes) -> dict:
    """What `--verify-install` writes."""
    entries = {path: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
               for path, data in {**files, "manifest.json": text}.items()}
    return {"schemaVersion": 1, "manifestSha256": hashlib.sha256(text).hexdigest(),
            "modelDirectoryPath": str(folder), "verificationTimestamp": "2026-11-01T10:00:00Z",
            "toolVersion": "5.15", "files": entries}
