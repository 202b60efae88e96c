// mul_mat with q5_0 weights: 32 values, d f16, 5-bit q. y = d * (q - 16).
//
// A group is a table of d [block][row], then per block four vectors [k / 4][row][4] of nibbles, low
// ones for the first half of k and high ones for the second, and one vector [row][4] of fifth bits:
// bit i of its byte j belongs to k = 4i + j.

#include "mul_mat_quant.hpp"

namespace {

struct Q5_0 {
  static constexpr uint32_t kType = RR_Q5_0;
  static constexpr const char* kRefusal = "w is not packed q5_0";
  static constexpr int64_t kWeightBlock = 32, kWeightBytes = 22, kUnit = 320;
  static constexpr int kExtras = 1;
  static constexpr bool kHalves = false;

  static int64_t group_bytes(int64_t k) { return scale_table(k / 32) + k / 32 * kUnit; }

  static void extras(v4, i4x32 sum, i4x32, i4x32* words) { words[0] = kIntBias - 16 * sum; }

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks) + 4 * lane;
    for (int64_t b = 0; b < blocks; ++b, row += kWeightBytes, unit += kUnit) {
      memcpy(group + 32 * b + 2 * lane, row, 2);
      const uint32_t bits = static_cast<uint32_t>(load_int(row + 2));
      for (int i = 0; i < 4; ++i) memcpy(unit + 64 * i, row + 6 + 4 * i, 4);
      for (int j = 0; j < 4; ++j) {
        uint8_t fifth = 0;
        for (int i = 0; i < 8; ++i) fifth |= static_cast<uint8_t>((bits >> (4 * i + j) & 1) << i);
        unit[256 + j] = fifth;
      }
    }
  }

  // Nibbles in the low half of `nibble`, fifth bits as bit 4 of `fifth`.
  RR_INLINE static Bytes join(Bytes nibble, Bytes fifth) {
    return b_and(b_select(b_splat(15), nibble, fifth), b_splat(31));
  }

  RR_INLINE static void unpack(const uint8_t* unit, Bytes (&w)[8]) {
    Bytes v[4];
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) v[i] = b_load(unit + 64 * i);
    const Bytes fifth = b_load(unit + 256);
    w[0] = join(v[0], b_shl<4>(fifth));
    w[1] = join(v[1], b_shl<3>(fifth));
    w[2] = join(v[2], b_shl<2>(fifth));
    w[3] = join(v[3], b_shl<1>(fifth));
    w[4] = join(b_shr<4>(v[0]), fifth);
    w[5] = join(b_shr<4>(v[1]), b_shr<1>(fifth));
    w[6] = join(b_shr<4>(v[2]), b_shr<2>(fifth));
    w[7] = join(b_shr<4>(v[3]), b_shr<3>(fifth));
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* scales = job.group + 32 * job.begin;
    const uint8_t* unit = job.group + scale_table(job.blocks) + kUnit * job.begin;
    XBlock<C> x = {job.x + job.begin * C * Columns<Q5_0>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; ++b) {
      Bytes w[8];
      unpack(unit, w);
      fetch_ahead<kUnit, C <= 4 ? 64 : 192>(job, unit);
      const Floats d = f_from_f16(scales), taken = surplus(d);
      Ints whole[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) whole[c] = i_splat(x.word(0, c));
      dots<5, 8>([&](int i) { return w[i]; }, x.q(), whole);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        sums[c] = f_fma(i_scaled(whole[c], d, taken), f_splat(x.scale(c)), sums[c]);
      unit += kUnit;
      scales += 32;
      x.at += C * Columns<Q5_0>::kRecord;
    }
    finish<C>(sums, job);
  }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q5_0)
