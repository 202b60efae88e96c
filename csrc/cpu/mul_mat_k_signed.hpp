// What q3_k and q6_k share: 256 values, d f16, sixteen scales s of a signed byte.
// y = d * s_j * (q - W::kOffset) in sub-block j of 16 values.
//
// A group is a table of d [block][row], then per block of k the scales [16][row] and for every two
// sub-blocks W::kPiece bytes of codes.
#pragma once

#include "mul_mat_quant.hpp"

namespace {

template <class W>
struct SignedK {
  static constexpr int kExtras = 2;
  static constexpr bool kHalves = true;
  static constexpr int64_t unit_bytes() { return 256 + 8 * W::kPiece; }

  static int64_t group_bytes(int64_t k) { return scale_table(k / 256) + k / 256 * unit_bytes(); }

  static void extras(v4, i4x32 low, i4x32 high, i4x32* words) {
    words[0] = kIntBias - W::kOffset * low;
    words[1] = kIntBias - W::kOffset * high;
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* scales = job.group + 32 * (job.begin / 8);
    const uint8_t* unit = job.group + scale_table(job.blocks / 8) + unit_bytes() * (job.begin / 8);
    XBlock<W, C> x = {job.x + job.begin * C * Columns<W>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; b += 8, unit += unit_bytes(), scales += 32) {
      const Floats d = f_from_f16(scales);
      for (int j = 0; j < 8; ++j) {
        const uint8_t* piece = unit + 256 + W::kPiece * j;
        const Floats first = f_mul(f_from_i8(unit + 32 * j), d);
        const Floats second = f_mul(f_from_i8(unit + 32 * j + 16), d);
        const auto low = for_tile<W::kBits, 4, C>(W::weights(piece, 0));
        const auto high = for_tile<W::kBits, 4, C>(W::weights(piece, 1));
        fetch_ahead<W::kPiece, C <= 4 ? 64 : 192>(job, piece);
        add_scaled_halves(low, high, first, second, x, sums);
        x.next();
      }
    }
    finish<C>(sums, job);
  }
};

}  // namespace
