// mul_mat with q8_0 weights: 32 values, d f16 and int8 q.
//
// A group is a table of d [block][row], then per block [k / 4][row][4] bytes q + 128: unsigned, for
// the dot instructions. The surplus 128 * sum(x) is taken off where an integer sum starts.

#include "mul_mat_quant.hpp"

namespace {

struct Q8_0 {
  static constexpr uint32_t kType = RR_Q8_0;
  static constexpr const char* kRefusal = "w is not packed q8_0";
  static constexpr int64_t kWeightBlock = 32, kWeightBytes = 34, kUnit = 512;
  static constexpr int kExtras = 1;
  static constexpr bool kHalves = false;

  static int64_t group_bytes(int64_t k) { return scale_table(k / 32) + k / 32 * kUnit; }

  static void extras(v4, i4x32 sum, i4x32, i4x32* words) { words[0] = kIntBias - 128 * sum; }

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += kWeightBytes) {
      memcpy(group + 32 * b + 2 * lane, row, 2);
      for (int i = 0; i < 8; ++i) {
        const int32_t four = load_int(row + 2 + 4 * i) ^ static_cast<int32_t>(0x80808080);
        memcpy(unit + kUnit * b + 64 * i + 4 * lane, &four, 4);
      }
    }
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* scales = job.group + 32 * job.begin;
    const uint8_t* unit = job.group + scale_table(job.blocks) + kUnit * job.begin;
    XBlock<C> x = {job.x + job.begin * C * Columns<Q8_0>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; ++b) {
      fetch_ahead<kUnit, 64>(job, unit);
      const Floats d = f_from_f16(scales), taken = surplus(d);
      Ints whole[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) whole[c] = i_splat(x.word(0, c));
      dots<8, 8>([&](int i) { return b_load(unit + 64 * i); }, x.q(), whole);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        sums[c] = f_fma(i_scaled(whole[c], d, taken), f_splat(x.scale(c)), sums[c]);
      unit += kUnit;
      scales += 32;
      x.at += C * Columns<Q8_0>::kRecord;
    }
    finish<C>(sums, job);
  }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q8_0)
