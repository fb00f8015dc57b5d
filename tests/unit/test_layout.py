"""The layout rules: no screen code below engine/, no torch, vllm or transformers in the app's process."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCREEN = {"streamlit", "plotly"}
HEAVY = {"torch", "vllm", "transformers"}
CHILDREN = {"engine/convert.py", "engine/baseline_child.py"}


def imported(source: str) -> set[str]:
    """Top-level names of everything a module imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def modules(*folders: str) -> list[str]:
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_imports_inside_functions_are_seen() -> None:
    assert imported("def f():\n    import torch.nn as nn\n    from vllm import LLM\n") == {"torch", "vllm"}


@pytest.mark.parametrize("module", modules("engine"))
def test_engine_has_no_screen_code(module: str) -> None:
    assert not imported((ROOT / module).read_text()) & SCREEN


@pytest.mark.parametrize("module", ["app.py", *modules("engine", "components", "pages")])
def test_only_child_processes_import_the_heavy_packages(module: str) -> None:
    if module not in CHILDREN:
        assert not imported((ROOT / module).read_text()) & HEAVY


def test_importing_the_engine_loads_neither_screen_nor_heavy_packages() -> None:
    names = [module.removesuffix(".py").replace("/", ".") for module in modules("engine") if module not in CHILDREN]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(sorted({SCREEN | HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
