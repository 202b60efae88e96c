// Blocks of 256 values in the K formats and iq4_xs, by a search for the least weighted squared
// error. Formats are those of block_k.hpp. Fitted first are the steps of sub-blocks alone; then
// they become whole multiples of one step, which is fitted to the codes that follow.
#pragma once

#include "decode.hpp"
#include "encode.hpp"
#include "fit_lanes.hpp"

namespace {

constexpr int kSuper = 256;

// Whether a scale is one that f16 holds.
inline bool fits_f16(float d) {
  return (f32_to_f16(d) & 0x7c00) != 0x7c00;
}

inline float as_f16(float d) {
  return f16_to_f32(f32_to_f16(d));
}

// Weights of errors: of values alone, and with an importance.
inline float size_weight(float x, float) {
  return fabsf(x);
}
inline float square_weight(float x, float) {
  return x * x;
}
inline float spread_weight(float x, float mean) {
  return sqrtf(mean) + fabsf(x);
}
inline float given_weight(float, float, float importance) {
  return importance;
}
template <int Means>
inline float given_spread(float x, float mean, float importance) {
  return importance * sqrtf(static_cast<float>(Means) * mean + x * x);
}

// Multiples low .. high of a common step; the largest step gets the multiple end.
struct Multiples {
  float low, high, end;
};

// The steps of n sub-blocks as multiples of d, f16. multiple: those; steps: their products with d.
inline float share_steps(const float* x, int n, const Multiples& m, float* multiple) {
  float peak = 0.0f;
  for (int j = 0; j < n; ++j) peak = fabsf(x[j]) > fabsf(peak) ? x[j] : peak;
  const float d = as_f16(peak / m.end), back = inverse(d);
  for (int j = 0; j < n; ++j) {
    const float code = (x[j] * back + 12582912.0f) - 12582912.0f;
    multiple[j] = code < m.low ? m.low : code > m.high ? m.high : code;
  }
  return d;
}

inline void multiply(const float* multiple, float d, int n, float* to) {
  for (int j = 0; j < n; ++j) to[j] = d * multiple[j];
}

// What a block of n sub-blocks, from lane `first` on, has in common.
struct Common {
  float d = 0, dmin = 0;
  bool fits() const { return fits_f16(d) && fits_f16(dmin); }
};

// The best d for given multiples and codes.
template <int W>
inline float refit(const Codes<W>& c, const float* multiple, int first, int n, float d) {
  float xv = 0, vv = 0;
  for (int j = first; j < first + n; ++j) {
    xv += multiple[j] * c.xv[j];
    vv += multiple[j] * multiple[j] * c.vv[j];
  }
  return vv > 0 ? as_f16(xv / vv) : d;
}

// The best d and dmin: of y = d * step * q - dmin * low.
template <int W>
inline Common refit(const Codes<W>& c, const Found& f, const float* step, const float* low,
                    int first, int n, const Common& before) {
  float a = 0, b = 0, e = 0, xv = 0, xw = 0;
  for (int j = first; j < first + n; ++j) {
    a += step[j] * step[j] * c.vv[j];
    b += step[j] * low[j] * c.v[j];
    e += low[j] * low[j] * f.weight[j];
    xv += step[j] * c.xv[j];
    xw += low[j] * c.xw[j];
  }
  const float det = a * e - b * b;
  if (!(det > 1e-6f * a * e)) return before;
  const float d = (e * xv - b * xw) / det, dmin = (b * xv - a * xw) / det;
  return d > 0 && dmin > 0 ? Common{as_f16(d), as_f16(dmin)} : before;
}

// Steps of sub-blocks in one or two blocks of n: multiples and codes of them. False where one of
// the common steps is beyond f16.
template <int W, class Values, class Code>
inline bool fit_steps(const Lanes<W>& g, Found& f, int n, int blocks, const Multiples& m,
                      const Values& values, const Code& code, float more, float* multiple,
                      Codes<W>& codes, float* d) {
  alignas(64) const float none[kSub] = {};
  for (int i = 0; i < blocks; ++i) {
    d[i] = share_steps(f.step + n * i, n, m, multiple + n * i);
    multiply(multiple + n * i, d[i], n, f.step + n * i);
  }
  find_codes(g, f.step, none, 0.0f, values, codes);
  for (int i = 0; i < blocks; ++i) {
    d[i] = refit(codes, multiple, n * i, n, d[i]);
    if (!fits_f16(d[i])) return false;
    multiply(multiple + n * i, d[i], n, f.step + n * i);
  }
  find_codes(g, f.step, none, more, code, codes);
  return true;
}

// Steps and minima of sub-blocks in one or two blocks of n, as multiples of d and dmin.
template <int W>
struct Affine {
  const Lanes<W>& g;
  int n, blocks;
  float most, top;  // of multiples and of codes
  Found f;          // steps and offsets, as they would be stored
  float step[kSub], low[kSub];
  Common common[2];
  Codes<W> codes;

