"""Sound GGUF files taken apart, and put together again with one thing wrong.

Source of the layout: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import gguf
from gguf_bytes import KIND_IDS, string

KINDS = {number: kind for kind, number in KIND_IDS.items()}
CODES = {
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "f32": "f",
    "bool": "B",
    "u64": "Q",
    "i64": "q",
    "f64": "d",
}
BITS = {kind: 8 * struct.calcsize(code) for kind, code in CODES.items()}
FLOATS = (0.0, -0.0, -1.0, 1.0, 1e-45, 1e-30, 3e38, float("inf"), -float("inf"), float("nan"))
TEXTS = (b"", b"\xff\xfe", b"x" * 70, b"llama", b"none", b"yarn", b"\0", b"general.architecture")
SIZES = {int(t): size for t, size in gguf.GGML_QUANT_SIZES.items()}
MOST_DATA = 1 << 20
TYPE_IDS = (0, 1, 2, 8, 12, 14, 24, 26, 28, 30, 39, 4, 43, 250, -1)


@dataclass
class Key:
    """A key with its value: bytes of the items, one for a scalar. count: may lie in the file."""

    name: bytes
    kind: int
    items: list[bytes]
    is_array: bool
    count: int | None = None

    def build(self) -> bytes:
        """As it stands in the file."""
        body = b"".join(self.items)
        if self.is_array:
            n = len(self.items) if self.count is None else self.count
            body = struct.pack("<iiQ", KIND_IDS["array"], self.kind, n & (1 << 64) - 1) + body
        else:
            body = struct.pack("<i", self.kind) + body
        return string(self.name) + body


@dataclass
class Row:
    """A row of the tensor table. n_dims: may lie."""

    name: bytes
    ne: list[int]
    type_id: int
    offset: int
    n_dims: int | None = None

    def build(self) -> bytes:
        """As it stands in the file."""
        n_dims = len(self.ne) if self.n_dims is None else self.n_dims
        head = string(self.name) + struct.pack("<I", n_dims & 0xFFFFFFFF)
        ne = b"".join(struct.pack("<Q", n & (1 << 64) - 1) for n in self.ne)
        return head + ne + struct.pack("<iQ", self.type_id, self.offset & (1 << 64) - 1)


@dataclass
class Parts:
    """A file in pieces; the counts of the header are those of keys and rows plus what is given."""

    keys: list[Key]
    rows: list[Row]
    data: bytes
    version: int = 3
    more_keys: int = 0
    more_rows: int = 0
    victim: str = field(default="", compare=False)

    def head(self) -> bytes:
        """Everything before the padding of the data."""
        counts = (len(self.rows) + self.more_rows, len(self.keys) + self.more_keys)
        start = b"GGUF" + struct.pack("<I", self.version & 0xFFFFFFFF)
        start += b"".join(struct.pack("<Q", n & (1 << 64) - 1) for n in counts)
        pieces = [key.build() for key in self.keys] + [row.build() for row in self.rows]
        return start + b"".join(pieces)

    def build(self) -> bytes:
        """The whole file."""
        head = self.head()
        return head + bytes(-len(head) % 32) + self.data

    def copy(self) -> Parts:
        """One to be spoiled."""
        keys = [replace(key, items=list(key.items)) for key in self.keys]
        rows = [replace(row, ne=list(row.ne)) for row in self.rows]
        return replace(self, keys=keys, rows=rows)


class Reader:
    """Takes a sound file apart."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def number(self, code: str) -> int:
        """The next number."""
        (value,) = struct.unpack_from("<" + code, self.raw, self.at)
        self.at += struct.calcsize(code)
        return value

    def text(self) -> bytes:
        """The next string's bytes."""
        n = self.number("Q")
        self.at += n
        return self.raw[self.at - n : self.at]

    def item(self, kind: int) -> bytes:
        """The bytes of the next value of a kind."""
        start = self.at
        if KINDS[kind] == "str":
            self.text()
        else:
            self.at += BITS[KINDS[kind]] // 8
        return self.raw[start : self.at]

    def key(self) -> Key:
        """The next key."""
        name, kind = self.text(), self.number("i")
        if KINDS[kind] != "array":
            return Key(name, kind, [self.item(kind)], is_array=False)
        kind, count = self.number("i"), self.number("Q")
        return Key(name, kind, [self.item(kind) for _ in range(count)], is_array=True)

    def row(self) -> Row:
        """The next row of the tensor table."""
        name, n_dims = self.text(), self.number("I")
        ne = [self.number("q") for _ in range(n_dims)]
        return Row(name, ne, self.number("i"), self.number("Q"))


