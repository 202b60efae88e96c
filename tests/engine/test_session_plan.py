"""What a session's plan warns of, refuses and promises."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from riverrun.engine.session_options import SessionOptions
from riverrun.engine.session_plan import check_context
from riverrun.graph.errors import RequestError
from rollback_rig import plain, stream, tiny


@pytest.mark.parametrize("n_ctx", [513, 4096])
def test_a_context_beyond_training_is_warned_of_once_a_plan(n_ctx: int) -> None:
    model = tiny()
    assert model.n_ctx_train == 512
    with pytest.warns(RuntimeWarning, match=f"context of {n_ctx} tokens .* the 512 ") as found:
        plan = model.plan_session(n_ctx)
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.plan_session(512)
        model.plan_session()
        # A model that does not say what it was trained for.
        assert check_context(n_ctx, 0) == plan.n_ctx == n_ctx


@pytest.mark.parametrize("name", ["n_ctx", "n_seqs", "n_rs_seq", "cache_bytes", "budget"])
@pytest.mark.parametrize("value", [-1, 10**20, 1.5, True, "5", float("nan"), [1]])
def test_numbers_that_cannot_be_are_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"{name}: expected an integer in \d+ \.\. \d+"):
        SessionOptions(**{name: value})


def test_numbers_of_numpy_will_do() -> None:
    options = SessionOptions(n_ctx=np.int64(64), n_seqs=np.int32(2))  # type: ignore[arg-type]
    assert (options.n_ctx, options.n_seqs) == (64, 2)


@pytest.mark.parametrize("n", [1, 4])
def test_snapshots_remove_as_many_committed_tokens_as_were_asked_for(n: int) -> None:
    """After passes whose tokens were all sure, too."""
    model, like, other = tiny(), plain(), stream(9)
    for back in range(n + 1):
        session = model.session(256, rollback="snapshots", n_rs_seq=n)
        session.prefill(like.tokens[:70])
        session.evaluate([(0, like.tokens[70:73])])
        assert session.can_remove(0, 73 - n) and not session.can_remove(0, 72 - n)
        session.remove(0, 73 - back)
        assert session.tokens() == like.tokens[: 73 - back]
        want = model.session(256)
        want.prefill([*like.tokens[: 73 - back], *other[:2]])
        session.evaluate([(0, other[:2])])
        np.testing.assert_array_equal(session.decode(5), want.decode(5))