  int block_of(int j) const { return j / n < blocks ? j / n : 0; }

  float clamp(float code) const {
    const float whole = (code + 12582912.0f) - 12582912.0f;
    return whole < 0 ? 0 : whole > most ? most : whole;
  }

  void apply() {
    for (int j = 0; j < kSub; ++j) {
      f.step[j] = common[block_of(j)].d * step[j];
      f.offset[j] = -common[block_of(j)].dmin * low[j];
    }
  }

  void find() { find_codes(g, f.step, f.offset, 0.0f, Counted{top}, codes); }

  // The error of sub-block j, less the sum of w * x * x.
  float error(int j) const {
    const float s = f.step[j], o = f.offset[j];
    return s * (s * codes.vv[j] - 2.0f * codes.xv[j]) +
           o * (o * f.weight[j] + 2.0f * (s * codes.v[j] - codes.xw[j]));
  }

  // Sub-blocks take the multiple beside their own where that is better with the minimum that it
  // calls for: rounding a step to its multiple costs as much as rounding values to codes.
  void choose() {
    float best[kSub], least[kSub], start[kSub], offsets[kSub];
    memcpy(offsets, f.offset, sizeof offsets);
    for (int j = 0; j < kSub; ++j) {
      start[j] = clamp(f.step[j] * inverse(common[block_of(j)].d));
      least[j] = INFINITY;
      best[j] = step[j] = start[j];
      low[j] = 0;
    }
    float lowest[kSub] = {};
    for (int by = -1; by <= 1; ++by) {
      for (int j = 0; j < kSub; ++j) {
        step[j] = clamp(start[j] + static_cast<float>(by));
        f.step[j] = common[block_of(j)].d * step[j];
        f.offset[j] = offsets[j];
      }
      find();
      for (int j = 0; j < kSub; ++j) {
        const float rest = codes.xw[j] - f.step[j] * codes.v[j];
        const float offset = f.weight[j] > 0 ? rest / f.weight[j] : 0.0f;
        low[j] = clamp(-offset * inverse(common[block_of(j)].dmin));
      }
      apply();
      find();
      for (int j = 0; j < kSub; ++j) {
        const float e = error(j);
        if (!(e < least[j])) continue;
        least[j] = e;
        best[j] = step[j];
        lowest[j] = low[j];
      }
    }
    memcpy(step, best, sizeof best);
    memcpy(low, lowest, sizeof lowest);
  }