def take_apart(raw: bytes) -> Parts:
    """The pieces of a sound file, which build to it again."""
    r = Reader(raw)
    r.at = 4
    version, n_rows, n_keys = r.number("I"), r.number("Q"), r.number("Q")
    keys = [r.key() for _ in range(n_keys)]
    rows = [r.row() for _ in range(n_rows)]
    parts = Parts(keys, rows, raw[r.at + -r.at % 32 :], version)
    assert parts.build() == raw
    return parts


def lay_out(parts: Parts) -> None:
    """Offsets and data as the rows' shapes and types want them, where that is not too much."""
    placed, at = [], 0
    for row in parts.rows:
        block, nbytes = SIZES.get(row.type_id, (1, 0))
        size = math.prod(row.ne) // block * nbytes
        placed.append(at)
        at += size + -size % 32
        if not 0 <= at <= MOST_DATA:
            return
    for row, offset in zip(parts.rows, placed, strict=True):
        row.offset = offset
    parts.data = (parts.data * (at // len(parts.data) + 1))[:at]


def odd_integer(rng: random.Random, value: int, bits: int) -> int:
    """Another integer: an end of the range, a neighbour, a flipped bit, anything."""
    near = (value + 1, value - 1, value * 2, value // 2, value ^ 1 << rng.randrange(bits))
    ends = (0, 1, 2, -1, 1 << bits - 1, (1 << bits - 1) - 1, 1 << bits // 2, 4096, 65536)
    return rng.choice((rng.choice(near), rng.choice(ends), rng.getrandbits(bits)))


def odd_item(rng: random.Random, kind: int, raw: bytes) -> bytes:
    """Another value of the same kind."""
    name = KINDS[kind]
    if name == "str":
        text = bytearray(raw[8:])
        if text and rng.random() < 0.6:
            text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
            return string(bytes(text))
        return string(rng.choice(TEXTS))
    if name in ("f32", "f64"):
        value = rng.choice((*FLOATS, struct.unpack("<" + CODES[name], raw)[0] * 1.5))
        return struct.pack("<" + CODES[name], value)
    value = odd_integer(rng, int.from_bytes(raw, "little"), BITS[name])
    return (value & (1 << BITS[name]) - 1).to_bytes(len(raw), "little")


def _key(parts: Parts, rng: random.Random) -> Key:
    """A key to spoil; hyperparameters and the tokenizer's in equal shares."""
    words = rng.random() < 0.4
    chosen = [k for k in parts.keys if k.name.startswith(b"tokenizer.") == words] or parts.keys
    key = rng.choice(chosen)
    parts.victim = key.name.decode()
    return key


def _row(parts: Parts, rng: random.Random) -> Row:
    row = rng.choice(parts.rows)
    parts.victim = row.name.decode()
    return row


def header(parts: Parts, rng: random.Random) -> None:
    """A version or a count of the header."""
    which = rng.choice(("version", "more_keys", "more_rows"))
    setattr(parts, which, odd_integer(rng, getattr(parts, which), 32 if which == "version" else 64))
    parts.victim = which


def value(parts: Parts, rng: random.Random) -> None:
    """A value, or an item of an array."""
    key = _key(parts, rng)
    if key.items:
        at = rng.randrange(len(key.items))
        key.items[at] = odd_item(rng, key.kind, key.items[at])


def kind(parts: Parts, rng: random.Random) -> None:
    """The kind of a value, over the same bytes or with a value of that kind."""
    key = _key(parts, rng)
    key.kind = rng.choice((*CODES_AND_TEXT, 9, 13, -1, odd_integer(rng, key.kind, 31)))
    if key.kind in CODES_AND_TEXT and rng.random() < 0.8:
        name = KINDS[key.kind]
        item = string(b"7") if name == "str" else (7).to_bytes(BITS[name] // 8, "little")
        key.items = [item] * len(key.items)


def rank(parts: Parts, rng: random.Random) -> None:
    """An array where a scalar was, and the other way round; another number of items."""
    key = _key(parts, rng)
    if not key.is_array:
        key.is_array, key.items = True, key.items * rng.choice((0, 1, 2, 4, 7))
    elif rng.random() < 0.3 and key.items:
        key.is_array, key.items = False, key.items[:1]
    elif rng.random() < 0.5 and key.items:
        del key.items[rng.randrange(len(key.items))]
    else:
        key.items += key.items[: rng.choice((1, 2, 100))]


def count(parts: Parts, rng: random.Random) -> None:
    """The count of an array, which then lies; of a scalar the key's name."""
    key = _key(parts, rng)
    key.count = odd_integer(rng, len(key.items), 64)
    if not key.is_array:
        key.name = _odd_name(rng, key.name)


def _odd_name(rng: random.Random, name: bytes) -> bytes:
    if rng.random() < 0.3:
        return rng.choice(TEXTS)
    at = rng.randrange(len(name))
    return name[:at] + bytes([name[at] ^ 1 << rng.randrange(8)]) + name[at + 1 :]


def entries(parts: Parts, rng: random.Random) -> None:
    """A key or row that is missing, twice there, or in another place."""
    items: list[Key] | list[Row] = rng.choice((parts.keys, parts.rows))
    at, to = rng.randrange(len(items)), rng.randrange(len(items))
    parts.victim = items[at].name.decode()
    how = rng.randrange(3)
    if how == 0:
        del items[at]
    elif how == 1:
        items.insert(to, items[at])  # type: ignore[arg-type]
    else:
        items[at], items[to] = items[to], items[at]  # type: ignore[call-overload]


def shape(parts: Parts, rng: random.Random) -> None:
    """Dimensions of a tensor."""
    row = _row(parts, rng)
    how = rng.randrange(4)
    if how == 0:
        row.n_dims = odd_integer(rng, len(row.ne), 32)
    elif how == 1:
        row.ne = row.ne[::-1] if len(row.ne) > 1 else [*row.ne, rng.choice((0, 1, 2))]
    else:
        at = rng.randrange(len(row.ne))
        row.ne[at] = odd_integer(rng, row.ne[at], 64)


def table(parts: Parts, rng: random.Random) -> None:
    """Name, type or offset of a tensor."""
    row = _row(parts, rng)
    how = rng.randrange(3)
    if how == 0:
        row.name = _odd_name(rng, row.name)
    elif how == 1:
        row.type_id = rng.choice(TYPE_IDS)
    else:
        row.offset = odd_integer(rng, row.offset, 64)


def numbers(parts: Parts, rng: random.Random) -> None:
    """Bytes of weights: of one tensor from somewhere on, or of any."""
    raw, at = bytearray(parts.data), rng.randrange(len(parts.data))
    n = rng.choice((1, 4, 64, 4096))
    filling = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"\x00\x7c", rng.randbytes(4)))
    raw[at : at + n] = (filling * n)[: len(raw[at : at + n])]
    parts.data, parts.victim = bytes(raw), f"data from {at}"


CODES_AND_TEXT = [KIND_IDS[name] for name in (*CODES, "str")]
PIECES: tuple[Callable[[Parts, random.Random], None], ...] = (
    header,
    value,
    value,
    value,
    kind,
    rank,
    count,
    entries,
    shape,
    table,
    numbers,
)


def bytes_of(raw: bytes, head: int, rng: random.Random) -> tuple[str, bytes]:
    """A file with bytes changed, inserted, lost or cut off, most of them in its first part."""
    at = rng.randrange(head if rng.random() < 0.8 else len(raw))
    how = rng.randrange(4)
    if how == 0:
        return f"cut at {at}", raw[:at]
    if how == 1:
        n = rng.choice((1, 4, 8, 32))
        return f"{n} bytes lost at {at}", raw[:at] + raw[at + n :]
    if how == 2:
        more = rng.randbytes(rng.choice((1, 4, 8, 32)))
        return f"bytes inserted at {at}", raw[:at] + more + raw[at:]
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 2, 8))):
        changed[rng.randrange(at, min(at + 64, len(raw)))] = rng.getrandbits(8)
    return f"bytes changed at {at}", bytes(changed)


def mutant(parts: Parts, raw: bytes, seed: str) -> tuple[str, bytes]:
    """What is wrong, and the file; the same for the same seed. raw: what `parts` build to."""
    rng = random.Random(seed)
    if rng.random() < 0.2:
        return bytes_of(raw, len(parts.head()), rng)
    spoiled, spoil = parts.copy(), rng.choice(PIECES)
    spoil(spoiled, rng)
    if spoil in (entries, shape, table) and rng.random() < 0.6:
        lay_out(spoiled)
    return f"{spoil.__name__}: {spoiled.victim}", spoiled.build()
