"""Checked reads over the bytes of one file: nothing is read, sliced or allocated unchecked."""

from __future__ import annotations

import struct
from mmap import mmap
from pathlib import Path

from ...graph.errors import GgufError

MAX_STRING = 1 << 30
REFETCH = "the file is truncated or damaged: fetch or convert it again"
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")


def show(name: str, limit: int = 72) -> str:
    """A name from a file, quoted, escaped and cut short, fit for a one-line message."""
    return repr(name if len(name) <= limit else name[: limit - 3] + "...")


class Cursor:
    """A read position in a mapped file. `where` names what is being read, for messages.

    Every method raises GgufError when the file holds fewer bytes than are asked for."""

    def __init__(self, path: Path, buf: mmap) -> None:
        self.path = path
        self.buf = buf
        self.size = len(buf)
        self.pos = 0
        self.where = "header"

    @property
    def left(self) -> int:
        """Bytes between the position and the end of the file."""
        return self.size - self.pos

    def error(self, message: str) -> GgufError:
        """A GgufError that names the file and what was being read."""
        return GgufError(f"{self.path}: {self.where}: {message}")

    def need(self, nbytes: int, what: str) -> None:
        """Check that nbytes more bytes exist."""
        if nbytes > self.size - self.pos:
            raise self.error(
                f"{what} needs {nbytes} bytes at offset {self.pos}, "
                f"got {self.left} before the end of the file; {REFETCH}"
            )

    def unpack(self, layout: struct.Struct, what: str) -> tuple[int, ...]:
        """The numbers of a layout at the position, which moves past them."""
        self.need(layout.size, what)
        values = layout.unpack_from(self.buf, self.pos)
        self.pos += layout.size
        return values

    def i32(self, what: str) -> int:
        """A signed 32-bit number."""
        return self.unpack(_I32, what)[0]

    def u32(self, what: str) -> int:
        """An unsigned 32-bit number."""
        return self.unpack(_U32, what)[0]

    def i64(self, what: str) -> int:
        """A signed 64-bit number."""
        return self.unpack(_I64, what)[0]

    def u64(self, what: str) -> int:
        """An unsigned 64-bit number."""
        return self.unpack(_U64, what)[0]

    def skip(self, nbytes: int, what: str) -> None:
        """Move past nbytes bytes that must exist."""
        self.need(nbytes, what)
        self.pos += nbytes

    def string_length(self, what: str, limit: int = MAX_STRING) -> int:
        """The length prefix of a string whose bytes are all in the file."""
        length = self.u64(f"length of the {what}")
        if length > limit:
            raise self.error(f"{what} must have at most {limit} bytes, got {length}; {REFETCH}")
        self.need(length, what)
        return length

    def name(self, what: str, limit: int) -> str:
        """A UTF-8 string of at most `limit` bytes."""
        length = self.string_length(what, limit)
        raw = self.buf[self.pos : self.pos + length]
        self.pos += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} must be UTF-8, got {raw[:48]!r}; {REFETCH}") from None

    def skip_strings(self, count: int) -> None:
        """Move past `count` strings, checking each one's bounds, building none of them."""
        unpack, buf, pos, last = _U64.unpack_from, self.buf, self.pos, self.size - 8
        for _ in range(count):
            if pos > last:
                break
            (length,) = unpack(buf, pos)
            if length > MAX_STRING:
                break
            pos += 8 + length
        else:
            if pos <= self.size:
                self.pos = pos
                return
        raise self.error(
            f"an array of {count} strings must end within the {self.size} bytes of the file, "
            f"got a string that ends at byte {pos}; {REFETCH}"
        )
