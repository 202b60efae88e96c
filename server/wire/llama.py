"""Bodies of llama-server's own endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from .body import Body
from .sampling import OPENAI_IGNORED, SAMPLERS_REFUSED, Sampling, Whole

_REFUSED: dict[str, tuple[Any, ...]] = {
    **SAMPLERS_REFUSED,
    "image_data": (),
    "multimodal_data": (),
    "post_sampling_probs": (),
}


class _Continuing(Sampling):
    """What /completion and /infill share."""

    ignored: ClassVar[frozenset[str]] = OPENAI_IGNORED | {"return_progress"}
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = _REFUSED

    model: str | None = None
    n_predict: Whole | None = None
    max_tokens: Whole | None = None
    n_probs: Whole | None = Field(None, ge=0, le=100)
    stream: bool | None = None
    grammar: str | None = None
    json_schema: Any = None
    return_tokens: bool | None = None
    return_drafted: bool | None = None
    timings_per_token: bool | None = None


class LlamaCompletionBody(_Continuing):
    """/completion."""

    prompt: str | list[Any]


class ExtraFile(BaseModel):
    """Another file beside the one that is filled in."""

    model_config = ConfigDict(extra="forbid")

    text: str
    filename: str = "file"


class InfillBody(_Continuing):
    """/infill."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] | None = None
    prompt: str = Field("", description="What the missing part begins with.")


class SlotBody(Body):
    """/slots/ID?action=save, restore or erase."""

    ignored: ClassVar[frozenset[str]] = frozenset({"model"})

    filename: str | None = Field(None, description="Name of a file in the folder of saved slots.")
