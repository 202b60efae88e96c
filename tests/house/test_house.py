"""The rules of the house: who imports whom, sizes, words, includes, docstrings, generated files."""

from __future__ import annotations

import ast
import graphlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import riverrun.ops
from paths import ROOT
from riverrun.graph import OPS
from riverrun.graph.case import op_cases
from riverrun.tools.gen_stub import STUB, generate

IR = ("graph.dtype", "graph.codec", "graph.errors", "graph.unread_types")
EVERYTHING = ("graph", "ops", "backends", "models", "engine", "speculative", "server", "bench")


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
    "backends/cpu_blocks.py": May(("graph", "backends", "_cpu"), ("numpy",)),
    "backends/cuda.py": May(("graph", "ops", "backends", "_cuda"), ("numpy",)),
    "backends/cuda_kept.py": May(("graph", "ops", "backends", "_cuda"), ("numpy",)),
    "backends/cuda_memory.py": May(("graph", "ops", "backends", "_cuda"), ("numpy",)),
    "backends/plugin.py": May(("graph", "backends"), ("cffi",)),
    "models": May(("graph", "ops"), ("numpy", "jinja2")),
    "models/convert": May((*IR, "models"), ("numpy", "sentencepiece", "google")),
    "models/hub.py": May(("graph",), ("huggingface_hub",)),
    "models/gguf": May(IR, ("numpy",)),
    "models/quant": May(IR, ("numpy",)),
    "models/tokenizer": May(IR, ("numpy", "tokenizers", "sentencepiece")),
    "engine": May(("graph", "backends", "models"), ("numpy", "jinja2", "typing_extensions")),
    "engine/constraints": May(("graph", "models"), ("numpy", "llguidance")),
    "speculative": May(("graph", "engine", "models"), ("numpy",)),
    "server": May(
        ("graph", "backends", "models", "engine", "speculative"),
        ("numpy", "starlette", "uvicorn", "pydantic", "pydantic_core", "prometheus_client"),
    ),
    "bench": May(
        ("graph", "engine", "speculative", "models", "backends"),
        ("numpy", "rich", "ik_llama_cpp", "llama_cpp"),
    ),
    "bench/serve_client.py": May(("graph", "bench"), ("httpx",)),
    "api/riverrun": May(EVERYTHING, ("numpy",)),
    "api/riverrun/__main__.py": May(("tools",), ()),
    "tools": May((*EVERYTHING, "api", "_cpu"), ("numpy", "typer", "rich")),
}
PACKAGES = ("api", *EVERYTHING, "tools")
DOCUMENTED = ("graph", "ops", "backends", "models", "engine", "speculative", "server", "api")
SIZED = {".py", ".c", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".js", ".css", ".html"}
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


def run_parts(tree: ast.AST) -> Iterator[ast.AST]:
    """All of a syntax tree but what only a type checker reads."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            unread = node.test if isinstance(node.test, ast.UnaryOp) else None
            waiting += node.body if unread else node.orelse
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def imports_of(
    path: Path, parts: Callable[[ast.AST], Iterable[ast.AST]] = ast.walk
) -> Iterator[tuple[int, str, list[str]]]:
    """Line, module and imported names of every import in a file, wherever it stands."""
    package = module_of(path)
    package = package if path.name == "__init__.py" else package[:-1]
    for node in parts(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, []
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield node.lineno, module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).split(".")[-1].strip("_")
            module = node.args[0].value
            if called in ("import_module", "import") and isinstance(module, str):
                inner = module.lstrip(".")
                base = package[: len(package) - (len(module) - len(inner)) + 1]
                yield node.lineno, ".".join([*base, inner]) if inner != module else module, []


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


MODULES = {".".join(module_of(path)): path for path in PYTHON}


def reached_files(path: Path) -> set[str]:
    """The modules whose files a file imports when it runs, late imports included. An import of a
    module imports its packages as well, which is not counted."""
    found: set[str] = set()
    for _, module, names in imports_of(path, run_parts):
        inner = {f"{module}.{name}" for name in names}
        found |= inner & MODULES.keys()
        found |= {module} & MODULES.keys() if not names or inner - MODULES.keys() else set()
    return found


def circle_of(package: str) -> list[str]:
    """Modules of a package each of which imports the one before it, the first again at the end;
    none where there is no such circle."""
    own = {m for m, path in MODULES.items() if path.relative_to(ROOT).parts[0] == package}
    edges = {module: reached_files(MODULES[module]) & own for module in sorted(own)}
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_of_a_package_import_each_other_in_a_circle(package: str) -> None:
    assert circle_of(package) == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("from .builder import Graph", True),
        ("def f():\n    from . import builder", True),
        ("from .. import graph\nimport riverrun.graph.text", True),
        ("import importlib\nimportlib.import_module('.verify', __package__)", True),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from .memory import plan_memory", True),
        ("if not TYPE_CHECKING:\n    from .memory import plan_memory", True),
        ("if TYPE_CHECKING:\n    from .builder import Graph", False),
        ("from .dtype import DType\nfrom . import errors", False),
        ("from ..ops import arith", False),
    ],
)
def test_the_search_for_circles_finds_one(
    line: str, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, planted = Path.read_text, ROOT / "graph/node.py"
    monkeypatch.setattr(
        Path, "read_text", lambda self, *args: line if self == planted else read(self, *args)
    )
    circle = circle_of("graph")
    assert ("riverrun.graph.node" in circle) == bool(circle) == wrong


# Names that begin with an underscore although they are documented for all, and compiled modules.
OPEN_NAMES = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_getframe"}
OPEN_NAMES |= {"_cpu", "_cuda"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OPEN_NAMES


def own_names(tree: ast.AST) -> set[str]:
    """Attributes that the classes of a file define: in their bodies, or through self or cls."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                targets = getattr(part, "targets", [getattr(part, "target", None)])
                found |= {t.id for t in targets if isinstance(t, ast.Name)}
                found |= {part.name} if hasattr(part, "name") else set()
    return found


