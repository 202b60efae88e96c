"""`riverrun spec check`: is decoding with drafts what plain decoding is, and where is it not?"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ..engine import SamplerParams
from ..engine.session_options import SessionOptions
from ..graph.fields import integer
from ..graph.random import MAX_SEED
from ..speculative import Speculation
from .ending import Ending
from .loading import Loading, load_asked
from .misuse import misuse
from .options import Json
from .parameters import Chosen, Offer, command
from .run import Prompt
from .speculation import MEASURED, ONE_TEXT, Drafting

if TYPE_CHECKING:
    from ..engine import Model
    from ..speculative.check import Check, Parting
    from ..speculative.locate import Cause, NodeDifference, StateDifference

Option = typer.Option
Logits: TypeAlias = Annotated[
    bool, Option("--logits", help="Logits have to be equal too, bit for bit.")
]
NearTie: TypeAlias = Annotated[
    float,
    Option("--near-tie", metavar="GAP", min=0.0, help="Logits less apart than this nearly tie."),
]
Tolerance: TypeAlias = Annotated[
    float,
    Option(
        "--tolerance",
        metavar="R",
        min=0.0,
        help="Nodes and states differ from R times the rms of a row on; 0: bit for bit.",
    ),
]


SEED = integer(0, MAX_SEED)
OFFERED = {
    "n": {"help": "Tokens to compare; -1: to the end token or the context's end."},
    "kinds": {"absent": ("mtp",), "shown": "mtp", "help": "Drafters, as in `run`."},
    "temperature": {"absent": 0.0},
    "seed": {"absent": 0, "unset": None, "check": SEED, "help": "Seed of both runs' draws."},
}


@command
def check(
    prompt: Prompt,
    ending: Annotated[Ending, Offer(only=("n", "ignore_eos"), changed=OFFERED)],
    drafts: Annotated[Chosen[Speculation], Offer(only=("kinds", *MEASURED), changed=OFFERED)],
    session: Annotated[Chosen[SessionOptions], ONE_TEXT],
    sampling: Annotated[SamplerParams, Offer(changed=OFFERED)],
    loading: Loading,
    logits: Logits = False,
    near_tie: NearTie = 0.01,
    tolerance: Tolerance = 0.0,
    as_json: Json = False,
) -> None:
    """Generate with and without drafts, side by side; exit with 1 at the first token that differs,
    after telling which state, round or node of the graph made it differ.

    Drafts have their full length always, so that the rounds of two calls are the same."""
    from ..speculative.check import Asked, Check
    from ..speculative.locate import locate

    prompt = prompt.found()
    if not drafts.values["kinds"]:
        raise misuse("expected drafters to check, got none", "--spec")
    drafting = Drafting(
        replace(drafts, values={**drafts.values, "adaptive": False}), session, loading
    )
    drafting.check()
    offload = drafting.offload(session.values.get("n_ctx"))
    model = load_asked(loading, offload)
    speculation = drafting.open()
    assert speculation is not None
    plain = {k: v for k, v in session.values.items() if k not in ("rollback", "n_rs_seq")}
    checked = Check(
        model,
        Asked(
            model.plan_session(**plain),
            model.plan_session(**drafting.session_options()),
            speculation,
            list(prompt.ids(model)),
            ending.n,
            sampling,
            ending.ignore_eos,
            logits,
        ),
    )
    checked.run()
    cause = locate(checked, tolerance) if checked.parting else None
    if as_json:
        print(json.dumps(_object(checked, cause, near_tie)))
    else:
        print("\n".join(_lines(checked, cause, near_tie)))
    if cause:
        raise typer.Exit(1)


def _object(checked: Check, cause: Cause | None, near_tie: float) -> dict[str, Any]:
    stats = checked.speculator.statistics_in_all
    first = None
    if checked.parting and cause:
        first = {
            **_parting(checked.model, checked.parting, near_tie),
            "position": len(checked.asked.prompt) + checked.parting.index,
            "round": len(checked.rounds),
            "cause": cause.kind,
            "cause_round": cause.round,
            "repeats": cause.repeats,
            "state": vars(cause.state) if cause.state else None,
            "node": vars(cause.node) if cause.node else None,
        }
    return {
        "equal": checked.parting is None,
        "tokens": len(checked.tokens),
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "rollback": checked.drafted.plan.strategy.name,
        "model": checked.model.name,
        "device": checked.model.device,
        "first_difference": first,
    }


def _parting(model: Model, parting: Parting, near_tie: float) -> dict[str, Any]:
    """The two tokens, each with its logits in both runs."""
    plain, drafted = parting.logits

    def token(of: int) -> dict[str, Any]:
        return {
            "token": of,
            "text": model.tokenizer.decode([of], special=True),
            "logit_plain": float(plain[of]),
            "logit_drafted": float(drafted[of]),
        }

    return {
        "index": parting.index,
        "plain": token(parting.tokens[0]),
        "drafted": token(parting.tokens[1]),
        "top2_gap": parting.top2_gap,
        "near_tie": parting.top2_gap < near_tie,
        "near_tie_bound": near_tie,
        "logits_largest_difference": parting.largest,
        "row": parting.row,
    }


def _lines(checked: Check, cause: Cause | None, near_tie: float) -> list[str]:
    """The report for people."""
    stats = checked.speculator.statistics_in_all
    rounds = f"{stats.rounds} round{'s' * (stats.rounds != 1)}"
    counts = f"{rounds}, accepted {stats.accepted} of {stats.drafted}"
    if not checked.parting or not cause:
        return [f"equal: {len(checked.tokens)} tokens, {counts}"]
    found = _parting(checked.model, checked.parting, near_tie)
    position = len(checked.asked.prompt) + checked.parting.index
    two = [found["plain"], found["drafted"]]
    tokens = f"plain {_token(two[0])}, with drafts {_token(two[1])}"
    if two[0] == two[1]:
        two, tokens = two[:1], f"{_token(two[0])} in both, its logits differ"
    tie = "a near-tie" if found["near_tie"] else "no near-tie"
    last = len(checked.rounds)
    passed = len(checked.drafted.passes[-1].tokens)
    made = f"round {last}, a pass of {passed} tokens" if last else "the prompt"
    return [
        f"differs at token {found['index']}, position {position}: {tokens}; until there {counts}",
        *(
            f"  logit of {t['token']}: {t['logit_plain']:.6g} plain, {t['logit_drafted']:.6g} "
            "with drafts"
            for t in two
        ),
        f"  top-2 gap {found['top2_gap']:.3g} in the plain run, {tie} (bound {near_tie:g}); "
        f"logits differ by at most {found['logits_largest_difference']:.3g}",
        f"  chosen in {made}, from row {found['row']}",
        *_cause(checked, cause),
    ]


def _token(found: dict[str, Any]) -> str:
    return f"{found['token']} {found['text']!r}"


def _cause(checked: Check, cause: Cause) -> list[str]:
    """What made the difference, in a line or two."""
    strategy = checked.drafted.plan.strategy.name
    if cause.kind == "choice":
        return ["the logits are equal, bit for bit: sampler or acceptance chose another token"]
    if cause.kind == "tokens":
        return [f"the session holds other tokens than the text after round {cause.round}"]
    if cause.state:
        return [_state(cause.state), _made(cause.node, strategy)]
    if cause.node:
        return [f"the state before is equal; {_node(cause.node)}"]
    if not cause.repeats:
        return ["made again, the pass gives other logits: what it computes does not repeat"]
    return [
        "no state and no node differs when all values are kept: memory is used twice in the plan"
    ]


def _state(found: StateDifference) -> str:
    when = "the prompt" if found.round == 0 else f"round {found.round}"
    attends = found.tensor.startswith("cache_")
    row = f"position {found.row}" if attends else f"sequence {found.row}"
    return (
        f"state {found.tensor} differs after {when} (committed {found.committed} of "
        f"{found.verified}): layer {found.layer}, {row}, {found.differing} of {found.values} "
        f"values, max difference {found.largest:.3g}"
    )


def _made(node: NodeDifference | None, strategy: str) -> str:
    if node:
        return f"in that pass, {_node(node)}"
    return (
        "no node of that pass differs in rows that stayed: the fault is in what is kept, or in "
        f"going back (rollback {strategy})"
    )


def _node(found: NodeDifference) -> str:
    output = f" ({found.output})" if found.output else ""
    return (
        f"first differing node: {found.op} {found.name}{output} in the pass of {found.tokens} "
        f"tokens, row {found.row}, max difference {found.largest:.3g}"
    )
