"""Values that only a run can see to be wrong: told with op, input and value; nothing is written,
and the next run is right."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda_rig import Op, backend, needs_cuda
from riverrun.bench.op_cases import small_cases
from riverrun.graph import Graph
from riverrun.graph.case import BoundCase, Fixed
from riverrun.graph.errors import BackendError

pytestmark = needs_cuda
LARGE = 2**31 - 1
# Of each sequence; those without tokens need none of them.
PER_SEQUENCE = ("state_rows", "start", "head", "log_head", "n_replay", "n_held", "n_direct")
INDICES = ("ids", "idx", "seq_offsets", "positions", "block_table", *PER_SEQUENCE)
# Where a negative value says that nothing is meant.
NEGATIVE = {("write_rows", "idx"), ("attention_prepare", "idx")}
NEGATIVE |= {("mul_mat_id", "ids"), ("moe_swiglu", "ids")}
# Ops that look nothing up: any position can be rotated to, and any token be chosen.
VALUES = {("rope", "positions"), ("attention_prepare", "positions"), ("sample", "ids")}
PER_INPUT = 4
# Who tells of it where no kernel takes the whole op, but others take its parts.
PARTS = {"conv_delta_mix": "(conv_delta_mix|ssm_conv_silu)"}


def tokens(case: BoundCase) -> bool:
    """Whether a case has any, or is not over ragged batches."""
    names = case.names
    declared = case.inputs[names.index("seq_offsets")] if "seq_offsets" in names else None
    return not isinstance(declared, Fixed) or bool(declared.values[-1])


def cases() -> list[tuple[BoundCase, str]]:
    """The first cases of each op for each input of indices."""
    found: list[tuple[BoundCase, str]] = []
    for case in filter(tokens, small_cases()):
        for name in INDICES:
            if name not in case.names:
                continue
            declared = case.inputs[case.names.index(name)]
            same = [c for c, n in found if (c.op.name, n) == (case.op.name, name)]
            # A window does not look at the first page.
            looked_at = (case.op.name, name) not in VALUES and not getattr(case.op, "window", 0)
            if declared is not None and declared.shape and len(same) < PER_INPUT and looked_at:
                found.append((case, name))
    return found


CASES = cases()


def first_row(op: Op, name: str, values: np.ndarray) -> int:
    """The first row of an input that its op has to look at, -1 for none."""
    if "seq_offsets" in op.built.inputs and name != "seq_offsets":
        busy = np.flatnonzero(np.diff(op.built.inputs["seq_offsets"]))
        if not busy.size:
            return -1
        return int(busy[0]) if name in (*PER_SEQUENCE, "block_table") else 0
    return 0 if values.size else -1


@pytest.mark.parametrize("kind", ["step", "prefill"])
@pytest.mark.parametrize("case, name", CASES, ids=[f"{c.id}-{n}" for c, n in CASES])
def test_indices_out_of_range(case: BoundCase, name: str, kind: str) -> None:
    op = Op(case, kind=kind)
    good = op.run()
    after = op.states()
    values = op.bound.inputs[name]
    at = first_row(op, name, values)
    if at < 0:
        pytest.skip("nothing to look up")
    wrong = [LARGE] if (case.op.name, name) in NEGATIVE else [LARGE, -1]
    for value in wrong:
        op.reset()
        before = op.states()
        values[at, ...] = value
        teller = PARTS.get(case.op.name, case.op.name)
        with pytest.raises(BackendError, match=rf"^{teller}: .*{name}.*{value}\b") as error:
            op.run()
        assert "%" not in str(error.value)
        if case.op.name != "write_rows":
            assert op.states() == before
        op.reset()
        assert op.run() == good and op.states() == after


def ragged() -> list[BoundCase]:
    """A case of each op over ragged batches with two sequences or more."""
    found: dict[str, BoundCase] = {}
    for case in small_cases():
        names = case.names
        if "seq_offsets" in names:
            declared = case.inputs[names.index("seq_offsets")]
            if declared is not None and declared.shape[0] > 2:
                found.setdefault(case.op.name, case)
    return list(found.values())


@pytest.mark.parametrize("case", ragged(), ids=[case.id for case in ragged()])
def test_offsets_that_do_not_ascend(case: BoundCase) -> None:
    op = Op(case)
    good = op.run()
    offsets = op.bound.inputs["seq_offsets"]
    n = int(offsets[-1])
    for changed in ((1, n + 1), (-1, -3), (-1, n + 1000)):
        op.reset()
        before = op.states()
        offsets[changed[0]] = changed[1]
        with pytest.raises(BackendError, match=f"^{case.op.name}: 'seq_offsets' should be asc"):
            op.run()
        assert op.states() == before
        op.reset()
        assert op.run() == good


def test_every_plan_tells_of_its_own_run() -> None:
    """What one plan found wrong is not what the next one says."""
    (first, name), (second, _) = CASES[0], next(c for c in CASES if c[0].op != CASES[0][0].op)
    bad, fine = Op(first), Op(second)
    good = fine.run()
    bad.bound.inputs[name][0] = LARGE
    for _ in range(3):
        with pytest.raises(BackendError, match=f"^{first.op.name}: "):
            bad.run()
        fine.reset()
        assert fine.run() == good


def test_names_of_nodes_are_told() -> None:
    """With several nodes of an op, the message says which one."""
    g = Graph("two lookups")
    table = g.input("table", (5, 8), "f32")
    for i in range(2):
        g.output(f"y{i}", g.get_rows(table, g.input(f"ids{i}", (3,), "i32")))
    plan = backend().compile(g)
    bound = plan.bind(plan.own_weights(), plan.pools())
    labels = [node.describe() for node in plan.graph.nodes if not node.is_leaf]
    for i in range(2):
        bound.inputs[f"ids{i}"][1] = 5
        with pytest.raises(BackendError, match=re.escape(f"[{labels[i]}]")):
            bound.run()
        bound.inputs[f"ids{i}"][1] = 4
    bound.run()
