"""Types that GGUF files may have and that no weights are read in here: why, and what helps."""

from __future__ import annotations

from typing import NamedTuple


class Refusal(NamedTuple):
    """Why weights are not read in a type, and what to do instead."""

    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.why} ({self.remedy})"


# Names of type ids that have no DType: those that ggml has given up, and those of ik_llama.cpp.
_REARRANGED = {31: "q4_0_4_4", 32: "q4_0_4_8", 33: "q4_0_8_8"}
_REARRANGED |= {36: "iq4_nl_4_4", 37: "iq4_nl_4_8", 38: "iq4_nl_8_8"}
_FORK = {133: "q6_0", 134: "iq1_bn", 135: "iq2_bn", 137: "iq2_k", 138: "iq3_k", 139: "iq4_k"}
_FORK |= {140: "iq5_k", 141: "iq6_k", 144: "iq4_ks", 145: "iq2_ks", 146: "iq4_kss"}
_FORK |= {152: "iq5_ks", 153: "iq2_kt", 154: "iq3_kt", 155: "iq4_kt", 156: "iq3_ks"}
_FORK |= {157: "iq2_kl", 158: "iq1_kt"}
NAMES: dict[int, str] = {4: "q4_2", 5: "q4_3"} | _REARRANGED | _FORK

_GRID = Refusal(
    "its grid of 2048 points has no decoder here",
    "take the model in iq2_xxs, or quantise it to q2_k from a file in f16 or bf16",
)
_TERNARY = Refusal(
    "weights of three values, which have no decoder here",
    "convert the checkpoint to bf16, and quantise that to q2_k or a larger type",
)
_FEW_BITS = "take the model in q2_k or a larger type"
_NUMBERS = Refusal(
    "a type of tables, which no product reads",
    "convert the model again, to f32, f16 or bf16",
)
_PRODUCTS = Refusal(
    "the type of activations within ggml's products, and of no weights",
    "convert the model again, to f32, f16 or bf16",
)
_GIVEN_UP = Refusal(
    "a type from before GGUF, which ggml no longer reads either",
    "convert the model again from its checkpoint",
)

# By the name of the type.
REFUSED: dict[str, Refusal] = {
    **dict.fromkeys(("iq1_s", "iq1_m"), _GRID),
    **dict.fromkeys(("tq1_0", "tq2_0"), _TERNARY),
    "nvfp4": Refusal(
        "its scales are completed by a tensor beside each matrix, which is not read",
        "take the model in mxfp4 or q4_k",
    ),
    "q1_0": Refusal("signs with a scale for 128 of them, which have no decoder here", _FEW_BITS),
    "q2_0": Refusal("2 bits with a scale for 64 values, which have no decoder here", _FEW_BITS),
    **dict.fromkeys(("q8_1", "q8_k"), _PRODUCTS),
    **dict.fromkeys(("f64", "i8", "i16", "i32", "i64"), _NUMBERS),
    **dict.fromkeys(("q4_2", "q4_3"), _GIVEN_UP),
    **{
        name: Refusal(
            "blocks rearranged for one kind of processor, which ggml no longer reads from files",
            f"take the model in {name[:-4]}",
        )
        for name in _REARRANGED.values()
    },
    **dict.fromkeys(
        _FORK.values(),
        Refusal(
            "a type of ik_llama.cpp's own", "take the model in q4_k, iq4_xs or another of ggml's"
        ),
    ),
}
