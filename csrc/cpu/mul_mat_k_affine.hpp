// What q4_k and q5_k share: 256 values, d and dmin f16, eight 6-bit scales s and minima m.
// y = d * s_j * q - dmin * m_j in sub-block j of 32 values.
//
// A group is, per block of k: d [row], dmin [row], the 12 bytes of scales and minima as
// [12][row], and for every two sub-blocks W::kPair bytes of codes, of which the first eight
// vectors [row][4] are nibbles: low ones belong to the even sub-block. The minima meet sums of x,
// which quantised x carries.
#pragma once

#include "mul_mat_quant.hpp"

namespace {

template <class W>
struct AffineK {
  static constexpr int kExtras = 1, kScales = 64, kCodes = 256;
  static constexpr bool kHalves = false;
  static constexpr int64_t unit_bytes() { return kCodes + 4 * W::kPair; }

  static int64_t group_bytes(int64_t k) { return k / 256 * unit_bytes(); }

  static void extras(v4 scale, i4x32 sum, i4x32, i4x32* words) {
    words[0] = (i4x32)(scale * __builtin_convertvector(sum, v4));
  }

  // All but the codes.
  static void pack_head(const uint8_t* block, uint8_t* unit, int64_t lane) {
    using Of = Block<W::kType>;
    memcpy(unit + 2 * lane, block + Of::kD, 2);
    memcpy(unit + 32 + 2 * lane, block + Of::kMin, 2);
    for (int i = 0; i < 12; ++i) unit[kScales + 16 * i + lane] = block[Of::kScales + i];
  }

  static void pack_nibbles(const uint8_t* q, uint8_t* unit, int64_t lane) {
    for (int i = 0; i < 32; ++i)
      memcpy(unit + kCodes + W::kPair * (i / 8) + 64 * (i % 8) + 4 * lane, q + 4 * i, 4);
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

  // One sub-block: weights w with scale d * s and minimum -dmin * m.
  template <int C, class Weights>
  RR_INLINE static void add(const Weights& w, Floats scale, Floats minimum, const XBlock<W, C>& x,
                            Floats (&sums)[C]) {
    const Floats taken = surplus(scale);
    const auto ready = for_tile<W::kBits, 8, C>(w);
    each_part<C>([&](auto part) RR_INLINE_BODY {
      constexpr int kFirst = decltype(part)::kFirst, kN = decltype(part)::kN;
      Ints whole[kN];
      dots<W::kBits, 8>(ready, x.q(kFirst), [&](int) { return i_splat(kIntBias); }, whole);
#pragma GCC unroll 8
      for (int i = 0, c = kFirst; i < kN; ++i, ++c) {
        sums[c] = f_fma(minimum, f_splat(x.number(0, c)), sums[c]);
        sums[c] = f_fma(i_scaled(whole[i], scale, taken), f_splat(x.scale(c)), sums[c]);
      }
    });
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* unit = job.group + unit_bytes() * (job.begin / 8);
    XBlock<W, C> x = {job.x + job.begin * C * Columns<W>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; b += 8, unit += unit_bytes()) {
      alignas(64) uint8_t bytes[256];
      unpack_scales(unit, bytes);
      const Floats d = f_from_f16(unit), d_high = f_mul(d, f_splat(W::kHighScale));
      const Floats dmin = f_mul(f_from_f16(unit + 32), f_splat(-1.0f));
      for (int pair = 0; pair < 4; ++pair) {
        const uint8_t* codes = unit + kCodes + W::kPair * pair;
        const uint8_t *s = bytes + 32 * pair, *m = s + 128;
        // On AVX2 a pair of blocks times many columns takes so long that the hardware's own
        // prefetch is in time, and requests beside it cost an eighth.
        if constexpr (C <= 4 || !kAvx2Alone)
          fetch_ahead<unit_bytes() / 4, C <= 4 ? 64 : 192>(job, unit + unit_bytes() / 4 * pair);
        add<C>([&](int i) { return W::low(codes, i); }, f_mul(f_from_u8(s), d),
               f_mul(f_from_u8(m), dmin), x, sums);
        x.next();
        add<C>([&](int i) { return W::high(codes, i); }, f_mul(f_from_u8(s + 16), d_high),
               f_mul(f_from_u8(m + 16), dmin), x, sums);
        x.next();
      }
    }
    finish<C>(sums, job);
  }
};

}  // namespace
