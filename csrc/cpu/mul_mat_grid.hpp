// What the products of iq2 and iq3 share: 256 values, d f16, scales s of 4 bits.
// y = d * factor * (2 * s_j + 1) * value in sub-block j of 32 or 16 values.
//
// Codes of magnitudes and signs become nibbles that name one of sixteen values, so that grids are
// looked up once, when weights are packed: 4.25 or 4.5 bits a weight instead of 2.1 to 3.4.
// A group is a table of d [block][row], then per block of k the factors 2 * s + 1 as int8 [8 or
// 16][row] and four vectors of nibbles for each 32 values.
#pragma once

#include "mul_mat_block32.hpp"

namespace {

template <class W, uint32_t dtype>
struct Grid {
  using Of = Block<dtype>;
  static constexpr uint32_t kType = dtype;
  static constexpr int kSubs = 256 / Of::kWidth, kOffset = Of::kMagnitudes[Of::kSizes - 1];
  static constexpr int kBits = 2 * kOffset < 32 ? 5 : 7;  // of table values
  static constexpr ByteTable kTable{Of::kMagnitudes, kOffset};
  static constexpr int kExtras = kSubs == 16 ? 2 : 1;
  static constexpr bool kHalves = kSubs == 16;
  static constexpr int kCodes = 16 * kSubs;
  static constexpr int64_t kUnit = kCodes + 8 * 256;

  static int64_t group_bytes(int64_t k) { return scale_table(k / 256) + k / 256 * kUnit; }

  static void extras(v4, i4x32 low, i4x32 high, i4x32* words) {
    words[0] = kIntBias - kOffset * low;
    if (kHalves) words[1] = kIntBias - kOffset * high;
  }

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes, unit += kUnit) {
      memcpy(group + 32 * b + 2 * lane, row + Of::kD, 2);
      for (int j = 0; j < kSubs; ++j)
        unit[16 * j + lane] = static_cast<uint8_t>(2 * Of::scale(row, j) + 1);
      for (int j = 0; j < 8; ++j) {
        uint8_t codes[32], nibbles[16];
        grid_codes<dtype>(row, j, codes);
        for (int i = 0; i < 16; ++i)
          nibbles[i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
        pack_nibbles(nibbles, unit + kCodes + 256 * j, lane);
      }
    }
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* table = job.group + 32 * (job.begin / 8);
    const uint8_t* unit = job.group + scale_table(job.blocks / 8) + kUnit * (job.begin / 8);
    XBlock<W, C> x = {job.x + job.begin * C * Columns<W>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; b += 8, unit += kUnit, table += 32) {
      const Floats d = f_mul(f_from_f16(table), f_splat(Of::kFactor));
      for (int j = 0; j < 8; ++j) {
        const uint8_t* codes = unit + kCodes + 256 * j;
        fetch_ahead<256, C <= 4 ? 64 : 192>(job, codes);
        if constexpr (kHalves)
          add_halves<C>(codes, f_mul(f_from_i8(unit + 32 * j), d),
                        f_mul(f_from_i8(unit + 32 * j + 16), d), x, sums);
        else
          add_whole<C>(codes, f_mul(f_from_i8(unit + 16 * j), d), x, sums);
        x.next();
      }
    }
    finish<C>(sums, job);
  }

  // 32 values with one scale.
  template <int C>
  RR_INLINE static void add_whole(const uint8_t* codes, Floats scale, const XBlock<W, C>& x,
                                  Floats (&sums)[C]) {
    const Floats taken = surplus(scale);
    const auto w = for_tile<kBits, 8, C>(Looked{b_table(kTable.value), {codes}});
    each_part<C>([&](auto part) RR_INLINE_BODY {
      constexpr int kFirst = decltype(part)::kFirst, kN = decltype(part)::kN;
      Ints whole[kN];
      dots<kBits, 8>(w, x.q(kFirst), [&](int c) { return i_splat(x.word(0, kFirst + c)); }, whole);
#pragma GCC unroll 8
      for (int i = 0, c = kFirst; i < kN; ++i, ++c)
        sums[c] = f_fma(i_scaled(whole[i], scale, taken), f_splat(x.scale(c)), sums[c]);
    });
  }

  // The same, each half of them with its own.
  template <int C>
  RR_INLINE static void add_halves(const uint8_t* codes, Floats first, Floats second,
                                   const XBlock<W, C>& x, Floats (&sums)[C]) {
    const Looked all = {b_table(kTable.value), {codes}};
    const auto low = for_tile<kBits, 4, C>([&](int i) { return all(i); });
    const auto high = for_tile<kBits, 4, C>([&](int i) { return all(4 + i); });
    add_scaled_halves(low, high, first, second, x, sums);
  }
};

}  // namespace
