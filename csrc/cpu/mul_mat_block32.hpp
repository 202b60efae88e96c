// What formats with 32 values a block share: how codes of 4 and 5 bits are packed, and their tiles.
//
// A block's file order is halves: low nibbles of 16 bytes are the codes for k = 0 .. 15, high ones
// those for k = 16 .. 31. Packed, they are four vectors [k / 4][row][4] of the same bytes. Fifth
// bits follow as one vector [row][4]: bit i of its byte j belongs to k = 4i + j.
#pragma once

#include "mul_mat_quant.hpp"

namespace {

RR_INLINE void pack_nibbles(const uint8_t* row, uint8_t* unit, int64_t lane) {
  for (int i = 0; i < 4; ++i) memcpy(unit + 64 * i + 4 * lane, row + 4 * i, 4);
}

RR_INLINE void pack_fifths(uint32_t bits, uint8_t* unit, int64_t lane) {
  for (int j = 0; j < 4; ++j) {
    uint8_t fifth = 0;
    for (int i = 0; i < 8; ++i) fifth |= static_cast<uint8_t>((bits >> (4 * i + j) & 1) << i);
    unit[4 * lane + j] = fifth;
  }
}

// Nibbles in the low half of `nibble`, fifth bits as bit 4 of `fifth`.
RR_INLINE Bytes join_five(Bytes nibble, Bytes fifth) {
  return b_and(b_select(b_splat(15), nibble, fifth), b_splat(31));
}

// Codes of 5 bits, of which the upper ones are bits 0 .. 3 of `fifth` for i = 0 .. 3.
RR_INLINE Bytes low_five(Bytes v, Bytes fifth, int i) {
  return join_five(v, i == 0   ? b_shl<4>(fifth)
                      : i == 1 ? b_shl<3>(fifth)
                      : i == 2 ? b_shl<2>(fifth)
                               : b_shl<1>(fifth));
}

// Codes whose lower bits are the high nibbles of v, and whose upper ones are bits 4 .. 7.
RR_INLINE Bytes high_five(Bytes v, Bytes fifth, int i) {
  return join_five(b_shr<4>(v), i == 0   ? fifth
                                : i == 1 ? b_shr<1>(fifth)
                                : i == 2 ? b_shr<2>(fifth)
                                         : b_shr<3>(fifth));
}

// The i-th vector of a block's codes.
struct Nibbles {
  const uint8_t* at;
  RR_INLINE Bytes operator()(int i) const {
    const Bytes v = b_load(at + 64 * (i % 4));
    return b_and(i < 4 ? v : b_shr<4>(v), b_splat(15));
  }
};

// The values that the i-th vector's codes name in a table.
struct Looked {
  Bytes table;
  Nibbles codes;
  RR_INLINE Bytes operator()(int i) const { return b_lookup(table, codes(i)); }
};

struct Fives {
  const uint8_t* at;
  RR_INLINE Bytes operator()(int i) const {
    const Bytes v = b_load(at + 64 * (i % 4)), fifth = b_load(at + 256);
    return i < 4 ? low_five(v, fifth, i) : high_five(v, fifth, i - 4);
  }
};

// A list's values plus an offset, so that none is negative.
struct ByteTable {
  uint8_t value[16] = {};
  constexpr ByteTable(const int (&values)[16], int offset) {
    for (int i = 0; i < 16; ++i) value[i] = static_cast<uint8_t>(values[i] + offset);
  }
};

// How far apart far requests for weights are: see fetch_ahead.
template <class W, int C>
constexpr int fetch_step() {
  return C <= 4 || W::kUnit >= 512 ? 64 : 192;
}

// y = d * (code - W::kOffset): a group is a table of d [block][row], then a unit per block. W gives
// scale(table), and weights(unit), a block's codes of kBits.
template <class W>
struct Signed32 {
  static constexpr int kExtras = 1;
  static constexpr bool kHalves = false;

  static int64_t group_bytes(int64_t k) { return scale_table(k / 32) + k / 32 * W::kUnit; }

  static void extras(v4, i4x32 sum, i4x32, i4x32* words) {
    words[0] = kIntBias - sum * (W::kOffset - kTakenOff<W::kBits>);
  }

  RR_INLINE static Floats scale(const uint8_t* table) { return f_from_f16(table); }

  // sum + code sums * d * x_scale.
  RR_INLINE static Floats scaled(Ints codes, Floats d, Floats taken, float x_scale, Floats sum) {
    return f_fma(i_scaled(codes, d, taken), f_splat(x_scale), sum);
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* table = job.group + 32 * job.begin;
    const uint8_t* unit = job.group + scale_table(job.blocks) + W::kUnit * job.begin;
    XBlock<W, C> x = {job.x + job.begin * C * Columns<W>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; ++b) {
      fetch_ahead<W::kUnit, fetch_step<W, C>()>(job, unit);
      const Floats d = W::scale(table), taken = surplus(d);
      const auto w = for_tile<W::kBits, 8, C>(W::weights(unit));
      each_part<C>([&](auto part) RR_INLINE_BODY {
        constexpr int kFirst = decltype(part)::kFirst, kN = decltype(part)::kN;
        Ints whole[kN];
        dots<W::kBits, 8>(
            w, x.q(kFirst), [&](int c) { return i_splat(x.word(0, kFirst + c)); }, whole);
#pragma GCC unroll 8
        for (int i = 0, c = kFirst; i < kN; ++i, ++c)
          sums[c] = W::scaled(whole[i], d, taken, x.scale(c), sums[c]);
      });
      unit += W::kUnit;
      table += 32;
      x.next();
    }
    finish<C>(sums, job);
  }
};

// y = d * code + m: a group is, per block, d [row], m [row], then as many bytes of codes as make it
// W::kUnit, of which W gives weights(codes) of kBits. m meets the sums of x, which quantised x
// carries.
template <class W>
struct Affine32 {
  static constexpr int kExtras = 1, kCodes = 64;
  static constexpr bool kHalves = false;

  static int64_t group_bytes(int64_t k) { return k / 32 * W::kUnit; }

  static void extras(v4 scale, i4x32 sum, i4x32, i4x32* words) {
    words[0] = (i4x32)(scale * __builtin_convertvector(sum, v4));
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* unit = job.group + W::kUnit * job.begin;
    XBlock<W, C> x = {job.x + job.begin * C * Columns<W>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; ++b) {
      fetch_ahead<W::kUnit, fetch_step<W, C>()>(job, unit);
      const Floats d = f_from_f16(unit), m = f_from_f16(unit + 32), taken = surplus(d);
      const auto w = for_tile<W::kBits, 8, C>(W::weights(unit + kCodes));
      each_part<C>([&](auto part) RR_INLINE_BODY {
        constexpr int kFirst = decltype(part)::kFirst, kN = decltype(part)::kN;
        Ints whole[kN];
        dots<W::kBits, 8>(w, x.q(kFirst), [&](int) { return i_splat(kIntBias); }, whole);
#pragma GCC unroll 8
        for (int i = 0, c = kFirst; i < kN; ++i, ++c) {
          sums[c] = f_fma(m, f_splat(x.number(0, c)), sums[c]);
          sums[c] = f_fma(i_scaled(whole[i], d, taken), f_splat(x.scale(c)), sums[c]);
        }
      });
      unit += W::kUnit;
      x.next();
    }
    finish<C>(sums, job);
  }
};

}  // namespace
