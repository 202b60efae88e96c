"""Routing: which experts a token goes to, and with what weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.case import Case, f32, fixed
from ..graph.dtype import i32
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .argmax import ranked
from .ragged import require_dense_rows, require_plain
from .unary import sigmoid

LEAST_SUM = 6.103515625e-5  # the smallest normal f16


@register
class TopkMoe(Op):
    """ids = the k experts with the largest p (+ bias); weights = their p, normalised, times scale

    logits: [N, E] f32, its rows may have gaps; bias: [E] f32, added for choosing only; weights:
    [N, k] f32 and ids: [N, k] i32, largest first.
    gating: "softmax" or "sigmoid", p over all experts. Both grow with the logit, so without a bias
    the logits are compared, with one p + bias; of equals the lower index comes first, and NaN
    counts as minus infinity. normalize: divide a row's weights by max(their sum, 2^-14).
    Source: Shazeer et al. 2017; bias, Wang et al. 2024."""

    name, inputs, outputs = "topk_moe", ("logits", "bias?"), ("weights", "ids")
    constants = ("bias",)
    rowwise = True
    k: int
    normalize: bool
    gating: str
    scale: float = 1.0

    def infer(self, logits: TensorSpec, bias: TensorSpec | None) -> tuple[TensorSpec, TensorSpec]:
        ok = self.gating in ("softmax", "sigmoid")
        self.require_attr(ok, "gating", "'softmax' or 'sigmoid'")
        self.require_attr(math.isfinite(self.scale), "scale", "finite")
        self.require(logits.rank == 2, "logits", "[N, E]", logits.shape)
        self.require_dtype("logits", logits, "f32")
        require_dense_rows(self, "logits", logits)
        n, experts = logits.shape
        self.require_attr(1 <= self.k <= experts, "k", f"from 1 to {experts}, the experts")
        if bias is not None:
            require_plain(self, "bias", bias, (experts,), "f32")
        return TensorSpec((n, self.k)), TensorSpec((n, self.k), i32)

    def reference(
        self, logits: np.ndarray, bias: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        wide = logits.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.gating == "softmax":
                p = np.exp(wide - wide.max(-1, keepdims=True))
                p = p / p.sum(-1, keepdims=True)
            else:
                p = sigmoid(wide)
            order = wide if bias is None else p + bias
        ids = np.argsort(-ranked(order), axis=-1, kind="stable")[:, : self.k]
        weights = np.take_along_axis(p, ids, -1)
        if self.normalize:
            weights = weights / np.maximum(weights.sum(-1, keepdims=True), LEAST_SUM)
        return (weights * self.scale).astype(np.float32), ids.astype(np.int32)

    def cost(self, logits: TensorSpec, bias: TensorSpec | None) -> Cost:
        read = logits.nbytes + (bias.nbytes if bias is not None else 0)
        return Cost(8 * logits.size, read, 8 * logits.shape[0] * self.k)

    @staticmethod
    def cases() -> Iterable[Case]:
        for gating in ("softmax", "sigmoid"):
            for normalize in (True, False):
                for n, e, k in ((1, 8, 2), (4, 60, 4), (7, 128, 8), (3, 33, 33), (2, 1, 1)):
                    yield _case(n, e, k, gating, normalize)
                yield _case(4, 60, 4, gating, normalize, bias=True)
                yield _case(3, 16, 4, gating, normalize, scale=2.446)
            rule: dict[str, Any] = dict(k=3, normalize=True, gating=gating)
            ties = fixed([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, -0.0, 0.0, -1.0, 0.0], [-5.0] * 5])
            yield Case(f"ties,{gating}", logits=ties, **rule)
            far = fixed([[200.0, -200.0, 0.0, -90.0], [-200.0, -201.0, -90.0, -89.0]])
            yield Case(f"far,{gating}", logits=far, **rule)
            hidden = fixed([[-np.inf, 1.0, -np.inf, 0.5], [0.0, -np.inf, -np.inf, -np.inf]])
            yield Case(f"hidden,{gating}", logits=hidden, **rule)
            turned = fixed([0.0, 0.0, 2.0, 2.0, 1.0])
            yield Case(f"bias decides,{gating}", logits=f32(4, 5), bias=turned, **rule)
            yield Case(f"gap,{gating}", logits=f32(3, 40, lo=-4, hi=4, gap=24), **rule)
        for e, k in ((512, 10), (1000, 4), (1100, 3)):
            yield _case(2, e, k, "softmax", True)
            yield _case(2, e, k, "sigmoid", False, bias=True)
        small = f32(3, 16, lo=-30, hi=-20)
        yield Case("small sums", logits=small, k=4, normalize=True, gating="sigmoid")
        yield Case("empty,n=0", logits=f32(0, 16), k=4, normalize=True, gating="softmax")
        for n in (1, 512):
            yield _case(n, 256, 8, "softmax", True, tags=("perf",))


def _case(
    n: int,
    e: int,
    k: int,
    gating: str,
    normalize: bool,
    bias: bool = False,
    scale: float = 1.0,
    tags: tuple[str, ...] = (),
) -> Case:
    label = f"n={n},e={e},k={k},{gating}" + (",normalize" if normalize else "")
    label += (",bias" if bias else "") + (f",scale={scale:g}" if scale != 1.0 else "")
    inputs = dict(logits=f32(n, e, lo=-4, hi=4)) | (dict(bias=f32(e)) if bias else {})
    rule = dict(k=k, normalize=normalize, gating=gating, scale=scale)
    return Case(label, tags=tags, **inputs, **rule)
