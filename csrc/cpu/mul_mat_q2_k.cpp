// mul_mat with q2_k weights: 256 values, d and dmin f16, sixteen 4-bit scales s and minima m, 2-bit
// q. y = d * s_j * q - dmin * m_j in sub-block j of 16 values.
//
// A group is, per block of k: d [row], dmin [row], bytes [16][row] with s in the low half and m in
// the high one, and a vector [row][4] for each sub-block: bit pair i of its byte j is q for
// k = 4i + j of the sub-block. The minima meet sums of x, which quantised x carries.

#include "mul_mat_pairs.hpp"

namespace {

struct Q2_K {
  using Of = Block<RR_Q2_K>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed q2_k";
  static constexpr int64_t kUnit = 64 + 256 + 1024;
  static constexpr int kBits = 2, kExtras = 2, kScales = 64, kCodes = 320;
  static constexpr bool kHalves = true;

  static int64_t group_bytes(int64_t k) { return k / 256 * kUnit; }

  static void extras(v4 scale, i4x32 low, i4x32 high, i4x32* words) {
    words[0] = (i4x32)(scale * __builtin_convertvector(low, v4));
    words[1] = (i4x32)(scale * __builtin_convertvector(high, v4));
  }

  static void pack_row(const uint8_t* row, uint8_t* unit, int64_t lane, int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes, unit += kUnit) {
      memcpy(unit + 2 * lane, row + Of::kD, 2);
      memcpy(unit + 32 + 2 * lane, row + Of::kMin, 2);
      for (int j = 0; j < 16; ++j) {
        unit[kScales + 16 * j + lane] = row[Of::kScales + j];
        pack_pairs(row + Of::kCodes + 32 * (j / 8) + 16 * (j % 2), j / 2 % 4 * 2,
                   unit + kCodes + 64 * j + 4 * lane);
      }
    }
  }

  struct Pairs {
    Bytes v;
    RR_INLINE Bytes operator()(int i) const { return b_and(shifted_pairs(v, i), b_splat(3)); }
  };

  // Two sub-blocks: scales d * s and minima -dmin * m of each.
  template <int C>
  RR_INLINE static void add(const uint8_t* codes, const Floats (&scale)[2],
                            const Floats (&minimum)[2], const XBlock<Q2_K, C>& x,
                            Floats (&sums)[C]) {
    const Floats taken[2] = {surplus(scale[0]), surplus(scale[1])};
    const auto low = for_tile<kBits, 4, C>(Pairs{b_load(codes)});
    const auto high = for_tile<kBits, 4, C>(Pairs{b_load(codes + 64)});
    const auto first = [](int) { return i_splat(kIntBias); };
    each_part<C>([&](auto part) RR_INLINE_BODY {
      constexpr int kFirst = decltype(part)::kFirst, kN = decltype(part)::kN;
      Ints a[kN], b[kN];
      dots<kBits, 4>(low, x.q(kFirst, 0), first, a);
      dots<kBits, 4>(high, x.q(kFirst, 1), first, b);
#pragma GCC unroll 8
      for (int i = 0, c = kFirst; i < kN; ++i, ++c) {
        const Floats both =
            f_add(i_scaled(a[i], scale[0], taken[0]), i_scaled(b[i], scale[1], taken[1]));
        sums[c] = f_fma(minimum[0], f_splat(x.number(0, c)), sums[c]);
        sums[c] = f_fma(minimum[1], f_splat(x.number(1, c)), sums[c]);
        sums[c] = f_fma(both, f_splat(x.scale(c)), sums[c]);
      }
    });
  }

  // Scales, then minima, one byte each: [16][row].
  RR_INLINE static void unpack_scales(const uint8_t* unit, uint8_t* out) {
    for (int i = 0; i < 256; i += 64) {
      const Bytes both = b_load(unit + kScales + i);
      b_store(out + i, b_and(both, b_splat(15)));
      b_store(out + 256 + i, b_and(b_shr<4>(both), b_splat(15)));
    }
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* unit = job.group + kUnit * (job.begin / 8);
    XBlock<Q2_K, C> x = {job.x + job.begin * C * Columns<Q2_K>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; b += 8, unit += kUnit) {
      alignas(64) uint8_t bytes[512];
      unpack_scales(unit, bytes);
      fetch_ahead<kCodes, 64>(job, unit);
      const Floats d = f_from_f16(unit), dmin = f_mul(f_from_f16(unit + 32), f_splat(-1.0f));
      for (int j = 0; j < 8; ++j) {
        const uint8_t *codes = unit + kCodes + 128 * j, *s = bytes + 32 * j, *m = s + 256;
        fetch_ahead<128, C <= 4 ? 64 : 192>(job, codes);
        const Floats scale[2] = {f_mul(f_from_u8(s), d), f_mul(f_from_u8(s + 16), d)};
        const Floats minimum[2] = {f_mul(f_from_u8(m), dmin), f_mul(f_from_u8(m + 16), dmin)};
        add<C>(codes, scale, minimum, x, sums);
        x.next();
      }
    }
    finish<C>(sums, job);
  }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q2_K)
