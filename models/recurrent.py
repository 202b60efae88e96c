"""Architectures in which some layers have recurrent memory in place of attention."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from ..graph import Graph, TensorSpec, Value
from .architecture import Want
from .blocks import attention_memories
from .memories import MemorySpec, Program, RecurrentPart, RecurrentSpec
from .pre_norm import PreNorm
from .step import Capacity, StepGraph, StepShape


class Hybrid(PreNorm):
    """The plain transformer but for the layers that are recurrent. recurrent: by trunk layer, set
    by `read`."""

    recurrent: Sequence[bool]

    @property
    @abstractmethod
    def parts(self) -> tuple[RecurrentPart, ...]:
        """What a recurrent layer keeps."""

    @abstractmethod
    def recurrent_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a recurrent layer, norms and feed-forward part aside."""

    @abstractmethod
    def recurrent_layer(self, s: StepGraph, layer: int, h: Value) -> Value:
        """What a recurrent layer has in place of attention. h: [N, n_embd], normalised; returns the
        same."""

    @abstractmethod
    def fold(self, s: StepGraph, layer: int) -> Value:
        """The ops with memory of a recurrent layer, over operands that nobody reads."""

    def is_recurrent(self, layer: int) -> bool:
        """Whether it is a trunk layer of that kind."""
        return layer < self.hp.n_layer and self.recurrent[layer]

    def mix_wants(self, layer: int) -> Iterator[Want]:
        """Of either kind."""
        if self.is_recurrent(layer):
            return self.recurrent_wants(layer)
        return super().mix_wants(layer)

    def mix(self, s: StepGraph, layer: int, h: Value) -> Value:
        """Of either kind."""
        if self.is_recurrent(layer):
            return self.recurrent_layer(s, layer, h)
        return super().mix(s, layer, h)

    def memories(self) -> tuple[MemorySpec, ...]:
        """Those of attending and of recurrent layers."""
        layers = range(self.hp.n_layer)
        attending = self.attention_memory([i for i in layers if not self.recurrent[i]])
        recurrent = tuple(i for i in layers if self.recurrent[i])
        return (*attending, *([RecurrentSpec(recurrent, self.parts)] if recurrent else []))

    def attention_memory(self, layers: Sequence[int]) -> tuple[MemorySpec, ...]:
        """Keys and values of these layers."""
        return attention_memories({i: self.attention_shape(i) for i in layers})

    def programs(self) -> dict[str, Program]:
        """Also passes without tokens, where layers are recurrent."""
        found = super().programs()
        recurrent = tuple(m for m in self.memories() if isinstance(m, RecurrentSpec))
        if recurrent:
            found["folds"] = Program(self.folds, recurrent)
        return found

    def folds(self, shape: StepShape, capacity: Capacity, weights: dict[str, TensorSpec]) -> Graph:
        """The recurrent layers without tokens."""
        s = StepGraph(f"{self.name} folds", shape, capacity, weights)
        for i in range(self.hp.n_layer):
            if self.recurrent[i]:
                with s.g.scope(f"blk.{i}"):
                    s.g.output(f"blk.{i}", self.fold(s, i))
        return s.g


def no_tokens(s: StepGraph, *shape: int) -> Value:
    """Zeros [N, *shape], the operands of tokens in passes without any."""
    zeros = np.zeros((s.shape.n_tokens, *shape), np.float32)
    return s.g.constant(zeros)
