// Weights as tensor cores take them: of 64 consecutive values of a row, the sixteen that one lane
// multiplies, as bytes with the step and offset that make values of them.
//
// Lane t of four owns values 16s + 4t to 16s + 4t + 3 for s = 0 to 3: whole words of every format,
// and x is laid out to match. A chunk is what is fetched of a row at a time, one block of 256 or
// four of 32, read from shared memory at the alignment that its block's size leaves.
#pragma once

#include "decode.cuh"
#include "prepare.cuh"

namespace {

constexpr unsigned kNibbles = 0x0f0f0f0fu, kPairs = 0x03030303u, kBits = 0x01010101u;

// Value i of step s is scale[s] * (bias + byte i of codes[s]) + offset[s].
struct Unit {
  unsigned codes[4];
  float scale[4], offset[4];
};

// A code becomes a float by being put into the mantissa of the bias: 2^7 for codes of up to seven
// bits, 2^15 for those of eight. The offset takes the bias away again, in the one rounding of a
// fused product; bias times scale is exact for the types without minimum (iq4_xs nearly so).
template <bool wide>
struct Bias {
  static constexpr float value = wide ? 32768.0f : 128.0f;

  // Byte i, which must be a constant in the end.
  __device__ static float code(unsigned codes, int i) {
    if (wide) return __uint_as_float(__byte_perm(codes, 0x47000000u, 0x7404u | i << 4));
    return __uint_as_float(__byte_perm(codes, 0x43000000u, 0x7044u | i << 8));
  }
};

__device__ inline unsigned aligned32(const uint8_t* p) {
  return *reinterpret_cast<const unsigned*>(p);
}

__device__ inline float low_half(unsigned pair) {
  return half_to_float(static_cast<uint16_t>(pair & 0xffffu));
}

__device__ inline float high_half(unsigned pair) {
  return half_to_float(static_cast<uint16_t>(pair >> 16));
}

__device__ inline float signed_byte(unsigned word, int i) {
  return static_cast<float>(static_cast<int8_t>(byte_of(word, i)));
}

// Four bits, each to the lowest of a byte times 16.
__device__ inline unsigned spread_fifth(unsigned bits) {
  return (bits & 15u) * 0x02040810u & 0x10101010u;
}

// A list's values plus an offset, as a table of sixteen bytes.
template <const int (&values)[16], int offset>
__device__ inline uint4 table_of() {
  constexpr unsigned a = four_values(values, 0, offset), b = four_values(values, 4, offset),
                     c = four_values(values, 8, offset), d = four_values(values, 12, offset);
  return make_uint4(a, b, c, d);
}

// Entries of a table of sixteen bytes by the low and the high nibbles of four bytes.
__device__ inline void look_up(const uint4& table, unsigned word, unsigned* low, unsigned* high) {
  const unsigned index = word & 0x77777777u, upper = 0x32103210u | (word & 0x88888888u) >> 1;
  const unsigned a = __byte_perm(__byte_perm(table.x, table.y, index),
                                 __byte_perm(table.z, table.w, index), upper);
  const unsigned b = __byte_perm(__byte_perm(table.x, table.y, index >> 16),
                                 __byte_perm(table.z, table.w, index >> 16), upper >> 16);
  *low = __byte_perm(a, b, 0x6420);
  *high = __byte_perm(a, b, 0x7531);
}

// Sets steps first and first + 1, which share a scale: values are scale * (code - zero) + minimum.
template <bool wide>
__device__ inline void set_scale(Unit& unit, int first, float scale, float zero, float minimum) {
  const float offset = fmaf(-(Bias<wide>::value + zero), scale, minimum);
  unit.scale[first] = unit.scale[first + 1] = scale;
  unit.offset[first] = unit.offset[first + 1] = offset;
}

// The same for one step.
__device__ inline void set_step(Unit& unit, int step, float scale, float zero, float minimum) {
  unit.scale[step] = scale;
  unit.offset[step] = fmaf(-(Bias<false>::value + zero), scale, minimum);
}

// Of a type: whether codes have eight bits, and `take`, which reads 64 values number u of a chunk.
// `prepare`, of those that have it, is called by all threads before the first barrier.
template <uint32_t dtype>
struct Codes;

// Types with blocks of 32: `half` reads one.
template <uint32_t dtype>
struct Codes32 : Block<dtype> {
  __device__ static void take(const uint8_t* chunk, int u, int t, Unit& unit) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      Codes<dtype>::half(chunk + (2 * u + h) * Block<dtype>::kBytes, t, unit, 2 * h);
  }
};

