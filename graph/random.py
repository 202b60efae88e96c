"""Counter-based randomness: a number is a pure function of (seed, position, stream).

Nothing is carried from draw to draw, so neither drafts, nor batching, nor the order of calls
changes a seeded result, and a GPU kernel can form the same bits with 32-bit integers alone.

Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3;
SC 2011). The words, for seed and position as unsigned 64-bit and stream as unsigned 32-bit numbers:

    key     = (seed[31:0], seed[63:32])
    counter = (position[31:0], position[63:32], stream, 0)
    w       = philox4x32_10(counter, key)
    uniform = ((w[1] << 32 | w[0]) >> 11) * 2**-53

So the upper 53 bits of the 64-bit word w[1]:w[0] are the fraction, exactly representable as an
IEEE double; w[2] and w[3] are unused.
"""

from __future__ import annotations

from .errors import RequestError

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK32 = 0xFFFFFFFF
MAX_SEED = 2**64 - 1
MAX_STREAM = _MASK32

Words4 = tuple[int, int, int, int]


def philox4x32_10(counter: Words4, key: tuple[int, int]) -> Words4:
    """The four 32-bit output words for a 128-bit counter and a 64-bit key, low words first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK32
        k0, k1 = (k0 + _W0) & _MASK32, (k1 + _W1) & _MASK32
    return c0, c1, c2, c3


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """A double in [0, 1) that depends on the arguments alone.

    seed, position: 0 .. 2**64 - 1; stream: 0 .. 2**32 - 1, for several independent draws at one
    position. Raises RequestError outside these ranges, where two arguments would share a draw."""
    seed, position, stream = int(seed), int(position), int(stream)
    if not (0 <= seed <= MAX_SEED and 0 <= position <= MAX_SEED and 0 <= stream <= MAX_STREAM):
        raise RequestError(
            f"uniform: seed and position must lie in 0 .. 2**64 - 1 and stream in 0 .. 2**32 - 1, "
            f"got seed={seed}, position={position}, stream={stream}"
        )
    counter = (position & _MASK32, position >> 32, stream, 0)
    w0, w1, _, _ = philox4x32_10(counter, (seed & _MASK32, seed >> 32))
    return ((w1 << 32 | w0) >> 11) * 2.0**-53
