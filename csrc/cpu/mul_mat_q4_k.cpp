// mul_mat with q4_k weights: 256 values, d and dmin f16, eight 6-bit scales s and minima m,
// nibbles. y = d * s_j * q - dmin * m_j in sub-block j of 32 values.
//
// A group is, per block of k: d [row], dmin [row], the 12 bytes of scales and minima as
// [12][row], and 32 vectors [row][4] of nibbles, eight for each pair of sub-blocks: low nibbles
// belong to the even one. The minima meet sums of x, which quantised x carries.

#include "mul_mat_quant.hpp"

namespace {

struct Q4_K {
  static constexpr uint32_t kType = RR_Q4_K;
  static constexpr const char* kRefusal = "w is not packed q4_k";
  static constexpr int64_t kWeightBlock = 256, kWeightBytes = 144, kUnit = 2304;
  static constexpr int kExtras = 1;
  static constexpr bool kHalves = false;
  static constexpr int kScales = 64, kNibbles = 256;

  static int64_t group_bytes(int64_t k) { return k / 256 * kUnit; }

  static void extras(v4 scale, i4x32 sum, i4x32, i4x32* words) {
    words[0] = (i4x32)(scale * __builtin_convertvector(sum, v4));
  }

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b, row += kWeightBytes, group += kUnit) {
      memcpy(group + 2 * lane, row, 2);
      memcpy(group + 32 + 2 * lane, row + 2, 2);
      for (int i = 0; i < 12; ++i) group[kScales + 16 * i + lane] = row[4 + i];
      for (int i = 0; i < 32; ++i)
        memcpy(group + kNibbles + 64 * i + 4 * lane, row + 16 + 4 * i, 4);
    }
  }

  // Scales, then minima, one byte each: [16][row].
  RR_INLINE static void unpack_scales(const uint8_t* unit, uint8_t* out) {
    const Bytes a = b_load(unit + kScales), b = b_load(unit + kScales + 64),
                c = b_load(unit + kScales + 128);
    const Bytes six = b_splat(63), four = b_splat(15);
    b_store(out, b_and(a, six));
    b_store(out + 64, b_and(b_select(four, c, b_shr<2>(a)), six));
    b_store(out + 128, b_and(b, six));
    b_store(out + 192, b_and(b_select(four, b_shr<4>(c), b_shr<2>(b)), six));
  }

// High nibbles may stay where they are, sixteenfold, if 16 * 15 * 127 * 2 does not overflow.
#if defined(__AVX512VNNI__)
  static constexpr float kHighScale = 1.0f / 16;
  RR_INLINE static Bytes high_nibbles(Bytes v) { return b_and(v, b_splat(0xf0)); }
#else
  static constexpr float kHighScale = 1.0f;
  RR_INLINE static Bytes high_nibbles(Bytes v) { return b_and(b_shr<4>(v), b_splat(15)); }
#endif

  // One sub-block: weights w with scale d * s and minimum -dmin * m.
  template <int C, class Weights>
  RR_INLINE static void add(const Weights& w, Floats scale, Floats minimum, const XBlock<C>& x,
                            Floats (&sums)[C]) {
    const Floats taken = surplus(scale);
    Ints whole[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) whole[c] = i_splat(kIntBias);
    dots<4, 8>(w, x.q(), whole);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      sums[c] = f_fma(minimum, f_splat(x.number(0, c)), sums[c]);
      sums[c] = f_fma(i_scaled(whole[c], scale, taken), f_splat(x.scale(c)), sums[c]);
    }
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* unit = job.group + kUnit * (job.begin / 8);
    XBlock<C> x = {job.x + job.begin * C * Columns<Q4_K>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; b += 8, unit += kUnit) {
      alignas(64) uint8_t bytes[256];
      unpack_scales(unit, bytes);
      const Floats d = f_from_f16(unit), d_high = f_mul(d, f_splat(kHighScale));
      const Floats dmin = f_mul(f_from_f16(unit + 32), f_splat(-1.0f));
      for (int pair = 0; pair < 4; ++pair) {
        const uint8_t* v = unit + kNibbles + 512 * pair;
        const uint8_t *s = bytes + 32 * pair, *m = s + 128;
        fetch_ahead<kUnit / 4, C <= 4 ? 64 : 192>(job, unit + kUnit / 4 * pair);
        add<C>([&](int i) { return b_and(b_load(v + 64 * i), b_splat(15)); },
               f_mul(f_from_u8(s), d), f_mul(f_from_u8(m), dmin), x, sums);
        x.at += C * Columns<Q4_K>::kRecord;
        add<C>([&](int i) { return high_nibbles(b_load(v + 64 * i)); },
               f_mul(f_from_u8(s + 16), d_high), f_mul(f_from_u8(m + 16), dmin), x, sums);
        x.at += C * Columns<Q4_K>::kRecord;
      }
    }
    finish<C>(sums, job);
  }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q4_K)
