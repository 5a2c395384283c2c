"""The options of an installed vLLM and Ray, read from their own sources without running or importing them.

    python tests/bench/vllm_flags.py FOLDER                compare with tests/data/vllm/arguments.json
    python tests/bench/vllm_flags.py FOLDER --write        write that file anew

FOLDER is a site-packages, or an unpacked wheel (`pip download --no-deps vllm ray`, then unzip both): no GPU, no torch.
Ends with 1 when an option that Quarterdeck uses is gone.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data" / "vllm" / "arguments.json"
VLLM_FILES = ("vllm/engine/arg_utils.py", "vllm/entrypoints/common/cli_args.py")
RAY_FILE = "ray/scripts/scripts.py"
FRONTEND = ("BaseFrontendArgs", "FrontendArgs")     # their fields become options: host is --host


def main() -> int:
    """Read, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found = read(given.folder)
    if given.write:
        DATA.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return 0
    kept = json.loads(DATA.read_text())
    gone = {f"{program} {name}" for program in ("vllm", "ray")
            for name in set(kept[program]["used"]) - set(found[program]["options"])}
    print(f"vllm {found['vllm']['version']} (kept: {kept['vllm']['version']}), ray {found['ray']['version']} "
          f"(kept: {kept['ray']['version']}): {len(gone)} of the options that are used are gone")
    for name in sorted(gone):
        print(f"  {name}")
    return 1 if gone else 0


def read(folder: Path) -> dict[str, dict[str, object]]:
    """Versions and options of both, and which of them Quarterdeck uses, as its own modules say."""
    from fleet.runtimes.vllm import RAY_OPTIONS, SERVE_OPTIONS, VARIABLES

    options = {name: takes for path in VLLM_FILES for name, takes in _vllm(ast.parse((folder / path).read_text()))}
    environment = (folder / "vllm/envs.py").read_text()
    return {
        "vllm": {"version": _version(folder, "vllm"), "options": options, "used": sorted(SERVE_OPTIONS),
                 "variables": sorted(name for name in VARIABLES if f'"{name}"' in environment)},
        "ray": {"version": _version(folder, "ray"), "options": dict(_ray(ast.parse((folder / RAY_FILE).read_text()))),
                "used": sorted(RAY_OPTIONS)},
    }


def _version(folder: Path, package: str) -> str:
    names = [match[1] for path in folder.iterdir() if (match := re.fullmatch(rf"{package}-(.+)\.dist-info", path.name))]
    return names[0] if names else ""


def _vllm(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            kind = "switch" if _is_switch(node) else "value"
            yield from ((name, kind) for name in _names(node))
        if isinstance(node, ast.ClassDef) and node.name in FRONTEND:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    kind = "switch" if ast.unparse(field.annotation) == "bool" else "value"
                    yield f"--{field.target.id.replace('_', '-')}", kind


def _ray(tree: ast.Module) -> Iterator[tuple[str, str]]:
    start = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "start")
    for call in start.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "click.option":
            yield from ((name, "switch" if _is_switch(call) else "value") for name in _names(call))


def _names(call: ast.Call) -> list[str]:
    return [part for argument in call.args if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            for part in argument.value.split("/") if part.startswith("-")]


def _is_switch(call: ast.Call) -> bool:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg}
    return given.get("is_flag") == "True" or given.get("action", "").startswith("'store_")


if __name__ == "__main__":
    sys.exit(main())
