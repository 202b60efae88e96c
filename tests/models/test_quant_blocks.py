"""Blocks of each quantised type whose values are worked out by hand from the format."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from riverrun.graph import codec
from riverrun.graph.dtype import BY_NAME

IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
# Byte i has code i in its low half and 15 - i in its high half.
ALL_CODES = bytes(i | 15 - i << 4 for i in range(16))
UP_AND_DOWN = [*range(16), *range(15, -1, -1)]


def decoded(name: str, block: bytes) -> np.ndarray:
    """One block's values."""
    d = BY_NAME[name]
    assert len(block) == d.nbytes
    return codec.decode(d, np.frombuffer(block, np.uint8), (d.block,))


def test_plain_nibbles() -> None:
    block = struct.pack("<e", -0.5) + ALL_CODES
    assert decoded("q4_0", block).tolist() == [-0.5 * (q - 8) for q in UP_AND_DOWN]
    assert decoded("iq4_nl", block).tolist() == [-0.5 * IQ4[q] for q in UP_AND_DOWN]
    block = struct.pack("<2e", 0.5, -3) + ALL_CODES
    assert decoded("q4_1", block).tolist() == [0.5 * q - 3 for q in UP_AND_DOWN]


def test_nibbles_with_a_fifth_bit() -> None:
    """Elements 0, 9 and 31 have the bit: 16 is added to their codes 0, 9 and 0."""
    fifth = 1 << 0 | 1 << 9 | 1 << 31
    q = UP_AND_DOWN.copy()
    q[0], q[9], q[31] = 16, 25, 16
    block = struct.pack("<eI", 0.25, fifth) + ALL_CODES
    assert decoded("q5_0", block).tolist() == [0.25 * (v - 16) for v in q]
    block = struct.pack("<2eI", 0.25, 1, fifth) + ALL_CODES
    assert decoded("q5_1", block).tolist() == [0.25 * v + 1 for v in q]


def test_q8_0() -> None:
    block = struct.pack("<e32b", 0.5, *range(-128, -112), *range(112, 128))
    y = decoded("q8_0", block)
    assert y.tolist() == [0.5 * q for q in (*range(-128, -112), *range(112, 128))]
    # peak 127 gives d = 1; 0.5 rounds away from zero, as -2.5 does.
    x = np.zeros(32, np.float32)
    x[:5] = 127, 0.5, -2.5, 1.49, -0.4
    raw = codec.encode(BY_NAME["q8_0"], x)
    assert raw[:2].tobytes() == struct.pack("<e", 1)
    assert raw[2:].view(np.int8)[:6].tolist() == [127, 1, -3, 1, 0, 0]


def test_q4_k() -> None:
    """d = 2, dmin = 0.5; scale j = 10 + 7 j (up to 59), min j = 63 - 9 j; codes l % 16."""
    scale, low = [10 + 7 * j for j in range(8)], [63 - 9 * j for j in range(8)]
    packed = [scale[j] | scale[j + 4] >> 4 << 6 for j in range(4)]
    packed += [low[j] | low[j + 4] >> 4 << 6 for j in range(4)]
    packed += [scale[j] % 16 | low[j] % 16 << 4 for j in range(4, 8)]
    codes = bytes((i % 16) | (15 - i % 16) << 4 for i in range(32)) * 4
    block = struct.pack("<2e", 2, 0.5) + bytes(packed) + codes
    y = decoded("q4_k", block)
    for j in range(8):
        for i in range(32):
            q = i % 16 if j % 2 == 0 else 15 - i % 16
            assert y[32 * j + i] == 2 * scale[j] * q - 0.5 * low[j]


