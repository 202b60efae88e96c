"""What docs/support.md is made of: the backends' answers for published models, and the records."""

from __future__ import annotations

import json
from typing import Any

import pytest
from paths import ROOT
from riverrun.backends import open_backend
from riverrun.backends.base import Support
from riverrun.backends.reference import ReferenceBackend
from riverrun.bench.architecture_support import memory_types, published, taken
from riverrun.bench.type_support import kept_bits, refusals, weight_types
from riverrun.engine.memory import STRATEGIES
from riverrun.graph import Node
from riverrun.graph.dtype import dtype
from riverrun.graph.errors import GraphError, ModelError
from riverrun.models.architecture import Architecture, architectures
from riverrun.models.tokenizer.pretokenizers import PRETOKENIZERS
from riverrun.tools import gen_cuda_support, support_docs

KNOWN = architectures()
PAGE = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")


class Picky(ReferenceBackend):
    """Takes no top_k, no attention memory of q4_0, and no delta rule with a log."""

    def supports(self, node: Node) -> Support:
        if node.op.name == "top_k":
            return Support(False, "b: no sorting; a: no sorting")
        if any(spec is not None and spec.dtype.name == "q4_0" for spec in node.input_specs()):
            return Support(False, "no q4_0")
        logged = node.op.name == "gated_delta_net" and len(node.specs) > 2
        return Support(not logged, "no log" if logged else "")


def test_a_backend_is_asked_for_every_program_and_strategy() -> None:
    found = taken(KNOWN["qwen35"], Picky())
    assert found.refused == {"top_k": "no sorting"}
    assert found.rollback == [name for name in STRATEGIES if name != "replay"]
    assert taken(KNOWN["llama"], Picky()).rollback == []
    assert taken(KNOWN["qwen35"], open_backend("cpu", 1)).rollback == list(STRATEGIES)


def test_types_are_asked_for_one_by_one() -> None:
    assert memory_types(KNOWN["llama"], Picky()) == ["f32", "f16", "bf16", "q8_0"]
    assert refusals(dtype("q4_0"), Picky()) == ["mul_mat", "mul_mat_id", "get_rows"]
    assert refusals(dtype("q4_1"), Picky()) == []
    cpu: Any = open_backend("cpu", 1)
    assert kept_bits(dtype("q8_0"), cpu) == 8.5 and kept_bits(dtype("iq2_xxs"), cpu) == 4.3125
    assert [kind.name for kind in weight_types()][:2] == ["f32", "bf16"]


@pytest.mark.parametrize("name", KNOWN)
def test_the_first_blocks_have_every_kind_of_memory(name: str) -> None:
    first, whole = published(KNOWN[name]), published(KNOWN[name], 1 << 16)
    assert first.labels == whole.labels
    assert first.arch.hp.n_layer <= whole.arch.hp.n_layer


def test_an_architecture_without_a_shape_is_named() -> None:
    class Unheard(KNOWN["llama"]):  # type: ignore[misc]
        name = "unheard"

    with pytest.raises(ModelError, match=r"'unheard' should have the shape .*shapes\.py, got none"):
        published(Unheard)


@pytest.mark.parametrize("name", KNOWN)
def test_every_architecture_has_a_line(name: str) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` | ")][:1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == ", ".join(published(KNOWN[name]).labels)
    assert bool(cells[2]) == (KNOWN[name].mtp is not Architecture.mtp)
    assert cells[3:5] == ["yes", "yes"]
    refused = gen_cuda_support.stored()["architectures"][name]["refused"]
    assert cells[5] == (f"no: {', '.join(refused)}" if refused else "yes")
    assert "transformers ≥ " in cells[7]


def test_every_type_and_pre_tokenizer_has_a_line() -> None:
    for kind in weight_types():
        assert f"| `{kind.name}` | " in PAGE
    part = PAGE.split("### Pre-tokenizers")[1]
    for name in PRETOKENIZERS:
        assert f"`{name}`" in part


@pytest.mark.parametrize("missing", ["oracle", "cuda"])
def test_a_record_that_lacks_an_architecture_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    oracles, stored = json.loads(support_docs.ORACLES.read_text()), gen_cuda_support.stored()
    if missing == "oracle":
        for found in oracles["compared"].values():
            found["cases"].pop("phi3", None)
    else:
        del stored["architectures"]["phi3"]
    said = dict.fromkeys(support_docs.DEVICES, stored)
    with pytest.raises(GraphError, match=r"'phi3'.*, got n.*; .*make support"):
        support_docs.architecture_table(said, oracles)
