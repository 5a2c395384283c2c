"""The proxy as one file that a node's own Python 3.11 runs: our modules and the pure-Python packages that they need.

The same bytes from the same sources, named by their hash. Packages are taken as they are installed here, their sources
alone, each with its licence below `licences/`. Nothing compiled goes in: uvicorn reads requests with h11 there, and
PyYAML does without libyaml.
"""

from __future__ import annotations

import ast
import hashlib
import io
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable

from fleet.errors import FleetError

OLDEST = (3, 11)
CARRIED = {"uvicorn": "uvicorn", "h11": "h11", "click": "click", "yaml": "PyYAML"}     # package: distribution
_ROOT = "fleet.proxy.__main__"
_MAIN = f"""\
import sys
if sys.version_info < {OLDEST}:
    sys.exit("python3 is older than {OLDEST[0]}.{OLDEST[1]}")
import os
from {_ROOT} import main
sys.exit(main(sys.argv[1:], os.environ))
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)   # zip's first day: a file's own time would make every build another file
_LICENCES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS")


def build() -> bytes:
    """The zipapp. Stored, not deflated: compressed bytes differ between versions of zlib.

    Raises:
        FleetError: a package that goes in is not installed here with its sources and licence.
    """
    files = {"__main__.py": _MAIN.encode(), **own_sources()}
    for package, distribution in CARRIED.items():
        files.update(_carried(package, distribution))
    files["licences/quarterdeck/LICENSE"] = _own_licence()
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, files[name])
    return buffer.getvalue()


def name(data: bytes) -> str:
    """The file's name on a node: one that is there under this name is this one."""
    return f"quarterdeck-proxy-{hashlib.sha256(data).hexdigest()[:16]}.pyz"


def own_sources() -> dict[str, bytes]:
    """Our modules that the proxy imports, directly or through others, by their path: "fleet/proxy/app.py"."""
    return dict(sorted((module.path, module.source) for module in _closure().values()))


def own_code() -> str:
    """A hash of `own_sources`: whether another installation of Quarterdeck would run the same proxy."""
    digest = hashlib.sha256()
    for path, source in own_sources().items():
        digest.update(f"{path} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def foreign_packages() -> set[str]:
    """Packages beside Python's own that those modules import; `CARRIED` has to hold them all."""
    found = {name.partition(".")[0] for module in _closure().values() for name in module.imports}
    return found - sys.stdlib_module_names - {"fleet"}


class _Module:
    """One of our modules: its file, and what it imports, also inside of functions."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path = path
        self.source = source
        self.imports = tuple(_imports(ast.parse(source)))


def _closure() -> dict[str, _Module]:
    """Every module of ours that `_ROOT` may come to import, by name."""
    here = resources.files("fleet")
    found: dict[str, _Module] = {}
    waiting = [_ROOT]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        source = _read(here, name)
        if source is None:
            continue                          # a name inside of a module
        found[name] = _Module(*source)
        waiting += [imported for imported in found[name].imports if imported.partition(".")[0] == "fleet"]
        if "." in name:
            waiting.append(name.rpartition(".")[0])
    return found


def _read(fleet: Traversable, module: str) -> tuple[str, bytes] | None:
    """A module's path and source; None where there is none of that name."""
    base = module.removeprefix("fleet").replace(".", "/").strip("/")
    for path in (f"{base}/__init__.py".strip("/"), f"{base}.py"):
        file = fleet.joinpath(path)
        if file.is_file():
            return f"fleet/{path}", file.read_bytes()
    return None


def _imports(tree: ast.AST) -> Iterator[str]:
    """Names that a module imports; `from a import b` may mean the module a.b, or a name in a."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            yield from _imports(node)


def _carried(package: str, distribution: str) -> dict[str, bytes]:
    """A package's sources and licences as they are installed here."""
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError as error:
        raise _missing(distribution) from error
    files: dict[str, bytes] = {}
    for entry in installed.files or ():
        if entry.parts[0] == package and entry.suffix == ".py":
            files[entry.as_posix()] = entry.read_binary()
    licences = _licences(distribution, installed)
    if f"{package}/__init__.py" not in files or not licences:
        raise _missing(distribution)
    return {**files, **licences}


def _licences(name: str, installed: metadata.Distribution) -> dict[str, bytes]:
    return {f"licences/{name}-{installed.version}/{entry.name}": entry.read_binary()
            for entry in installed.files or () if entry.parent.parts and entry.parts[0].endswith(".dist-info")
            and (entry.name.upper().startswith(_LICENCES) or "licenses" in entry.parts)}


def _own_licence() -> bytes:
    """From what was installed, or from the sources: which of both is seen first hangs on the working directory."""
    for installed in metadata.distributions(name="quarterdeck"):
        for licence in _licences("quarterdeck", installed).values():
            return licence
    beside = resources.files("fleet").joinpath("../LICENSE")
    if not beside.is_file():
        raise _missing("quarterdeck")
    return beside.read_bytes()


def _missing(distribution: str) -> FleetError:
    return FleetError(f"{distribution} is not installed here with its sources and its licence, so the proxy cannot "
                      "become one file for a node.", f"Install it again (pip install {distribution}).", code="zipapp")