def test_q5_k() -> None:
    """d = 1, dmin = 2; sub-block 1 has scale 3 and min 1, sub-block 6 scale 33 and min 18."""
    b = bytearray(struct.pack("<2e", 1, 2) + bytes(172))
    b[4 + 1], b[4 + 5] = 3, 1
    # 33 = 2 * 16 + 1 and 18 = 1 * 16 + 2: upper bits on top of bytes 2 and 6, nibbles in byte 10.
    b[4 + 2], b[4 + 6], b[4 + 10] = 2 << 6, 1 << 6, 1 | 2 << 4
    # Element 7 of sub-block 1: high nibble of byte 7, bit 1 of byte 7 of the fifth bits.
    b[48 + 7], b[16 + 7] = 5 << 4, 1 << 1
    # Element 30 of sub-block 6: low nibble of byte 3 * 32 + 30, bit 6 of byte 30.
    b[48 + 96 + 30], b[16 + 30] = 15, 1 << 6
    want = np.zeros(256)
    want[32:64] = -2 * 1
    want[32 + 7] = 3 * (16 + 5) - 2
    want[192:224] = -2 * 18
    want[192 + 30] = 33 * (16 + 15) - 36
    assert decoded("q5_k", bytes(b)).tolist() == want.tolist()


def test_q6_k() -> None:
    """d = 0.5; scale 0 is 1, scale 5 is -3, scale 15 is 127; the code of zero bits is -32."""
    b = bytearray(208) + bytearray(struct.pack("<e", 0.5))
    b[192 + 0], b[192 + 5], b[192 + 15] = 1, 256 - 3, 127
    # Element 2: low nibble of byte 2, pair 0 of byte 2. 47 = 2 * 16 + 15.
    b[2], b[128 + 2] = 15, 2
    # Element 85 = 2 * 32 + 21, group 2: high nibble of byte 21, pair 2. 49 = 3 * 16 + 1.
    b[21], b[128 + 21] = 1 << 4, 3 << 4
    # Element 255, half 1, group 3, place 31: high nibble of byte 64 + 63, pair 3 of byte 32 + 31.
    b[64 + 63], b[128 + 32 + 31] = 15 << 4, 3 << 6
    want = np.zeros(256)
    want[:16] = 0.5 * 1 * -32
    want[2] = 0.5 * 1 * (47 - 32)
    want[80:96] = 0.5 * -3 * -32
    want[85] = 0.5 * -3 * (49 - 32)
    want[240:] = 0.5 * 127 * -32
    want[255] = 0.5 * 127 * (63 - 32)
    assert decoded("q6_k", bytes(b)).tolist() == want.tolist()


def test_q2_k() -> None:
    """d = 2, dmin = 0.5. Byte 0 has the pairs 0, 1, 2, 3, for elements 0, 32, 64 and 96."""
    b = bytearray(80) + bytearray(struct.pack("<2e", 2, 0.5))
    # Scale in the low nibble, minimum in the high one.
    b[0], b[2], b[4], b[6], b[11] = 0x53, 0x11, 0x0F, 0xF1, 0x27
    b[16] = 0b11_10_01_00
    # Pair 1 of byte 32 + 17: element 128 + 32 + 17 = 177, which is in sub-block 11.
    b[16 + 32 + 17] = 3 << 2
    want = np.zeros(256)
    want[0:16] = -0.5 * 5
    want[32:48] = -0.5 * 1
    want[32] = 2 * 1 * 1 - 0.5 * 1
    want[64] = 2 * 15 * 2
    want[96:112] = -0.5 * 15
    want[96] = 2 * 1 * 3 - 0.5 * 15
    want[176:192] = -0.5 * 2
    want[177] = 2 * 7 * 3 - 0.5 * 2
    assert decoded("q2_k", bytes(b)).tolist() == want.tolist()


def test_q3_k() -> None:
    """d = 0.5. Scales of zero bits are -32, codes of zero bits are -4; three scales are others."""
    b = bytearray(108) + bytearray(struct.pack("<e", 0.5))
    want = np.full(256, 0.5 * -32 * -4)
    # Scale 0 is 2 * 16 + 5 - 32 = 5: low nibble of byte 0, pair 0 of byte 8.
    b[96 + 0], b[96 + 8] = 5, 2
    want[:16] = 0.5 * 5 * -4
    # Element 3: pair 3 and a high bit, 4 + 3 - 4 = 3. Element 5: the high bit alone, 4 - 4 = 0.
    b[0 + 3], b[32 + 3], b[0 + 5] = 1, 3, 1
    want[3], want[5] = 0.5 * 5 * 3, 0
    # Scale 6 is 3 * 16 + 15 - 32 = 31: low nibble of byte 6, pair 1 of byte 8 + 2.
    b[96 + 6], b[96 + 10] = 15, 3 << 2
    want[96:112] = 0.5 * 31 * -4
    # Element 100 = 3 * 32 + 4: pair 3 of byte 4; no high bit, 2 - 4 = -2.
    b[32 + 4] = 2 << 6
    want[100] = 0.5 * 31 * -2
    # Scale 13 is 1 - 32 = -31: high nibble of byte 5.
    b[96 + 5] = 1 << 4
    want[208:224] = 0.5 * -31 * -4
    # Element 210 = 128 + 2 * 32 + 18: pair 2 of byte 32 + 18, bit 6 of byte 18, 4 + 1 - 4 = 1.
    b[32 + 32 + 18], b[0 + 18] = 1 << 4, 1 << 6
    want[210] = 0.5 * -31 * 1
    assert decoded("q3_k", bytes(b)).tolist() == want.tolist()


