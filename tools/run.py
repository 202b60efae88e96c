"""`riverrun run`: continue a prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .constraints import Grammar, GrammarFile, JsonSchema, Regex, asked_constraint
from .loading import load_model
from .messages import note
from .options import DeviceName, GpuLayers, Json, ModelPath, Threads, gpu_layers, integers
from .speculation import (
    Acceptance,
    Asked,
    DraftHead,
    DraftMax,
    DraftMin,
    DraftModelPath,
    LookupDynamic,
    LookupStatic,
    NoAdaptive,
    NRsSeq,
    PMin,
    Rollback,
    Spec,
)

if TYPE_CHECKING:
    from ..engine import Generation

Option = typer.Option
Prompt: TypeAlias = Annotated[str | None, Option("-p", "--prompt", help="Text to continue.")]
Tokens: TypeAlias = Annotated[
    str | None, Option("--tokens", metavar="ID,ID,...", help="Token ids, instead of -p.")
]
Count: TypeAlias = Annotated[
    int,
    Option(
        "-n",
        "--n-predict",
        metavar="N",
        min=-1,
        help="Tokens to generate; -1: to the end token or the context's end.",
    ),
]
Temp: TypeAlias = Annotated[float, Option("--temp", help="Temperature; 0: greedy.")]
TopK: TypeAlias = Annotated[int, Option("--top-k", help="Keep the k likeliest tokens; 0: all.")]
TopP: TypeAlias = Annotated[float, Option("--top-p", help="Keep this much probability; 1: all.")]
MinP: TypeAlias = Annotated[
    float, Option("--min-p", help="Least probability relative to the likeliest token; 0: off.")
]
RepeatPenalty: TypeAlias = Annotated[
    float, Option("--repeat-penalty", help="Divides logits of recent tokens; 1: off.")
]
RepeatLastN: TypeAlias = Annotated[
    int, Option("--repeat-last-n", help="Tokens that penalties look back on; -1: all, 0: off.")
]
FrequencyPenalty: TypeAlias = Annotated[
    float, Option("--frequency-penalty", help="Subtracted once per recent occurrence; 0: off.")
]
PresencePenalty: TypeAlias = Annotated[
    float, Option("--presence-penalty", help="Subtracted from tokens seen recently; 0: off.")
]
Seed: TypeAlias = Annotated[int, Option("--seed", metavar="S", help="Seed; -1: a random one.")]
Context: TypeAlias = Annotated[
    int | None,
    Option(
        "-c",
        "--ctx-size",
        metavar="CTX",
        min=1,
        help="Context size in tokens.",
        show_default="the model's own, up to 4096",
    ),
]
Stop: TypeAlias = Annotated[
    list[str] | None, Option("--stop", metavar="STR", help="Text that ends it; repeatable.")
]
IgnoreEos: TypeAlias = Annotated[bool, Option("--ignore-eos", help="Do not stop at the end token.")]
CacheTypeK: TypeAlias = Annotated[
    str, Option("--cache-type-k", metavar="T", help="Element type of cached keys.")
]
CacheTypeV: TypeAlias = Annotated[
    str, Option("--cache-type-v", metavar="T", help="Element type of cached values.")
]


def run(
    model: ModelPath = None,
    prompt: Prompt = None,
    tokens: Tokens = None,
    n: Count = 128,
    temp: Temp = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    repeat_penalty: RepeatPenalty = 1.0,
    repeat_last_n: RepeatLastN = 64,
    frequency_penalty: FrequencyPenalty = 0.0,
    presence_penalty: PresencePenalty = 0.0,
    seed: Seed = -1,
    ctx: Context = None,
    threads: Threads = None,
    device: DeviceName = "auto",
    layers: GpuLayers = None,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    cache_type_k: CacheTypeK = "f16",
    cache_type_v: CacheTypeV = "f16",
    spec: Spec = None,
    draft_model: DraftModelPath = None,
    draft_max: DraftMax = None,
    draft_min: DraftMin = 0,
    p_min: PMin = 0.0,
    acceptance: Acceptance = "match",
    draft_head: DraftHead = 0,
    lookup_cache_static: LookupStatic = None,
    lookup_cache_dynamic: LookupDynamic = None,
    rollback: Rollback = "auto",
    n_rs_seq: NRsSeq = None,
    no_adaptive: NoAdaptive = False,
    json_schema: JsonSchema = None,
    regex: Regex = None,
    grammar: Grammar = None,
    grammar_file: GrammarFile = None,
    as_json: Json = False,
) -> None:
    """Continue a prompt: the text goes to standard output as it comes, timings to standard error.

    With --json one object at the end is all that standard output gets."""
    from ..engine import Session

    sampling: dict[str, Any] = {
        "temperature": temp,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "repeat_last_n": repeat_last_n,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "seed": None if seed == -1 else seed,
    }
    asked = Asked(
        spec,
        draft_model,
        draft_max,
        draft_min,
        p_min,
        rollback,
        n_rs_seq,
        no_adaptive,
        acceptance,
        draft_head,
        lookup_cache_static,
        lookup_cache_dynamic,
    )
    ids = prompt_ids(prompt, tokens)
    check_options(
        sampling, stop or [], {"--cache-type-k": cache_type_k, "--cache-type-v": cache_type_v}
    )
    asked.check()
    must = asked_constraint(json_schema, regex, grammar, grammar_file)
    loaded = load_model(model, device, threads, draft_head, asked.offload(gpu_layers(layers), ctx))
    plan = loaded.plan_session(
        ctx, cache_type_k=cache_type_k, cache_type_v=cache_type_v, **asked.session_options()
    )
    speculation = asked.open(device, threads)
    if speculation or plan.bytes.rollback or plan.bytes.host:
        note(plan.summary)
    session = Session(loaded, plan)
    generation = loaded.generate(
        loaded.tokenize(prompt) if prompt is not None else ids,
        n,
        stop=stop or (),
        ignore_eos=ignore_eos,
        session=session,
        speculative=speculation,
        constraint=loaded.constraint(*must) if must else None,
        **sampling,
    )
    if as_json:
        _print_object(generation)
    else:
        _print_text(generation, prompt if prompt is not None else loaded.tokenizer.decode(ids))


def prompt_ids(prompt: str | None, tokens: str | None) -> list[int]:
    """The ids of --tokens, none with -p. Raises typer.BadParameter unless one is given."""
    if (prompt is None) == (tokens is None):
        got = "neither" if prompt is None else "both"
        raise typer.BadParameter(f"give one of them, got {got}", param_hint="-p / --tokens")
    return integers("--tokens", tokens, least=0) if tokens is not None else []


def check_options(sampling: dict[str, Any], stops: list[str], cache_types: dict[str, str]) -> None:
    """Find what is wrong on the command line itself before a model is loaded."""
    from ..engine import SamplerParams
    from ..engine.session_plan import CACHE_TYPES
    from ..graph.errors import RequestError

    try:
        SamplerParams(**sampling).validate(n_vocab=1)
    except RequestError as error:
        raise typer.BadParameter(str(error)) from None
    if "" in stops:
        raise typer.BadParameter("expected some text, got none", param_hint="--stop")
    for option, name in cache_types.items():
        if name not in CACHE_TYPES:
            raise typer.BadParameter(
                f"expected one of {', '.join(CACHE_TYPES)}, got {name!r}", param_hint=option
            )


def _print_object(generation: Generation) -> None:
    fault = _drain(generation, lambda piece: None)
    print(json.dumps(generation.result.as_dict()), flush=True)
    if fault:
        raise fault


def _print_text(generation: Generation, prompt: str) -> None:
    _write(prompt)
    fault = _drain(generation, _write)
    _write("\n")
    if fault is None or isinstance(fault, KeyboardInterrupt):
        note(_summary(generation, "interrupted" if fault else generation.result.finish_reason))
    if fault:
        raise fault


def _drain(generation: Generation, emit: Callable[[str], None]) -> BaseException | None:
    """Emit all pieces. What broke it off, None for nothing; the text until then is kept."""
    try:
        for piece in generation:
            emit(piece)
    except (Exception, KeyboardInterrupt) as fault:
        # An interrupt may come between two pieces, and `result` would run the rest.
        generation.close()
        return fault
    return None


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _summary(generation: Generation, reason: str) -> str:
    """One line: tokens and rates, how it ended, on what it ran."""
    times, model = generation.timings.as_dict(), generation.model
    threads = model.backend.threads
    parts = [
        f"prompt {times['prompt_n']} tokens, {times['prompt_per_second']:.1f} t/s",
        f"generated {times['predicted_n']} tokens, {times['predicted_per_second']:.1f} t/s",
        *_drafts(times),
        reason,
        f"{model.name} on {model.device}" + (f", threads {threads}" if threads else ""),
    ]
    if not generation.sampler.params.greedy:
        parts.append(f"seed {generation.sampler.seed}")
    return " | ".join(parts)


def _drafts(times: dict[str, Any]) -> list[str]:
    """What speculation did, if it was asked for."""
    if "draft_n" not in times:
        return []
    return [
        f"drafts {times['draft_n_accepted']} of {times['draft_n']} kept in "
        f"{times['draft_rounds']} rounds"
    ]
