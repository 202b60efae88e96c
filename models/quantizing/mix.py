"""The mixes of types that quantised files are named after, as llama.cpp's quantiser makes them.

Source: `llama_tensor_get_type_impl` and `tensor_type_fallback` of llama.cpp's src/llama-quant.cpp
say which type each tensor gets; nothing here is measured anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...graph.errors import RequestError


@dataclass(frozen=True)
class Facts:
    """What the choice of a type depends on beside the tensor: layers with MTP blocks, query heads
    for each key-value head, experts, whether a model is of the kind and size of Llama 70B, and
    whether an importance matrix is given."""

    n_layer: int
    n_gqa: int
    n_expert: int
    is_70b: bool
    importance: bool


@dataclass(frozen=True)
class Place:
    """A tensor among those of its class: its number, and how many there are."""

    index: int
    count: int

    @property
    def more_bits(self) -> bool:
        """The first and last eighth, and every third between."""
        eighth = self.count // 8
        ends = self.index < eighth or self.index >= 7 * self.count // 8
        return ends or (self.index - eighth) % 3 == 2

    @property
    def middle(self) -> bool:
        """Neither the first eighth nor the last."""
        return self.count // 8 <= self.index < 7 * self.count // 8

    def among_first(self, part: int) -> bool:
        """Whether it lies in the first 1/part."""
        return self.index < self.count // part


Rule = Callable[[Place, Facts], str | None]


@dataclass(frozen=True)
class Mix:
    """A named mix. file_type: its number in general.file_type; base: the type of most tensors.

    The rules give the type of values' projections, of ffn_down and of attn_output, None for the
    base; eight: that of attn_output in models of exactly 8 experts. head: the type of the head,
    experts: that of 3-D tensors where it is another. queries and keys: that of their projections,
    embedding: that of token_embd, middle: that of ffn_gate and ffn_up in the middle three quarters
    of the layers. lean: models of 8 experts, and of the size of Llama 70B, get no more bits for
    values and keys than others. needs_importance: types that need an importance matrix in this mix,
    beside those that always do."""

    name: str
    file_type: int
    base: str
    values: Rule | None = None
    down: Rule | None = None
    output: str = ""
    eight: str = ""
    head: str = "q6_k"
    experts: str = ""
    embedding: str = ""
    queries: str = ""
    keys: str = ""
    middle: str = ""
    lean: bool = False
    needs_importance: tuple[str, ...] = field(default=())


def _more_bits(kind: str) -> Rule:
    return lambda place, facts: kind if place.more_bits else None


def _always(kind: str) -> Rule:
    return lambda place, facts: kind


def _first(number: int, kind: str) -> Rule:
    return lambda place, facts: kind if place.index < number else None


def _first_part(part: int, kind: str) -> Rule:
    return lambda place, facts: kind if place.among_first(part) else None


def _shared_heads(kind: str, otherwise: str | None = None) -> Rule:
    """Where four query heads or more share a value."""
    return lambda place, facts: kind if facts.n_gqa >= 4 else otherwise


def _with_importance(kind: str) -> Rule:
    return lambda place, facts: kind if facts.importance and place.among_first(8) else None


def _without_importance(kind: str) -> Rule:
    return lambda place, facts: kind if not facts.importance and place.among_first(8) else None


def _q3_k_m_down(place: Place, facts: Facts) -> str:
    return "q5_k" if place.among_first(16) else "q4_k"


def _q3_k_m_values(place: Place, facts: Facts) -> str:
    return "q5_k" if place.index < 2 else "q4_k"


def _lean_values(kind: str) -> Rule:
    """Where four query heads or more share a value, or there are experts."""
    return lambda place, facts: "q4_k" if facts.n_gqa >= 4 or facts.n_expert >= 4 else kind


def _iq3_xxs_values(place: Place, facts: Facts) -> str | None:
    return "q4_k" if facts.n_gqa >= 4 else None if facts.importance else "iq3_s"


def _iq3_xxs_down(place: Place, facts: Facts) -> str | None:
    return None if facts.importance else "q4_k" if place.among_first(8) else "q3_k"


def _iq3_m_down(place: Place, facts: Facts) -> str | None:
    more = place.among_first(8) or (facts.n_expert == 8 and place.more_bits)
    return "q4_k" if more else None


def _two_bits(name: str, file_type: int, base: str, more: str, output: str = "") -> Mix:
    """A mix of about two bits. more: what embeddings, values and the first layers' ffn_down get."""
    return Mix(
        name,
        file_type,
        base,
        values=_lean_values(more),
        down=_first_part(8, more),
        output=output,
        eight="q5_k",
        head="q5_k",
        embedding=more,
        lean=True,
    )


