"""Which cases of which ops to run, and what came of them."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ..backends import Backend
from ..backends.harness import CaseResult, run_case
from ..graph import OPS
from ..graph.case import BoundCase, op_cases
from ..graph.errors import RequestError
from ..models import load  # noqa: F401  (registers the ops)

STATUSES = ("passed", "failed", "refused")


def small_cases(names: Sequence[str] | None = None) -> list[BoundCase]:
    """All cases but those for measuring, of the named ops or of all."""
    return [case for case in registered_cases(names) if "perf" not in case.tags]


def registered_cases(names: Sequence[str] | None = None) -> list[BoundCase]:
    """All cases of the named ops or of all. Raises RequestError for a name that no op has."""
    for name in names or ():
        if name not in OPS:
            raise unknown("op", name, OPS)
    return [case for name in names or sorted(OPS) for case in op_cases(OPS[name])]


def find_cases(ids: Iterable[str], cases: Sequence[BoundCase]) -> list[BoundCase]:
    """The cases of these ids. Raises RequestError, with similar ones, for an id that is not."""
    by_id = {case.id: case for case in cases}
    found = []
    for wanted in ids:
        if wanted not in by_id:
            alike = [i for i in by_id if i.split("[")[0] == wanted.split("[")[0]]
            raise unknown("case", wanted, alike or by_id)
        found.append(by_id[wanted])
    return found


def unknown(what: str, name: str, known: Iterable[str]) -> RequestError:
    """The error for a name that is not known, which lists similar ones; the caller raises it.
    what: of what it is no name, and so the argument that the error names."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    near = near or [k for k in known if k.startswith(name[:3])][:5] or known[:8]
    return RequestError(f"no {what} is called {name!r}; near it: {', '.join(near)}", what)


def run_cases(
    backend: Backend,
    cases: Iterable[tuple[str, BoundCase]],
    progress: Callable[[CaseResult], None] = lambda result: None,
) -> list[CaseResult]:
    """The results of all (plan kind, case), in order; progress is told of each."""
    results = []
    for kind, case in cases:
        results.append(run_case(backend, case, kind))
        progress(results[-1])
    return results


def summary(results: Sequence[CaseResult]) -> dict[str, int]:
    """How many cases passed, failed and were refused, and of how many ops they are."""
    counts = Counter(result.status for result in results)
    return {**{s: counts[s] for s in STATUSES}, "ops": len({r.op for r in results})}


def refusals(results: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    """Refused cases by op and reason, the most frequent first."""
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        if result.status == "refused":
            groups.setdefault(f"{result.op}: {result.why}", []).append(result)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