template <>
struct Codes<RR_Q8_0> : Codes32<RR_Q8_0> {
  static constexpr bool wide = true;
  __device__ static void half(const uint8_t* b, int t, Unit& unit, int s) {
    unit.codes[s] = load32(b + kCodes + 4 * t) ^ 0x80808080u;
    unit.codes[s + 1] = load32(b + kCodes + 16 + 4 * t) ^ 0x80808080u;
    set_scale<wide>(unit, s, load_half(b + kD), 128.0f, 0.0f);
  }
};

__device__ inline void set_nibbles(Unit& unit, int s, unsigned word) {
  unit.codes[s] = word & kNibbles;
  unit.codes[s + 1] = word >> 4 & kNibbles;
}

template <>
struct Codes<RR_Q4_0> : Codes32<RR_Q4_0> {
  static constexpr bool wide = false;
  __device__ static void half(const uint8_t* b, int t, Unit& unit, int s) {
    set_nibbles(unit, s, load32(b + kCodes + 4 * t));
    set_scale<wide>(unit, s, load_half(b + kD), 8.0f, 0.0f);
  }
};

template <>
struct Codes<RR_Q4_1> : Codes32<RR_Q4_1> {
  static constexpr bool wide = false;
  __device__ static void half(const uint8_t* b, int t, Unit& unit, int s) {
    const unsigned head = aligned32(b);
    set_nibbles(unit, s, aligned32(b + kCodes + 4 * t));
    set_scale<wide>(unit, s, low_half(head), 0.0f, high_half(head));
  }
};

__device__ inline void add_fifths(Unit& unit, int s, unsigned bits, int t) {
  unit.codes[s] |= spread_fifth(bits >> 4 * t);
  unit.codes[s + 1] |= spread_fifth(bits >> (16 + 4 * t));
}

template <>
struct Codes<RR_Q5_0> : Codes32<RR_Q5_0> {
  static constexpr bool wide = false;
  __device__ static void half(const uint8_t* b, int t, Unit& unit, int s) {
    set_nibbles(unit, s, load32(b + kCodes + 4 * t));
    add_fifths(unit, s, load32(b + kHigh), t);
    set_scale<wide>(unit, s, load_half(b + kD), 16.0f, 0.0f);
  }
};

template <>
struct Codes<RR_Q5_1> : Codes32<RR_Q5_1> {
  static constexpr bool wide = false;
  __device__ static void half(const uint8_t* b, int t, Unit& unit, int s) {
    const unsigned head = aligned32(b);
    set_nibbles(unit, s, aligned32(b + kCodes + 4 * t));
    add_fifths(unit, s, aligned32(b + kHigh), t);
    set_scale<wide>(unit, s, low_half(head), 0.0f, high_half(head));
  }
};

// The code book of iq4_nl and iq4_xs plus 128.
__device__ inline uint4 iq4_table() {
  return table_of<kIq4Values, 128>();
}

template <>
struct Codes<RR_IQ4_NL> : Codes32<RR_IQ4_NL> {
  static constexpr bool wide = true;
  __device__ static void half(const uint8_t* b, int t, Unit& unit, int s) {
    look_up(iq4_table(), load32(b + kCodes + 4 * t), &unit.codes[s], &unit.codes[s + 1]);
    set_scale<wide>(unit, s, load_half(b + kD), 128.0f, 0.0f);
  }
};

