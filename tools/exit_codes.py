"""How the command ends: bad files and run-time errors, usage errors, and as after the signals
SIGINT and SIGPIPE."""

from __future__ import annotations

OK, FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 128 + 2, 128 + 13