def used_name(node: ast.AST) -> str:
    """The name that an access or an import is for; none for self's own, nor for other syntax."""
    selves = ("self", "cls", "super()")
    if isinstance(node, ast.Attribute):
        return "" if ast.unparse(node.value) in selves else node.attr
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
        second = node.args[1] if len(node.args) > 1 else None
        open_to = ast.unparse(node.args[0]) in selves or not isinstance(second, ast.Constant)
        return "" if open_to else str(second.value)
    if isinstance(node, ast.ImportFrom):
        ours = node.level or (node.module or "").partition(".")[0] == "riverrun"
        return next((a.name for a in node.names if ours and is_private(a.name)), "")
    return ""


def strangers(path: Path) -> list[str]:
    """Uses of another file's private names: `x._name`, unless x is self, cls or super() or a class
    of this file defines the name; the same by getattr; and imports of such names of riverrun."""
    tree = ast.parse(path.read_text())
    own = own_names(tree)
    found: list[str] = []
    for node in ast.walk(tree):
        name = used_name(node)
        if is_private(name) and name not in own:
            found.append(f"line {getattr(node, 'lineno', 0)}: {ast.unparse(node)}")
    return found


@named(PYTHON)
def test_no_file_uses_private_names_of_another(path: Path) -> None:
    assert strangers(path) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("def f(graph):\n    return graph._leaves", True),
        ("def f(a):\n    a.b().c._d = 1", True),
        ("class A:\n    def f(self):\n        return self.plan._bytes", True),
        ("from . import node\nnode._cache.clear()", True),
        ("from .node import Node, _cache", True),
        ("from riverrun.graph.node import _cache", True),
        ("def f(a):\n    return getattr(a, '_b', None)", True),
        ("_x = 1\ndef f(a):\n    return a._x", True),
        ("class A:\n    def f(self, other):\n        self._x = other._x", False),
        ("class A:\n    _x: int\n    def f(self, other):\n        return other._x", False),
        ("class A:\n    def _x(self): ...\ndef f(a):\n    return a._x()", False),
        ("class A(B):\n    def f(self):\n        return self._x + super()._y()", False),
        ("def f(a):\n    return a._replace(x=a._fields), a.__dict__", False),
        ("from .. import _cpu\n_cpu.run()\nimport sys\nsys._getframe(1)", False),
        ("from importlib.metadata import version as _version", False),
    ],
)
def test_the_search_for_private_names_finds_them(
    text: str, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert bool(strangers(ROOT / "graph/op.py")) == wrong


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
    headers = files({".h", ".hpp"}, "csrc")
    own = {f"ops/{p.name}" if p.parent.name == "ops" else p.name: p for p in headers}
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


@named(files({".py"}, "engine"))
def test_files_of_the_engine_are_at_most_300_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


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
