"""Mixtures of experts: what a file may say of them, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from riverrun.graph import OPS
from riverrun.graph.errors import GgufError, ModelError
from riverrun.models import load_file
from riverrun.models.step import Capacity, StepShape
from tiny_models import VARIANTS, TinyModel, Typed

ABSENT = ...


def changed(changes: dict[str, Any], variant: str = "qwen35moe") -> TinyModel:
    """A variant with other keys; ABSENT drops one."""
    model = VARIANTS[variant]()
    model.keys.update(changes)
    model.keys = {key: value for key, value in model.keys.items() if value is not ABSENT}
    return model


def refusal(model: TinyModel, folder: Path, error: type[ModelError] = ModelError) -> str:
    """The message of the error that loading the file raises."""
    path = model.write(folder / "model.gguf")
    with pytest.raises(error) as caught:
        load_file(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "key,value,part",
    [
        ("expert_count", 0, "1 to 1024, got 0"),
        ("expert_count", 1025, "1 to 1024, got 1025"),
        ("expert_used_count", 0, "1 to 6, got 0"),
        ("expert_used_count", 7, "1 to 6, got 7"),
        ("expert_feed_forward_length", 0, "got 0"),
        ("expert_feed_forward_length", [32, 32, 0, 32], "got 0"),
        ("expert_shared_feed_forward_length", 0, "got 0"),
        ("expert_weights_scale", -1.0, "above 0, got -1.0"),
        ("expert_weights_scale", float("nan"), "above 0, got nan"),
    ],
    ids=str,
)
def test_values_out_of_range(tmp_path: Path, key: str, value: Any, part: str) -> None:
    message = refusal(changed({key: value}), tmp_path)
    assert f"qwen35moe.{key}" in message and part in message


@pytest.mark.parametrize(
    "key,value",
    [
        ("expert_count", ABSENT),
        ("expert_used_count", ABSENT),
        ("expert_feed_forward_length", ABSENT),
        ("expert_shared_feed_forward_length", ABSENT),
        ("expert_count", Typed("i32", 6)),
        ("expert_feed_forward_length", [32, 32]),
        ("expert_weights_scale", 2),
    ],
    ids=str,
)
def test_keys_absent_or_of_another_type(tmp_path: Path, key: str, value: Any) -> None:
    assert f"qwen35moe.{key}" in refusal(changed({key: value}), tmp_path, GgufError)


def test_tensors_that_contradict_the_keys(tmp_path: Path) -> None:
    message = refusal(changed({"expert_count": 5}), tmp_path)
    assert "blk.0.ffn_gate_exps.weight has shape (6, 32, 64), expected (5, 32, 64)" in message
    model = changed({}, "qwen35moe,fused")
    model.tensors.pop("blk.2.ffn_gate_up_exps.weight")
    message = refusal(model, tmp_path)
    assert "missing: blk.2.ffn_gate_exps.weight, blk.2.ffn_up_exps.weight" in message


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_scales_that_mean_none(tmp_path: Path, scale: float) -> None:
    path = changed({"expert_weights_scale": scale}).write(tmp_path / "model.gguf")
    arch: Any = load_file(path).arch
    assert arch.experts.scale == 1.0


def test_fused_and_apart_are_the_same_function(tmp_path: Path) -> None:
    apart = VARIANTS["qwen35moe"]()
    fused = dataclasses.replace(apart, tensors=dict(apart.tensors))
    for i in range(4):
        b = f"blk.{i}."
        halves = [fused.tensors.pop(f"{b}ffn_{name}_exps.weight") for name in ("gate", "up")]
        fused.tensors[b + "ffn_gate_up_exps.weight"] = np.concatenate(halves, axis=1)
    rows = []
    for name, model in (("apart", apart), ("fused", fused)):
        loaded = rr.load(model.write(tmp_path / f"{name}.gguf"), device="reference")
        items = [(0, [5, 77, 130, 9])]
        rows.append(loaded.session(16).evaluate(items, want="all").logits.copy())
    np.testing.assert_array_equal(*rows)


def test_only_chosen_experts_count_as_read(tmp_path: Path) -> None:
    file = load_file(changed({}).write(tmp_path / "model.gguf"))
    graph = file.arch.build(StepShape(1, 1, 1), Capacity(1, 1, 1), file.specs)
    nodes = [n for n in graph.nodes if n.op.name == "mul_mat_id"]
    assert len(nodes) == 4 * 3 and "mul_mat_id" in OPS
    for node in nodes:
        weight = node.input_specs()[1]
        assert weight is not None
        assert node.op.cost(*node.input_specs()).read < weight.nbytes
