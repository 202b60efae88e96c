// mul_mat with iq4_xs weights: 256 values, d f16, eight 6-bit scales s, nibbles that name values of
// a code book. y = d * (s_j - 32) * value in sub-block j of 32 values.
//
// A group is a table of d [block][row], then per block of k the scales s - 32 as int8 [8][row] and
// four vectors of nibbles for each sub-block.

#include "mul_mat_block32.hpp"

namespace {

struct Iq4Xs {
  using Of = Block<RR_IQ4_XS>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed iq4_xs";
  static constexpr int64_t kUnit = 128 + 8 * 256;
  static constexpr int kBits = 8, kExtras = 1, kCodes = 128, kOffset = 127;
  static constexpr ByteTable kTable{kIq4Values, kOffset};
  static constexpr bool kHalves = false;

  static int64_t group_bytes(int64_t k) { return scale_table(k / 256) + k / 256 * kUnit; }

  static void extras(v4, i4x32 sum, i4x32, i4x32* words) {
    words[0] = kIntBias - sum * (kOffset - kTakenOff<kBits>);
  }

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes, unit += kUnit) {
      memcpy(group + 32 * b + 2 * lane, row + Of::kD, 2);
      for (int j = 0; j < 8; ++j) {
        unit[16 * j + lane] = static_cast<uint8_t>(Of::scale(row, j) - 32);
        pack_nibbles(row + Of::kCodes + 16 * j, unit + kCodes + 256 * j, lane);
      }
    }
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* table = job.group + 32 * (job.begin / 8);
    const uint8_t* unit = job.group + scale_table(job.blocks / 8) + kUnit * (job.begin / 8);
    XBlock<Iq4Xs, C> x = {job.x + job.begin * C * Columns<Iq4Xs>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; b += 8, unit += kUnit, table += 32) {
      const Floats d = f_from_f16(table);
      for (int j = 0; j < 8; ++j) {
        const uint8_t* codes = unit + kCodes + 256 * j;
        fetch_ahead<256, C <= 4 ? 64 : 192>(job, codes);
        const Floats scale = f_mul(f_from_i8(unit + 16 * j), d), taken = surplus(scale);
        const auto w = for_tile<kBits, 8, C>(Looked{b_table(kTable.value), {codes}});
        each_part<C>([&](auto part) RR_INLINE_BODY {
          constexpr int kFirst = decltype(part)::kFirst, kN = decltype(part)::kN;
          Ints whole[kN];
          dots<kBits, 8>(
              w, x.q(kFirst), [&](int c) { return i_splat(x.word(0, kFirst + c)); }, whole);
#pragma GCC unroll 8
          for (int i = 0, c = kFirst; i < kN; ++i, ++c)
            sums[c] = f_fma(i_scaled(whole[i], scale, taken), f_splat(x.scale(c)), sums[c]);
        });
        x.next();
      }
    }
    finish<C>(sums, job);
  }
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq4Xs)
