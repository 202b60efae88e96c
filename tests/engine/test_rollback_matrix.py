"""Every strategy leaves, after any commit, the state of plain decoding, or refuses beforehand."""

from __future__ import annotations

import pytest
from rollback_matrix import CASES, check
from rollback_rig import HYBRID, STRATEGIES, forgettable

# The longest passes take the reference a while; test_reference_every_commit has them all.
THINNED = [case for case in CASES if case.values[3] < 65 or case.values[1:3] == (1, 8)]


@pytest.mark.parametrize("strategy,n_seqs,window,t", CASES)
def test_every_commit_equals_plain_decoding(
    strategy: str, n_seqs: int, window: int, t: int
) -> None:
    refused = check("cpu", strategy, n_seqs, window, t, range(t + 1))
    if n_seqs == 1:
        assert refused == t - forgettable(strategy, window, t)


@pytest.mark.parametrize("variant", HYBRID)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_kind_of_recurrent_layer(strategy: str, variant: str) -> None:
    for n_seqs, window, t in ((1, 3, 4), (4, 3, 9)):
        check("cpu", strategy, n_seqs, window, t, range(t + 1), variant)


@pytest.mark.parametrize("strategy,n_seqs,window,t", THINNED)
def test_reference_some_commits(strategy: str, n_seqs: int, window: int, t: int) -> None:
    few = sorted({0, 1, t // 2, t - 2, t - 1, t} & set(range(t + 1)))
    check("reference", strategy, n_seqs, window, t, few if t < 17 else few[1::2])


@pytest.mark.full
@pytest.mark.parametrize("strategy,n_seqs,window,t", CASES)
def test_reference_every_commit(strategy: str, n_seqs: int, window: int, t: int) -> None:
    check("reference", strategy, n_seqs, window, t, range(t + 1))
