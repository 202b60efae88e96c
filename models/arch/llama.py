"""llama: pre-norm attention and SwiGLU or experts, interleaved rotary pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention_shape
from ..gguf import GgufFile
from ..hparams import read_count
from ..moe import Mixture, read_moe


@register_architecture
class Llama(Mixture):
    """Llama 2 and 3, Mistral, Mixtral and their kin. Where a file names a window, as those of the
    first Mistral do, all layers have it."""

    name = "llama"

    def read(self, file: GgufFile) -> None:
        """Rotary factors, window, experts."""
        hp = self.hp
        self.rope = Rope(
            "norm", hp.n_rot, hp.rope_base, hp.rope_scaling, factors="rope_freqs.weight"
        )
        self.window = read_count(file, "llama.attention.sliding_window", 0, 2**31 - 1, 0)
        if file.get_u32("llama.expert_count", 0):
            self.experts = read_moe(file, "llama", hp.n_layer, shared=False, dense=hp.n_ff)

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes."""
        yield from super().wants()
        yield Want("rope_freqs.weight", (self.hp.n_rot // 2,), optional=True)

    def attention_shape(self, layer: int) -> AttentionShape:
        """Biases where the file has them."""
        shape = attention_shape(self.hp, layer, self.rope, qk_norm=False, bias=True)
        return replace(shape, window=self.window)
