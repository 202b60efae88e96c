"""The `riverrun` command: what runs before anything else is imported, so that Ctrl-C ends it as
documented from the start."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .exit_codes import INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code: 0, 1 for bad files and run-time errors, 2 for usage
    errors, 130 after Ctrl-C, 141 when the reader of standard output went away."""
    try:
        from .dispatch import run_command

        return run_command(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
