"""A new architecture is one new file: the example of docs/adding-an-architecture.md, put into a
tree of links, loads and passes the tests of all, without another edit of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from linked_tree import make_tree
from pages import blocks
from paths import ROOT

PAGE = "docs/adding-an-architecture.md"
RIGS = ("tiny_models.py", "numpy_models.py")
TEST = "models/test_architectures.py"


def python(top: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy's package and test modules."""
    paths = os.pathsep.join(str(top / part) for part in ("package", "tests"))
    return subprocess.run(
        [sys.executable, *command],
        cwd=top,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout as somebody leaves it who has followed the page."""
    top = tmp_path_factory.mktemp("checkout")
    file, *additions = blocks(PAGE, "python")
    make_tree(top / "package", {"models/arch/postnorm.py": file})
    tests = top / "tests"
    (tests / "models").mkdir(parents=True)
    for path in (ROOT / "tests").glob("*.py"):
        if path.name not in RIGS:
            (tests / path.name).symlink_to(path)
    for name, addition in zip(RIGS, additions, strict=True):
        (tests / name).write_text((ROOT / "tests" / name).read_text() + "\n\n" + addition)
    shutil.copy(ROOT / "tests" / TEST, tests / TEST)
    shutil.copy(ROOT / "pyproject.toml", top)
    return top


def test_it_passes_the_tests_of_all_architectures(top: Path) -> None:
    done = python(top, "-m", "pytest", "-rp", f"tests/{TEST}", "-k", "postnorm and cpu")
    assert done.returncode == 0, done.stdout
    passed = set(re.findall(r"^PASSED .*::test_(\w+)\[.*postnorm", done.stdout, re.M))
    assert passed >= {"every_row", "split_prompt", "sequences_in_one_pass", "greedy_text"}


WRONG = """
import sys
from pathlib import Path
import riverrun as rr
from riverrun.graph.errors import ModelError
from tiny_models import VARIANTS

model = VARIANTS["postnorm"]()
del model.tensors["blk.1.post_ffw_norm.weight"]
try:
    rr.load(model.write(Path(sys.argv[1])), device="cpu")
except ModelError as error:
    print(error)
"""


def test_a_file_without_one_of_its_tensors_is_refused(top: Path, tmp_path: Path) -> None:
    done = python(top, "-c", WRONG, str(tmp_path / "model.gguf"))
    assert done.returncode == 0, done.stderr
    assert "architecture 'postnorm': missing: blk.1.post_ffw_norm.weight" in done.stdout


DRAFTED = """
import sys
from pathlib import Path
import riverrun as rr
from tiny_models import VARIANTS

model = rr.load(VARIANTS["postnorm"]().write(Path(sys.argv[1])), device="cpu")
prompts, options = [[5, 9, 2, 5, 9, 2, 5], [33, 7]], {"max_tokens": 12, "temperature": 0}
alone = [model.generate(prompt, **options).result.tokens for prompt in prompts]
found = model.generate_batch(prompts, speculative=["ngram-cache", None], **options)
assert [result.tokens for result in found] == alone and all(alone)
print("like any other")
"""


def test_batches_and_drafts_take_it(top: Path, tmp_path: Path) -> None:
    done = python(top, "-c", DRAFTED, str(tmp_path / "model.gguf"))
    assert (done.returncode, done.stdout) == (0, "like any other\n"), done.stderr
