"""fleet/node as one file that a node's own python3 runs: the same bytes from the same sources, named by their hash."""

from __future__ import annotations

import hashlib
import io
import zipfile
from importlib import resources

PACKAGE = "quarterdeck_node"
_MAIN = f"""\
import sys
if sys.version_info < (3, 9):
    sys.exit("python3 is older than 3.9")
from {PACKAGE}.command import main
sys.exit(main())
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)   # zip's first day: a file's own time would make every build another file


def build() -> bytes:
    """The zipapp. Stored, not deflated: compressed bytes differ between versions of zlib."""
    sources = {f"{PACKAGE}/{entry.name}": entry.read_bytes()
               for entry in resources.files("fleet.node").iterdir() if entry.name.endswith(".py")}
    sources["__main__.py"] = _MAIN.encode()
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name in sorted(sources):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, sources[name])
    return buffer.getvalue()


def name(data: bytes) -> str:
    """The file's name on a node: one that is there under this name is this one."""
    return f"quarterdeck-node-{hashlib.sha256(data).hexdigest()[:16]}.pyz"