template <>
struct Codes<RR_MXFP4> : Codes32<RR_MXFP4> {
  static constexpr bool wide = false;
  __device__ static void half(const uint8_t* b, int t, Unit& unit, int s) {
    const uint8_t* q = b + kCodes + 4 * t;
    const unsigned word = q[0] | q[1] << 8 | q[2] << 16 | static_cast<unsigned>(q[3]) << 24;
    look_up(table_of<kE2m1Values, 16>(), word, &unit.codes[s], &unit.codes[s + 1]);
    set_scale<wide>(unit, s, mxfp4_scale(b[kE]), 16.0f, 0.0f);
  }
};

template <>
struct Codes<RR_IQ4_XS> : Block<RR_IQ4_XS> {
  static constexpr bool wide = true;
  __device__ static void take(const uint8_t* b, int u, int t, Unit& unit) {
    const unsigned head = aligned32(b), upper = head >> (8 * kHigh + 4 * u);
    const float d = low_half(head);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      look_up(iq4_table(), aligned32(b + kCodes + 32 * u + 16 * h + 4 * t), &unit.codes[2 * h],
              &unit.codes[2 * h + 1]);
      const int scale = (b[kScales + u] >> 4 * h & 15) | static_cast<int>(upper >> 2 * h & 3) << 4;
      set_scale<wide>(unit, 2 * h, times(d, scale - 32), 128.0f, 0.0f);
    }
  }
};

// Scales and minima of sub-blocks 2u and 2u + 1 of q4_k and q5_k, and the low nibbles of the first,
// the high ones of the second.
__device__ inline void take_affine(const uint8_t* b, const uint8_t* nibbles, int u, int t,
                                   Unit& unit) {
  const unsigned head = aligned32(b), first = aligned32(nibbles + 32 * u + 4 * t),
                 second = aligned32(nibbles + 32 * u + 16 + 4 * t);
  unit.codes[0] = first & kNibbles;
  unit.codes[1] = second & kNibbles;
  unit.codes[2] = first >> 4 & kNibbles;
  unit.codes[3] = second >> 4 & kNibbles;
  const uint8_t* s = b + Block<RR_Q4_K>::kScales + 2 * (u & 1);
  unsigned scales = load16(s), minima = load16(s + 4);
  if (u < 2) {
    scales &= 0x3f3fu;
    minima &= 0x3f3fu;
  } else {
    const unsigned low = load16(s + 8);
    scales = (low & 0x0f0fu) | (scales >> 2 & 0x3030u);
    minima = (low >> 4 & 0x0f0fu) | (minima >> 2 & 0x3030u);
  }
  const float d = low_half(head), dmin = high_half(head);
#pragma unroll
  for (int h = 0; h < 2; ++h)
    set_scale<false>(unit, 2 * h, times(d, byte_of(scales, h)), 0.0f,
                     -times(dmin, byte_of(minima, h)));
}

template <>
struct Codes<RR_Q4_K> : Block<RR_Q4_K> {
  static constexpr bool wide = false;
  __device__ static void take(const uint8_t* b, int u, int t, Unit& unit) {
    take_affine(b, b + kCodes, u, t, unit);
  }
};

template <>
struct Codes<RR_Q5_K> : Block<RR_Q5_K> {
  static constexpr bool wide = false;
  __device__ static void take(const uint8_t* b, int u, int t, Unit& unit) {
    take_affine(b, b + kCodes, u, t, unit);
    const unsigned first = aligned32(b + kHigh + 4 * t) >> 2 * u;
    const unsigned second = aligned32(b + kHigh + 16 + 4 * t) >> 2 * u;
    unit.codes[0] |= (first & kBits) << 4;
    unit.codes[1] |= (second & kBits) << 4;
    unit.codes[2] |= (first >> 1 & kBits) << 4;
    unit.codes[3] |= (second >> 1 & kBits) << 4;
  }
};

