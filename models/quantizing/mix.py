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

    def among_first(self, part: int) -> bool:
        """Whether it lies in the first 1/part."""
        return self.index < self.count // part


Rule = Callable[[Place, Facts], str | None]


@dataclass(frozen=True)
class Mix:
    """A named mix. file_type: its number in general.file_type; base: the type of most tensors.

    The rules give the type of values' projections, of ffn_down and of attn_output, None for the
    base; eight: that of attn_output in models of exactly 8 experts. heads: the type of the head,
    experts: that of 3-D tensors where it is another."""

    name: str
    file_type: int
    base: str
    values: Rule | None = None
    down: Rule | None = None
    output: str = ""
    eight: str = ""
    head: str = "q6_k"
    experts: str = ""
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
    Mix("MXFP4_MOE", 38, "q8_0", head="q8_0", experts="mxfp4"),
)
MIXES = {mix.name: mix for mix in _ALL}
_SHORT = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

# What takes the place of a type whose blocks do not divide a tensor's rows.
FALLBACK = {
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
