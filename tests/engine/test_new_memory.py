"""A new kind of memory is two new files, one that declares and uses it and one that keeps it: put
into a tree of links, sessions take it like any other, without another edit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import riverrun as rr
from linked_tree import make_tree
from paths import DATA, ROOT
from riverrun.engine.memory import Demand, layouts
from riverrun.graph.errors import GraphError, RequestError
from riverrun.models import architecture
from riverrun.models.arch.llama import Llama
from riverrun.models.memories import Capacity, MemorySpec, RecurrentPart, RecurrentSpec, States
from rollback_rig import tiny

SOURCES = DATA / "new_memory"
PLACES = {"origin_arch.py": "models/arch/origin.py", "origin_memory.py": "engine/memory/origin.py"}
SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import riverrun as rr
from riverrun.engine.offload import Offload, state_bytes
from tiny_models import VARIANTS

folder = Path(sys.argv[1])
model = VARIANTS["llama"]()
plain = rr.load(model.write(folder / "llama.gguf"), device="cpu")
model.arch = "origin"
origin = rr.load(model.write(folder / "origin.gguf"), device="cpu")
a, b = [5, 9, 2, 33, 7, 60], [8, 9, 2, 33, 7, 60]

def alone(model, tokens):
    return np.stack([model_.copy() for model_ in decoded(model.session(64), tokens)])

def decoded(session, tokens):
    for token in tokens:
        yield session.decode(token)

want = {name: alone(origin, tokens) for name, tokens in (("a", a), ("b", b))}
assert (alone(plain, a)[1:] != want["a"][1:]).any()
whole = origin.plan_session(64).states
assert state_bytes(origin.source, Offload(n_ctx=64)) == {n: s.nbytes for n, s in whole.items()}
session = origin.session(64, n_seqs=3)
assert session.plan.states.keys() - plain.session(64).plan.states.keys() == {"origin"}
both = session.evaluate([(0, a[:4]), (1, b[:4])], want="all").logits
np.testing.assert_array_equal(both, np.concatenate([want["a"][:4], want["b"][:4]]))
session.verify([(1, [1, 2, 3]), (0, a[4:])])
session.commit(1, 0)
session.commit(0, 1)
np.testing.assert_array_equal(session.decode(b[4], 1), want["b"][4])
np.testing.assert_array_equal(session.decode(a[5], 0), want["a"][5])
session.copy(1, 2)
np.testing.assert_array_equal(session.decode(b[5], 2), want["b"][5])
saved = session.save(0)
session.clear(0)
np.testing.assert_array_equal(session.prefill(b, 0), want["b"][5])
other = origin.session(64)
other.restore(saved)
other.remove(0, 5)
np.testing.assert_array_equal(other.decode(a[5]), want["a"][5])
assert other.reuse(a[:3] + [1]) == 3
np.testing.assert_array_equal(other.decode(a[3]), want["a"][3])
print("like any other")
"""


def test_two_files_make_a_new_kind_of_memory(tmp_path: Path) -> None:
    files = {place: (SOURCES / name).read_text() for name, place in PLACES.items()}
    tree = make_tree(tmp_path / "package", files)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "like any other\n"), done.stderr


class Unkept(MemorySpec):
    """A kind that no class keeps."""

    layers = (0,)

    def layer_states(self, layer: int, c: Capacity) -> States:
        return {}


def test_a_kind_that_nobody_keeps_is_refused() -> None:
    with pytest.raises(GraphError, match=r"keeps Unkept; known kinds: AttentionSpec, Recurrent"):
        layouts(Unkept(), Demand(64, 1, 512))


@pytest.mark.parametrize("more", [False, True])
def test_a_graph_has_the_states_that_are_declared(
    more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = Llama.memories

    def wrong(self: Llama) -> tuple[MemorySpec, ...]:
        if more:
            return (*declared(self), RecurrentSpec((0,), (RecurrentPart("x", 4, 1),)))
        return ()

    monkeypatch.setattr(Llama, "memories", wrong)
    with pytest.raises(
        GraphError, match="'trunk': .* unlike are " + ("x_state.0" if more else "cache_k.0")
    ):
        tiny("llama").plan_session(64)


@pytest.mark.parametrize(
    "variant", ["llama", "gemma3", "qwen3", "qwen35", "qwen35,mtp", "qwen35moe,mtp"]
)
def test_programs_declare_what_their_graphs_have(variant: str) -> None:
    model: rr.Model = tiny(variant)
    programs = model.source.arch.programs()
    assert {"trunk", "ahead", "folds", "mtp"} <= programs.keys()
    for name in ("trunk", *(["mtp"] if "mtp" in variant else [])):
        plan = model.plan_session(300, 2, program=name)
        assert {k for spec in programs[name].memories for k in spec.states(plan.capacity)} == set(
            plan.states
        )
    assert architecture.ARCHITECTURES[model.source.arch.name] is type(model.source.arch)


def test_an_unknown_program_is_refused() -> None:
    with pytest.raises(RequestError, match=r"program should be one of trunk, .* got 'x'"):
        tiny("llama").plan_session(64, program="x")
