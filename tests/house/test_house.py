"""The rules of the house: who imports whom, sizes, words, includes, docstrings, generated files."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import riverrun.ops
from paths import ROOT
from riverrun.graph import OPS
from riverrun.graph.case import op_cases
from riverrun.tools.gen_stub import STUB, generate

IR = ("graph.dtype", "graph.codec", "graph.errors")
EVERYTHING = ("graph", "ops", "backends", "models", "engine", "speculative", "bench")


class May(NamedTuple):
    """What a folder or file may import, besides itself and the standard library."""

    own: tuple[str, ...]
    outside: tuple[str, ...]


# The longest entry that a file lies under counts. Whatever stands in no entry is nobody's to use:
# tools and tests import anything, and nothing imports them.
IMPORTS = {
    "graph": May((), ("numpy",)),
    "ops": May(("graph",), ("numpy",)),
    "backends": May(("graph", "ops"), ("numpy",)),
    "backends/array.py": May(("graph", "ops", "backends"), ("numpy", "cupy")),
    "backends/cpu.py": May(("graph", "ops", "backends", "_cpu"), ("numpy",)),
    "backends/cuda.py": May(("graph", "ops", "backends", "_cuda"), ("numpy",)),
    "backends/cuda_memory.py": May(("graph", "ops", "backends", "_cuda"), ("numpy",)),
    "backends/plugin.py": May(("graph", "backends"), ("cffi",)),
    "models": May(("graph", "ops"), ("numpy", "jinja2")),
    "models/gguf": May(IR, ("numpy", "gguf")),
    "models/quant": May(IR, ("numpy",)),
    "models/tokenizer": May(IR, ("numpy", "tokenizers", "sentencepiece")),
    "engine": May(("graph", "backends", "models"), ("numpy", "jinja2")),
    "engine/constraints": May(("graph", "models"), ("numpy", "llguidance")),
    "speculative": May(("graph", "engine", "models"), ("numpy",)),
    "bench": May(
        ("graph", "engine", "speculative", "models", "backends"), ("numpy", "rich", "ik_llama_cpp")
    ),
    "api/riverrun": May(EVERYTHING, ("numpy",)),
    "tools": May((*EVERYTHING, "api", "_cpu"), ("numpy", "typer", "rich")),
}
PACKAGES = ("api", *EVERYTHING, "tools")
DOCUMENTED = ("graph", "ops", "backends", "models", "engine", "speculative", "api")
SIZED = {".py", ".c", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
WORDY = SIZED | {".md", ".toml", ".sh", ".txt", ".pyi", ".yml", ".yaml", ".json", ""}
SKIPPED = {".git", ".venv", "build", "dist", "__pycache__"}
MOST_LINES = 500
# Spelled in halves, so that this file does not hold them.
BANNED = [a + b for a, b in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("NotImplemented", "Error"))]
PLACES = [f"/{name}/" for name in ("work", "tmp")]
C_HEADERS = {f"{n}.h" for n in ("stdint", "math", "string", "stdio", "float", "stddef")}
C_HEADERS |= {"immintrin.h", "emmintrin.h", "arm_neon.h"}


def files(suffixes: set[str], *folders: str) -> list[Path]:
    """Files of the checkout with these suffixes, under the given folders or anywhere."""
    found: list[Path] = []
    for top in [ROOT / f for f in folders] or [ROOT]:
        for path in sorted(top.rglob("*")):
            parts = path.relative_to(ROOT).parts
            hidden = any(p.startswith(".") and p != ".ci" for p in parts[:-1])
            if hidden or SKIPPED & set(parts) or any(p.endswith(".egg-info") for p in parts):
                continue
            if path.is_file() and path.suffix in suffixes:
                found.append(path)
    return found


def named(paths: list[Path]) -> pytest.MarkDecorator:
    """Parametrize over files, each under its path in the checkout."""
    ids = [p.relative_to(ROOT).as_posix() for p in paths]
    return pytest.mark.parametrize("path", paths, ids=ids)


PYTHON = files({".py"}, *PACKAGES)


def module_of(path: Path) -> list[str]:
    """The parts of the import name of a package file: graph/op.py is riverrun.graph.op."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "api" else ["riverrun", *parts]
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports_of(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Line, module and imported names of every import in a file, wherever it stands."""
    package = module_of(path)
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, []
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield node.lineno, module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).split(".")[-1]
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value, []


def under(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in prefixes)


def allowed(path: Path) -> tuple[tuple[str, ...], May]:
    """The folder's own module and what else it may import."""
    where = path.relative_to(ROOT).as_posix()
    entry = max((k for k in IMPORTS if where == k or where.startswith(f"{k}/")), key=len)
    folder = entry.rsplit("/", 1)[0] if entry.endswith(".py") else entry
    return (folder.replace("api/riverrun", "api").replace("/", "."),), IMPORTS[entry]


def breach(path: Path, module: str, names: list[str]) -> bool:
    """Whether a file may not import this."""
    itself, may = allowed(path)
    top, _, inner = module.partition(".")
    if top != "riverrun":
        return top not in sys.stdlib_module_names and top not in may.outside
    if inner:
        parts = inner.split(".")
        inner = f"api.{inner}" if (ROOT / "api/riverrun" / f"{parts[0]}.py").exists() else inner
        reached = [inner if under(inner, (*itself, *may.own)) else f"{inner}.{n}" for n in names]
        return not all(under(m, (*itself, *may.own)) for m in reached or [inner])
    folders = {p.name for p in ROOT.iterdir() if p.is_dir()} | {"_cpu", "_cuda"}
    reached = [n if n in folders else f"api.{n}" for n in names] or ["api"]
    return not all(under(m, (*itself, *may.own)) for m in reached)


@named(PYTHON)
def test_imports_follow_the_table(path: Path) -> None:
    broken = [(at, m, names) for at, m, names in imports_of(path) if breach(path, m, names)]
    assert not broken


@pytest.mark.parametrize(
    ("file", "line", "wrong"),
    [
        ("graph/op.py", "import riverrun.ops", True),
        ("graph/op.py", "def f():\n    from ..ops import arith", True),
        ("graph/op.py", "from .. import ops", True),
        ("graph/op.py", "import importlib; importlib.import_module('riverrun.backends')", True),
        ("graph/op.py", "import scipy", True),
        ("graph/op.py", "from .spec import TensorSpec\nimport numpy.linalg, os.path", False),
        ("graph/passes/dce.py", "from ..op import Op\nfrom .. import node", False),
        ("backends/base.py", "from .. import _cpu", True),
        ("backends/cpu.py", "from .. import _cpu\nfrom .base import Plan", False),
        ("backends/cpu.py", "from .. import _cuda", True),
        ("models/gguf/reader.py", "from ...graph import DType", True),
        ("models/gguf/reader.py", "from ...graph import dtype\nfrom .scan import scan", False),
        ("models/gguf/reader.py", "from ..hparams import HParams", True),
        ("models/load.py", "from .gguf import reader\nfrom ..graph import Graph", False),
        ("models/load.py", "from ..engine import Model", True),
        ("engine/session.py", "from ..tools import main", True),
        ("engine/session.py", "from .. import load", True),
        ("api/riverrun/__init__.py", "from . import ops\nfrom .compiling import compile", False),
        ("api/riverrun/__init__.py", "from .tools import main", True),
        ("tools/run.py", "from .. import DEMO_MODEL\nimport riverrun", False),
    ],
)
def test_the_import_check_finds_breaches(
    file: str, line: str, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / file
    assert path.exists()
    monkeypatch.setattr(Path, "read_text", lambda self: line)
    assert any(breach(path, m, names) for _, m, names in imports_of(path)) == wrong


def test_every_folder_of_python_is_a_package_of_the_wheel() -> None:
    table = (ROOT / "pyproject.toml").read_text().split("[tool.scikit-build.wheel.packages]")[1]
    listed = dict(re.findall(r'^"riverrun/?(\w*)" = "([\w/]+)"$', table.split("\n[")[0], re.M))
    assert listed == {"": "api/riverrun"} | {p: p for p in PACKAGES if p != "api"}
    assert {p.parent.name for p in ROOT.glob("*/__init__.py")} == set(PACKAGES) - {"api"}


@named(files(SIZED))
def test_files_are_at_most_500_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


@named(files(WORDY))
def test_words_that_no_file_holds(path: Path) -> None:
    text = path.read_text(errors="replace")
    assert [w for w in BANNED if re.search(rf"\b{w}\b", text)] == []
    assert [p for p in PLACES if p in text] == []


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_has_small_cases_under_ids_of_their_own(name: str) -> None:
    ids = [case.id for case in op_cases(OPS[name]) if "perf" not in case.tags]
    assert ids and len(set(ids)) == len(ids)


def test_every_op_stands_in_the_ops_folder() -> None:
    assert {cls.__module__.rsplit(".", 1)[0] for cls in OPS.values()} == {riverrun.ops.__name__}


def kernel_files() -> list[Path]:
    """Everything that is compiled once per instruction set, headers that it includes too."""
    found, waiting = [], files({".cpp", ".hpp"}, "csrc/cpu")
    own = {p.name: p for p in files({".h", ".hpp"}, "csrc")}
    while waiting:
        path = waiting.pop()
        found.append(path)
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            if own[name] not in found + waiting:
                waiting.append(own[name])
    return sorted(found)


@named(kernel_files())
def test_kernels_use_no_library_of_shared_inline_code(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"#include <([^>]+)>", text)) <= C_HEADERS
    assert "std::" not in text


def test_the_op_methods_stub_is_up_to_date() -> None:
    assert (ROOT / STUB).read_text() == generate(), "make stub"


@named(files({".py"}, *DOCUMENTED))
def test_public_names_have_docstrings(path: Path) -> None:
    bare: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None:
            bare.append(node.name)
        if isinstance(node, ast.ClassDef):
            bare += undocumented_methods(path, node)
    assert bare == []


def undocumented_methods(path: Path, node: ast.ClassDef) -> list[str]:
    """Public methods without a docstring of their own or of a base class."""
    cls = getattr(importlib.import_module(".".join(module_of(path))), node.name)
    names = [n.name for n in node.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
    return [f"{node.name}.{n}" for n in names if not inspect.getdoc(getattr(cls, n))]
