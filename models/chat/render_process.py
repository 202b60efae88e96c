"""The process that renders chat templates, run as a script: it imports jinja2 and nothing of this
package, so that it starts fast and has nothing that a template could reach.

Standard input: requests, each a length (8 bytes, little-endian) and a marshalled dict of `template`
(source) and `values` (what the template sees). Standard output: for each a length and a JSON
object, {"text"} or {"error", "kind"}. Arguments: a JSON object with `path` (where modules are
looked for) and the fields of Limits (render_worker.py)."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import signal
import struct
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO

LENGTH = struct.Struct("<Q")
FILE = "<template>"  # how jinja2 calls a source without a name in tracebacks
# With this many levels of Python frames the C stack of 8 MiB is far from its end.
DEPTH = 2000


class TooLong(Exception):
    """The text is longer than allowed."""


def make_environment() -> Any:
    """The environment that chat templates are written for, as `apply_chat_template` of transformers
    has it: https://huggingface.co/docs/transformers/chat_templating_writing."""
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """{% generation %} marks what the model wrote; what is set inside stays inside."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Dict:
        """`dict` for templates, without the type's other attributes."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return dict(*args, **kwargs)

        def fromkeys(self, *args: Any) -> Any:
            return dict.fromkeys(*args)

    def checked(name: Any) -> Any:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace may hold no name with an underscore first: {name!r}")
        return name

    class Names(Namespace):
        """`namespace` for templates, without names of Python's own."""

        def __init__(*args: Any, **kwargs: Any) -> None:  # a template may set `self`
            given = dict(*args[1:], **kwargs)
            Namespace.__init__(args[0], {checked(name): given[name] for name in given})

        def __setitem__(self, name: str, value: Any) -> None:
            super().__setitem__(checked(name), value)

    def refuse(message: Any) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": Dict(),
        "namespace": Names,
    }
    return made


@lru_cache(8)
def compiled(source: str) -> Any:
    """The template of a source."""
    return make_environment().from_string(source)


def render(source: str, values: dict[str, Any], most: int) -> str:
    """The text, of at most so many characters. Raises whatever the template raises."""
    parts, length = [], 0
    for part in compiled(source).generate(**values):
        parts.append(part)
        length += len(part)
        if length > most:
            raise TooLong(f"more than {most} characters")
    return "".join(parts)


def outcome(source: str, values: dict[str, Any], most: int) -> dict[str, Any]:
    """What goes back: the text, or what is wrong with the template or its values."""
    from jinja2.exceptions import SecurityError, TemplateError

    try:
        return {"text": render(source, values, most)}
    except TooLong as error:
        return {"kind": "limit", "error": str(error)}
    except MemoryError:
        return {"kind": "limit", "error": "more memory than it may have"}
    except RecursionError:
        return {"kind": "limit", "error": "nested too deeply"}
    except Exception as error:
        at = getattr(error, "lineno", None) or line_of(error)
        where = f"line {at}: " if at else ""
        if type(error) is TemplateError:
            return {"kind": "refused", "error": str(error)}
        if isinstance(error, SecurityError):
            return {"kind": "unsafe", "error": f"{where}{error}"}
        return {"kind": "failed", "error": f"{where}{type(error).__name__}: {error}"}


def line_of(error: BaseException) -> int | None:
    """The template's line that raised, None where there is none."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def confine(limits: dict[str, Any]) -> None:
    """Take from the process what no template needs."""
    import resource

    def limit(what: int, most: int) -> None:
        # Some systems know a limit and cannot set it.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))

    limit(resource.RLIMIT_AS, limits["memory"])
    limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_CORE, 0)
    sys.setrecursionlimit(DEPTH)
    # An alarm ends the process even inside of one long operation, and when nobody waits any more.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


def serve(requests: BinaryIO, answers: BinaryIO, limits: dict[str, Any]) -> None:
    """Answer requests to the end of the input."""
    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        request = marshal.loads(requests.read(LENGTH.unpack(head)[0]))
        signal.setitimer(signal.ITIMER_REAL, limits["seconds"])
        found = outcome(request["template"], request["values"], limits["characters"])
        raw = json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass")
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(LENGTH.pack(len(raw)) + raw)
        answers.flush()


def main() -> None:
    """Run until the other side closes standard input."""
    limits = json.loads(sys.argv[1])
    sys.path[:] = limits["path"]
    make_environment()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    confine(limits)
    serve(sys.stdin.buffer, answers, limits)


if __name__ == "__main__":
    main()
