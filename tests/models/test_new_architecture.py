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
    file, *additions, family = blocks(PAGE, "python")
    added = {"models/arch/postnorm.py": file, "models/convert/arch/postnorm.py": family}
    make_tree(top / "package", added)
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


CONVERTED = """
import json
import sys
from pathlib import Path
import numpy as np
from riverrun.models.convert import convert
from riverrun.models.gguf import open_gguf
from safetensors_bytes import write_safetensors
from tiny_models import VARIANTS

NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "attn_output": "self_attn.o_proj"}
NAMES |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
NAMES |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
NAMES["post_attention_norm"] = "post_attention_layernorm"
NAMES["post_ffw_norm"] = "post_feedforward_layernorm"
folder, tensors, keys = Path(sys.argv[1]), {}, VARIANTS["postnorm"]().keys
for name, value in VARIANTS["postnorm"]().tensors.items():
    part = name.removesuffix(".weight").split(".")
    place = f"model.layers.{part[1]}." if part[0] == "blk" else "model."
    other = "lm_head" if part[0] == "output" else place + NAMES[part[-1]]
    tensors[f"{other}.weight"] = value
write_safetensors(folder / "model.safetensors", tensors, "F32")
config = {"architectures": ["PostNormForCausalLM"], "num_hidden_layers": 2, "vocab_size": 288}
config |= {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
config |= {"num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5}
(folder / "config.json").write_text(json.dumps(config))
file = open_gguf(convert(folder, folder / "model.gguf", tokenizer=False))
for name, value in VARIANTS["postnorm"]().tensors.items():
    found = file.tensors[name].data.view(np.float32).reshape(value.shape)
    assert np.array_equal(found, value), name
wrong = [k for k, v in keys.items() if np.float32(file.metadata[f"postnorm.{k}"]) != np.float32(v)]
assert wrong == []
print(len(file.tensors), len(tensors))
"""


def test_its_checkpoints_convert(top: Path, tmp_path: Path) -> None:
    done = python(top, "-c", CONVERTED, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "21 21\n"), done.stderr