_ALL = (
    Mix("F32", 0, "f32"),
    Mix("F16", 1, "f16"),
    Mix("BF16", 32, "bf16"),
    Mix("Q8_0", 7, "q8_0", head="q8_0"),
    Mix("Q4_0", 2, "q4_0", down=_with_importance("q4_1")),
    Mix("Q4_1", 3, "q4_1"),
    Mix("Q5_0", 8, "q5_0", down=_with_importance("q5_1")),
    Mix("Q5_1", 9, "q5_1"),
    Mix(
        "Q2_K",
        10,
        "q2_k",
        values=_shared_heads("q4_k", "q3_k"),
        down=_always("q3_k"),
        output="q3_k",
        eight="q5_k",
    ),
    Mix(
        "Q2_K_S",
        21,
        "q2_k",
        values=_shared_heads("q4_k"),
        down=_first_part(8, "q4_k"),
        needs_importance=("q2_k",),
    ),
    Mix("Q3_K_S", 11, "q3_k", eight="q5_k"),
    Mix(
        "Q3_K_M",
        12,
        "q3_k",
        values=_q3_k_m_values,
        down=_q3_k_m_down,
        output="q4_k",
        eight="q5_k",
    ),
    Mix(
        "Q3_K_L",
        13,
        "q3_k",
        values=_always("q5_k"),
        down=_always("q5_k"),
        output="q5_k",
    ),
    Mix(
        "Q4_K_S",
        14,
        "q4_k",
        values=_first(4, "q5_k"),
        down=_first_part(8, "q5_k"),
        eight="q5_k",
    ),
    Mix(
        "Q4_K_M",
        15,
        "q4_k",
        values=_more_bits("q6_k"),
        down=_more_bits("q6_k"),
        eight="q5_k",
    ),
    Mix("Q5_K_S", 16, "q5_k"),
    Mix("Q5_K_M", 17, "q5_k", values=_more_bits("q6_k"), down=_more_bits("q6_k")),
    Mix("Q6_K", 18, "q6_k"),
    Mix(
        "IQ4_NL",
        25,
        "iq4_nl",
        values=_shared_heads("q5_k"),
        down=_without_importance("q5_k"),
        eight="q5_k",
    ),
    Mix(
        "IQ4_XS",
        30,
        "iq4_xs",
        values=_shared_heads("q5_k"),
        down=_without_importance("q5_k"),
        eight="q5_k",
    ),
    _two_bits("IQ2_XXS", 19, "iq2_xxs", "q2_k"),
    _two_bits("IQ2_XS", 20, "iq2_xs", "q2_k"),
    _two_bits("IQ2_S", 28, "iq2_xs", "iq3_s", output="iq3_s"),
    _two_bits("IQ2_M", 29, "iq2_s", "iq3_s", output="iq3_s"),
    Mix(
        "IQ3_XXS",
        23,
        "iq3_xxs",
        values=_iq3_xxs_values,
        down=_iq3_xxs_down,
        output="iq3_s",
        eight="q5_k",
        head="q5_k",
        embedding="iq3_s",
        queries="iq2_s",
        keys="iq2_s",
    ),
    Mix(
        "IQ3_XS",
        22,
        "iq3_s",
        values=_shared_heads("q4_k"),
        eight="q5_k",
        queries="iq3_xxs",
        keys="iq3_xxs",
        middle="iq3_xxs",
    ),
    Mix("IQ3_S", 26, "iq3_s", values=_shared_heads("q4_k"), eight="q5_k"),
    Mix(
        "IQ3_M",
        27,
        "iq3_s",
        values=_always("q4_k"),
        down=_iq3_m_down,
        output="q4_k",
        eight="q5_k",
    ),
    Mix("MXFP4_MOE", 38, "q8_0", head="q8_0", experts="mxfp4"),
)
MIXES = {mix.name: mix for mix in _ALL}
_SHORT = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

# Types so small that encoders have to be told which errors matter.
NEED_IMPORTANCE = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")

# What takes the place of a type whose blocks do not divide a tensor's rows.
FALLBACK = {
    "iq2_xxs": "iq4_nl",
    "iq2_xs": "iq4_nl",
    "iq2_s": "iq4_nl",
    "iq3_xxs": "iq4_nl",
    "iq3_s": "iq4_nl",
    "iq4_xs": "iq4_nl",
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}


def find_mix(name: str) -> Mix:
    """A mix by its name, in any case; Q4_K means Q4_K_M. Raises RequestError listing all."""
    upper = name.upper()
    found = MIXES.get(_SHORT.get(upper, upper))
    if found is None:
        raise RequestError(f"type: expected one of {', '.join(MIXES)}, got {name!r}")
    return found