def test_iq4_xs() -> None:
    """d = 2; scales 0, 1, 16, 31, 32, 33, 47, 63, less 32; codes 8, of value 1, but for two."""
    low = bytes([0x10, 0xF0, 0x10, 0xFF])  # nibbles 0 1, 0 15, 0 1, 15 15
    high = 0b11_10_10_10_01_01_00_00  # of scale 0 rightmost
    b = bytearray(struct.pack("<eH", 2, high) + low + bytes([0x88] * 128))
    want = np.repeat([-64.0, -62, -32, -2, 0, 2, 30, 62], 32)
    # Elements 2 and 16 + 2 of sub-block 3, codes 0 and 15: -127 and 113.
    b[8 + 3 * 16 + 2] = 0xF0
    want[96 + 2], want[96 + 18] = -2 * -127, -2 * 113
    assert decoded("iq4_xs", bytes(b)).tolist() == want.tolist()


@pytest.mark.parametrize("e", [0, 1, 2, 127, 128, 129, 251])
def test_mxfp4(e: int) -> None:
    """2 ** (e - 128) * code, exact at e = 0 and 1 too, where the scale is below 2 ** -126."""
    y = decoded("mxfp4", bytes([e]) + ALL_CODES)
    assert y.tolist() == [2.0 ** (e - 128) * E2M1[q] for q in UP_AND_DOWN]


def test_mxfp4_at_the_ends_of_the_exponent() -> None:
    bits = decoded("mxfp4", bytes([0]) + ALL_CODES).view(np.uint32)
    # 2 ** -128 is bit 21 of a subnormal; code 3 is 1.5 times 2 ** -127, code 4 is 2 ** -126.
    assert [hex(v) for v in bits[[1, 3, 4, 9]]] == [
        "0x200000",
        "0x600000",
        "0x800000",
        "0x80200000",
    ]
    y = decoded("mxfp4", bytes([255]) + ALL_CODES)
    assert y[:3].tolist() == [0, 2.0**127, np.inf] and y[8] == 0 and y[10] == -np.inf


def test_mxfp4_encoded() -> None:
    """A peak of 8 to 15.9 makes the scale 1; halves between codes go to the smaller one."""
    x = np.zeros(32, np.float32)
    x[:12] = 15.9, -12, 5, -5, 5.1, 2.5, 0.5, -0.5, -0.6, 7, 10, 10.1
    raw = codec.encode(BY_NAME["mxfp4"], x)
    y = codec.decode(BY_NAME["mxfp4"], raw, x.shape)
    assert raw[0] == 128
    assert y[:12].tolist() == [12, -12, 4, -4, 6, 2, 0, 0, -1, 6, 8, 12]
    assert (raw[1 + 7] & 15, raw[1 + 12]) == (0, 0)


def test_mxfp4_holds_subnormal_numbers() -> None:
    x = np.tile(np.array(E2M1, np.float32) * np.float32(2.0**-128), 2)
    for peak in (12, 1):
        small = np.clip(x, -peak * 2.0**-128, peak * 2.0**-128).astype(np.float32)
        raw = codec.encode(BY_NAME["mxfp4"], small)
        assert raw[0] == 0
        assert codec.decode(BY_NAME["mxfp4"], raw, x.shape).tolist() == small.tolist()