  // False where a common step is beyond f16.
  bool fit(const AffineSearch& search) {
    fit_affine(g, search, f);
    for (int i = 0; i < blocks; ++i) {
      float step_peak = 0, low_peak = 0;
      for (int j = n * i; j < n * i + n; ++j) {
        step_peak = f.step[j] > step_peak ? f.step[j] : step_peak;
        low_peak = -f.offset[j] > low_peak ? -f.offset[j] : low_peak;
      }
      common[i] = {as_f16(step_peak / most), as_f16(low_peak / most)};
      if (!common[i].fits()) return false;
    }
    choose();
    apply();
    find();
    for (int i = 0; i < blocks; ++i) {
      common[i] = refit(codes, f, step, low, n * i, n, common[i]);
      if (!common[i].fits()) return false;
    }
    apply();
    find();
    return true;
  }
};

inline uint8_t byte_of(float whole) {
  return static_cast<uint8_t>(static_cast<int32_t>(whole) & 0xff);
}

// q2_k: sixteen sub-blocks of 16.
inline bool encode_q2_k(const float* x, const float* importance, uint8_t* b, int64_t n) {
  using Of = Block<RR_Q2_K>;
  const AffineSearch search = importance ? AffineSearch{3, -0.9f, 0.05f, 37, 3, true}
                                         : AffineSearch{3, -0.9f, 0.1f, 16, 2, true};
  for (int64_t at = 0; at < n; at += kSuper, b += Of::kBytes) {
    Lanes<16> g;
    load_lanes(x + at, importance ? importance + at : nullptr, kSuper, kSuper, size_weight,
               given_spread<1>, g);
    Affine<16> a = {g, 16, 1, 15.0f, 3.0f, {}, {}, {}, {}, {}};
    if (!a.fit(search)) return false;
    memset(b + Of::kCodes, 0, 64);
    for (int k = 0; k < 16; ++k) {
      b[Of::kScales + k] = static_cast<uint8_t>(byte_of(a.step[k]) | byte_of(a.low[k]) << 4);
      uint8_t* to = b + Of::kCodes + 32 * (k / 8) + 16 * (k % 2);
      for (int i = 0; i < 16; ++i) to[i] |= static_cast<uint8_t>(a.codes.q[i][k] << k / 2 % 4 * 2);
    }
    store_scale(a.common[0].d, b + Of::kD);
    store_scale(a.common[0].dmin, b + Of::kMin);
  }
  return true;
}

// q3_k: sixteen sub-blocks of 16.
inline bool encode_q3_k(const float* x, const float* importance, uint8_t* b, int64_t n) {
  using Of = Block<RR_Q3_K>;
  const SignedSearch search = {-4.0f, 0.0f, 0.15f, 9, 2};
  for (int64_t at = 0; at < n; at += kSuper, b += Of::kBytes) {
    Lanes<16> g;
    load_lanes(x + at, importance ? importance + at : nullptr, kSuper, kSuper, size_weight,
               given_spread<2>, g);
    Found f;
    Codes<16> codes;
    float step[16], d;
    fit_signed(g, Whole{4}, search, f);
    if (!fit_steps(g, f, 16, 1, {-32, 31, -32}, Whole{4}, Whole{4}, 4.0f, step, codes, &d))
      return false;
    memset(b, 0, Of::kBytes);
    for (int k = 0; k < 16; ++k) {
      const int scale = static_cast<int>(step[k]) + 32;
      b[Of::kScales + k % 8] |= static_cast<uint8_t>((scale & 15) << k / 8 * 4);
      b[Of::kScales + 8 + k % 4] |= static_cast<uint8_t>((scale >> 4) << k / 4 * 2);
      uint8_t *third = b + Of::kHigh + 16 * (k % 2),
              *to = b + Of::kCodes + 32 * (k / 8) + 16 * (k % 2);
      for (int i = 0; i < 16; ++i) {
        third[i] |= static_cast<uint8_t>((codes.q[i][k] >> 2) << k / 2);
        to[i] |= static_cast<uint8_t>((codes.q[i][k] & 3) << k / 2 % 4 * 2);
      }
    }
    store_scale(d, b + Of::kD);
  }
  return true;
}

// q6_k: sixteen sub-blocks of 16.
inline bool encode_q6_k(const float* x, const float* importance, uint8_t* b, int64_t n) {
  using Of = Block<RR_Q6_K>;
  const SignedSearch search = {-32.0f, 0.0f, 0.12f, 8, 0};
  for (int64_t at = 0; at < n; at += kSuper, b += Of::kBytes) {
    Lanes<16> g;
    load_lanes(x + at, importance ? importance + at : nullptr, kSuper, kSuper, square_weight,
               given_weight, g);
    Found f;
    Codes<16> codes;
    float step[16], d;
    fit_signed(g, Whole{32}, search, f);
    if (!fit_steps(g, f, 16, 1, {-128, 127, -128}, Whole{32}, Whole{32}, 32.0f, step, codes, &d))
      return false;
    memset(b, 0, Of::kBytes);
    for (int k = 0; k < 16; ++k) {
      const int half = k / 8, group = k / 2 % 4;
      uint8_t* low = b + Of::kCodes + 64 * half + 32 * (group % 2) + 16 * (k % 2);
      uint8_t* high = b + Of::kHigh + 32 * half + 16 * (k % 2);
      for (int i = 0; i < 16; ++i) {
        low[i] |= static_cast<uint8_t>((codes.q[i][k] & 15) << group / 2 * 4);
        high[i] |= static_cast<uint8_t>((codes.q[i][k] >> 4) << 2 * group);
      }
      b[Of::kScales + k] = byte_of(step[k]);
    }
    store_scale(d, b + Of::kD);
  }
  return true;
}

// The eight 6-bit steps and minima of q4_k and q5_k in 12 bytes.
inline void pack_steps(const float* step, const float* low, uint8_t* s) {
  for (int j = 0; j < 4; ++j) {
    const int a = byte_of(step[j]), b = byte_of(step[j + 4]);
    const int c = byte_of(low[j]), e = byte_of(low[j + 4]);
    s[j] = static_cast<uint8_t>(a | (b >> 4) << 6);
    s[j + 4] = static_cast<uint8_t>(c | (e >> 4) << 6);
    s[j + 8] = static_cast<uint8_t>((b & 15) | (e & 15) << 4);
  }
}

// q4_k and q5_k: two blocks of eight sub-blocks of 32 at a time.
template <uint32_t dtype>
inline bool encode_k_affine(const float* x, const float* importance, uint8_t* b, int64_t n) {
  using Of = Block<dtype>;
  constexpr int kTop = dtype == RR_Q5_K ? 31 : 15;
  const AffineSearch search = importance ? AffineSearch{kTop, -0.9f, 0.05f, 37, 1, true}
                                         : AffineSearch{kTop, -0.9f, 0.1f, 19, 1, true};
  for (int64_t at = 0; at < n; at += 2 * kSuper) {
    Lanes<32> g;
    load_lanes(x + at, importance ? importance + at : nullptr, n - at, importance ? kSuper : 32,
               spread_weight, given_spread<2>, g);
    Affine<32> a = {g, 8, n - at > kSuper ? 2 : 1, 63.0f, kTop, {}, {}, {}, {}, {}};
    if (!a.fit(search)) return false;
    for (int i = 0; i < a.blocks; ++i, b += Of::kBytes) {
      store_scale(a.common[i].d, b + Of::kD);
      store_scale(a.common[i].dmin, b + Of::kMin);
      pack_steps(a.step + 8 * i, a.low + 8 * i, b + Of::kScales);
      memset(b + 16, 0, Of::kBytes - 16);
      for (int j = 0; j < 8; ++j) {
        uint8_t* to = b + Of::kCodes + 32 * (j / 2);
        for (int k = 0; k < 32; ++k) {
          const int q = a.codes.q[k][8 * i + j];
          to[k] |= static_cast<uint8_t>((q & 15) << j % 2 * 4);
          if constexpr (dtype == RR_Q5_K) b[Of::kHigh + k] |= static_cast<uint8_t>((q >> 4) << j);
        }
      }
    }
  }
  return true;
}

// Codes 0 .. 15 of sub-block j of 32, in halves.
inline void pack_codes(const Codes<32>& codes, int j, uint8_t* to) {
  for (int i = 0; i < 16; ++i)
    to[i] = static_cast<uint8_t>((codes.q[i][j] & 15) | (codes.q[i + 16][j] & 15) << 4);
}

// Either end of the values may be that of the largest magnitude, and clipping it may pay.
constexpr SignedSearch kIq4Search = {-126.0f, 114.0f, 4.0f, 6, 1};

// iq4_xs: two blocks of eight sub-blocks of 32 at a time.
inline bool encode_iq4_xs(const float* x, const float* importance, uint8_t* b, int64_t n) {
  using Of = Block<RR_IQ4_XS>;
  for (int64_t at = 0; at < n; at += 2 * kSuper) {
    Lanes<32> g;
    load_lanes(x + at, importance ? importance + at : nullptr, n - at, kSuper, size_weight,
               given_spread<2>, g);
    Found f;
    Codes<32> codes;
    float step[16], d[2];
    const int blocks = n - at > kSuper ? 2 : 1;
    fit_signed(g, Listed{kFloatsOf<kIq4Values>.at}, kIq4Search, f);
    if (!fit_steps(g, f, 8, blocks, {-32, 31, -32}, Listed{kFloatsOf<kIq4Values>.at},
                   Place{kFloatsOf<kIq4Values>.at}, 0.0f, step, codes, d))
      return false;
    for (int i = 0; i < blocks; ++i, b += Of::kBytes) {
      memset(b, 0, Of::kCodes);
      store_scale(d[i], b + Of::kD);
      for (int j = 0; j < 8; ++j) {
        const int scale = static_cast<int>(step[8 * i + j]) + 32;
        b[Of::kHigh + j / 4] |= static_cast<uint8_t>((scale >> 4) << j % 4 * 2);
        b[Of::kScales + j / 2] |= static_cast<uint8_t>((scale & 15) << j % 2 * 4);
        pack_codes(codes, 8 * i + j, b + Of::kCodes + 16 * j);
      }
    }
  }
  return true;
}

}  // namespace
