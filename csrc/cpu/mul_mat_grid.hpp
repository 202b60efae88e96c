// What the products of iq2 and iq3 share: 256 values, d f16, scales s of 4 bits.
// y = d * factor * (2 * s_j + 1) * value in sub-block j of 32 or 16 values.
//
// Codes of magnitudes and signs become nibbles that name one of sixteen values, so that grids are
// looked up once, when weights are packed: 4.25 or 4.5 bits a weight instead of 2.1 to 3.4.
// A group is a table of d [block][row], then per block of k the factors 2 * s + 1 as int8 [8 or
// 16][row] and four vectors of nibbles for each 32 values.
#pragma once

#include "grid_codes.hpp"
#include "mul_mat_block32.hpp"

namespace {

// A list's values plus an offset, so that none is negative.
struct GridTable {
  uint8_t value[16] = {};
  constexpr GridTable(const int (&values)[16], int offset) {
    for (int i = 0; i < 16; ++i) value[i] = static_cast<uint8_t>(values[i] + offset);
  }
};

// W gives take, kTable, kOffset, kBits of table values, kFactor and kSubs, sub-blocks of a block.
template <class W>
struct Grid {
  static constexpr int64_t kWeightBlock = 256;
  static constexpr int kExtras = W::kSubs == 16 ? 2 : 1;
  static constexpr bool kHalves = W::kSubs == 16;
  static constexpr int kCodes = 16 * W::kSubs;
  static constexpr int64_t kUnit = kCodes + 8 * 256;

  static int64_t group_bytes(int64_t k) { return scale_table(k / 256) + k / 256 * kUnit; }

  static void extras(v4, i4x32 low, i4x32 high, i4x32* words) {
    words[0] = kIntBias - W::kOffset * low;
    if (kHalves) words[1] = kIntBias - W::kOffset * high;
  }

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += W::kWeightBytes, unit += kUnit) {
      memcpy(group + 32 * b + 2 * lane, row, 2);
      GridCodes codes;
      W::take(row, &codes);
      for (int j = 0; j < W::kSubs; ++j)
        unit[16 * j + lane] = static_cast<uint8_t>(2 * codes.scale[j] + 1);
      for (int j = 0; j < 8; ++j) {
        uint8_t nibbles[16];
        const uint8_t* from = codes.code + 32 * j;
        for (int i = 0; i < 16; ++i) nibbles[i] = static_cast<uint8_t>(from[i] | from[i + 16] << 4);
        pack_nibbles(nibbles, unit + kCodes + 256 * j, lane);
      }
    }
  }

  // One sub-block: the codes from vector `first` on, in `word` of the extras.
  template <int COUNT, int C>
  RR_INLINE static void sub_block(const uint8_t* codes, const XBlock<C>& x, int half,
                                  Ints (&whole)[C]) {
    const Nibbles nibbles = {codes};
    const Bytes values = b_table(W::kTable.value);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) whole[c] = i_splat(x.word(half, c));
    dots<W::kBits, COUNT>([&](int i) { return b_lookup(values, nibbles(4 * half + i)); },
                          x.q() + 16 * half, whole);
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* table = job.group + 32 * (job.begin / 8);
    const uint8_t* unit = job.group + scale_table(job.blocks / 8) + kUnit * (job.begin / 8);
    XBlock<C> x = {job.x + job.begin * C * Columns<W>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; b += 8, unit += kUnit, table += 32) {
      const Floats d = f_mul(f_from_f16(table), f_splat(W::kFactor));
      for (int j = 0; j < 8; ++j) {
        const uint8_t* codes = unit + kCodes + 256 * j;
        fetch_ahead<256, C <= 4 ? 64 : 192>(job, codes);
        Floats part[C];
        products<C>(unit, codes, j, d, x, part);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[c] = f_fma(part[c], f_splat(x.scale(c)), sums[c]);
        x.at += C * Columns<W>::kRecord;
      }
    }
    finish<C>(sums, job);
  }

  // The products of 32 values with what x was rounded to.
  template <int C>
  RR_INLINE static void products(const uint8_t* unit, const uint8_t* codes, int j, Floats d,
                                 const XBlock<C>& x, Floats (&part)[C]) {
    Ints whole[C];
    if constexpr (kHalves) {
      const Floats first = f_mul(f_from_i8(unit + 32 * j), d);
      const Floats second = f_mul(f_from_i8(unit + 32 * j + 16), d);
      const Floats first_taken = surplus(first), second_taken = surplus(second);
      sub_block<4, C>(codes, x, 0, whole);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) part[c] = i_scaled(whole[c], first, first_taken);
      sub_block<4, C>(codes, x, 1, whole);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        part[c] = f_add(part[c], i_scaled(whole[c], second, second_taken));
    } else {
      const Floats scale = f_mul(f_from_i8(unit + 16 * j), d), taken = surplus(scale);
      sub_block<8, C>(codes, x, 0, whole);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) part[c] = i_scaled(whole[c], scale, taken);
    }
  }
};

}  // namespace
