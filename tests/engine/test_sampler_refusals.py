"""What the sampler refuses, and how it says so."""

from __future__ import annotations

import math

import numpy as np
import pytest
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.graph.errors import BackendError, RequestError


def normal_logits(n):
    return np.random.default_rng(1).standard_normal(n).astype(np.float32)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_k", 2**31),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", -1.0),
        ("repeat_last_n", -2),
        ("frequency_penalty", math.inf),
        ("presence_penalty", math.nan),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
        ("logit_bias", [1]),
        ("logit_bias", {100: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(RequestError, match=f"^{field}.*expected .*got"):
        Sampler(SamplerParams(**{field: value}), 100)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"top_k": -1},
        {"top_k": 0},
        {"top_p": 1},
        {"min_p": 0},
        {"min_p": 1},
        {"repeat_last_n": -1},
        {"seed": 0},
        {"logit_bias": {99: -math.inf}},
        {"temperature": np.float32(0.5), "top_k": np.int64(3)},
    ],
)
def test_values_at_the_edge_are_taken(fields):
    token = Sampler(SamplerParams(**fields), 100).sample(normal_logits(100), 0)
    assert 0 <= token < 100


ALL_PATHS = [
    SamplerParams(temperature=0.0),
    SamplerParams(temperature=0.0, repeat_penalty=1.1),
    SamplerParams(),
    SamplerParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
]


@pytest.mark.parametrize("params", ALL_PATHS, ids=range(4))
@pytest.mark.parametrize(
    ("bad", "words"), [(math.nan, "hold NaN, 2 of"), (math.inf, r"hold \+Inf, 2 of")]
)
def test_damaged_logits_are_refused(params, bad, words):
    logits = normal_logits(100)
    logits[[30, 70]] = bad
    logits[5] = -np.inf
    with pytest.raises(BackendError, match=f"logits of position 12 {words} 100 .*first at id 30"):
        Sampler(params, 100, [1]).sample(logits, 12)


@pytest.mark.parametrize("params", ALL_PATHS, ids=range(4))
def test_logits_that_leave_nothing_are_refused(params):
    with pytest.raises(BackendError, match="position 3 are all -inf"):
        Sampler(params, 10, [1]).sample(np.full(10, -np.inf, np.float32), 3)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": dict.fromkeys(range(5), -math.inf)},
        {"logit_bias": {1: 1e39}},
        {"repeat_penalty": 1e-300},
        {"repeat_penalty": 5e-324, "frequency_penalty": 1e308},
        {"frequency_penalty": -1e308},
    ],
)
def test_bias_and_penalties_that_leave_no_finite_maximum_are_refused(temperature, fields):
    sampler = Sampler(SamplerParams(temperature=temperature, **fields), 5, [0, 0, 1])
    with pytest.raises(RequestError, match="logit_bias, repeat_penalty"):
        sampler.sample(np.ones(5, np.float32), 0)


@pytest.mark.parametrize(
    "logits", [np.zeros(9, np.float32), np.zeros((1, 10), np.float32), np.zeros(10)]
)
@pytest.mark.parametrize("params", ALL_PATHS, ids=range(4))
def test_logits_of_another_form_are_refused(params, logits):
    with pytest.raises(BackendError, match=r"expected float32 \[10\], got"):
        Sampler(params, 10).sample(logits, 0)


def test_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(RequestError, match=r"prompt_tokens.*0 \.\. 9"):
        Sampler(SamplerParams(), 10, [1, 10])
    sampler = Sampler(SamplerParams(repeat_penalty=2.0), 10)
    for token in (-1, 10):
        with pytest.raises(RequestError, match=r"token: expected an id in 0 \.\. 9"):
            sampler.accept(token)