template <>
struct Codes<RR_Q6_K> : Block<RR_Q6_K> {
  static constexpr bool wide = false;
  __device__ static void take(const uint8_t* b, int u, int t, Unit& unit) {
    const int half = u / 2, shift = 4 * (u & 1);
    const uint8_t *low = b + kCodes + 64 * half + 4 * t, *high = b + kHigh + 32 * half + 4 * t;
    const unsigned upper[2] = {load32(high) >> shift, load32(high + 16) >> shift};
    const unsigned scales = load32(b + kScales + 4 * u);
    const float d = load_half(b + kD);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      unit.codes[s] =
          (load32(low + 16 * s) >> shift & kNibbles) | (upper[s % 2] >> 2 * (s / 2) & kPairs) << 4;
      set_step(unit, s, d * signed_byte(scales, s), 32.0f, 0.0f);
    }
  }
};

template <>
struct Codes<RR_Q2_K> : Block<RR_Q2_K> {
  static constexpr bool wide = false;
  __device__ static void take(const uint8_t* b, int u, int t, Unit& unit) {
    const uint8_t* q = b + kCodes + 32 * (u / 2) + 4 * t;
    const int shift = 4 * (u & 1);
    const unsigned pairs[2] = {aligned32(q) >> shift, aligned32(q + 16) >> shift};
    const unsigned scales = aligned32(b + kScales + 4 * u), head = aligned32(b + kD);
    const float d = low_half(head), dmin = high_half(head);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      unit.codes[s] = pairs[s % 2] >> 2 * (s / 2) & kPairs;
      const int scale = byte_of(scales, s);
      set_step(unit, s, times(d, scale & 15), 0.0f, -times(dmin, scale >> 4));
    }
  }
};

template <>
struct Codes<RR_Q3_K> : Block<RR_Q3_K> {
  static constexpr bool wide = false;
  __device__ static void take(const uint8_t* b, int u, int t, Unit& unit) {
    const uint8_t* q = b + kCodes + 32 * (u / 2) + 4 * t;
    const int shift = 4 * (u & 1);
    const unsigned pairs[2] = {load32(q) >> shift, load32(q + 16) >> shift};
    const unsigned thirds[2] = {load32(b + kHigh + 4 * t) >> 2 * u,
                                load32(b + kHigh + 16 + 4 * t) >> 2 * u};
    const unsigned scales = (load32(b + kScales + shift) >> 4 * (u / 2) & kNibbles) |
                            (load32(b + kScales + 8) >> 2 * u & kPairs) << 4;
    const float d = load_half(b + kD);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      unit.codes[s] = (pairs[s % 2] >> 2 * (s / 2) & kPairs) | (thirds[s % 2] >> s / 2 & kBits)
                                                                   << 2;
      set_step(unit, s, times(d, byte_of(scales, s) - 32), 4.0f, 0.0f);
    }
  }
};

// Types of iq2 and iq3.
template <uint32_t dtype>
struct GridCodes {
  static constexpr bool wide = false;

  __device__ static void prepare() { load_grid<dtype>(); }

  __device__ static void take(const uint8_t* b, int u, int t, Unit& unit) {
    using Part = GridPart<dtype>;
    const float d = load_half(b + Part::kD) * Part::kFactor;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const Part part(b, (64 * u + 16 * s) / Part::kWidth);
      unit.codes[s] = part.four(shared_grid<dtype>(), 16 * s % Part::kWidth / 4 + t);
      set_step(unit, s, times(d, 2 * part.scale() + 1), Part::kZero, 0.0f);
    }
  }
};

template <>
struct Codes<RR_IQ2_XXS> : GridCodes<RR_IQ2_XXS> {};
template <>
struct Codes<RR_IQ2_XS> : GridCodes<RR_IQ2_XS> {};
template <>
struct Codes<RR_IQ2_S> : GridCodes<RR_IQ2_S> {};
template <>
struct Codes<RR_IQ3_XXS> : GridCodes<RR_IQ3_XXS> {};
template <>
struct Codes<RR_IQ3_S> : GridCodes<RR_IQ3_S> {};

}  // namespace
