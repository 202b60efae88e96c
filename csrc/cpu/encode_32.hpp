// Blocks of 32 values. With an importance, and always for iq4_nl, by a search for the least
// weighted squared error; otherwise bit for bit as the codecs encode.
#pragma once

#include "encode_k.hpp"

namespace {

constexpr int64_t kGroup = kSub * kBlock;

inline void pack_fifths(const uint8_t* q, uint8_t* to) {
  uint32_t fifth = 0;
  for (int i = 0; i < kBlock; ++i) fifth |= static_cast<uint32_t>(q[i] >> 4 & 1) << i;
  memcpy(to, &fifth, sizeof fifth);
}

// q4_0 and q5_0 by their values of largest magnitude.
template <uint32_t dtype, void (*Encode)(const float*, uint8_t*)>
inline bool encode_each(const float* x, uint8_t* b, int64_t n) {
  for (int64_t at = 0; at < n; at += kBlock, b += Block<dtype>::kBytes) {
    Encode(x + at, b);
    uint16_t d;
    memcpy(&d, b, sizeof d);
    if ((d & 0x7c00) == 0x7c00) return false;
  }
  return true;
}

inline void pack_fifths(const Codes<32>& codes, int j, uint8_t* to) {
  uint32_t fifth = 0;
  for (int i = 0; i < kBlock; ++i) fifth |= static_cast<uint32_t>(codes.q[i][j] >> 4 & 1) << i;
  memcpy(to, &fifth, sizeof fifth);
}

// Numbers of f16 in the place of scales. False where one has none.
inline bool round_scales(float* scales) {
  for (int j = 0; j < kSub; ++j) {
    if (!fits_f16(scales[j])) return false;
    scales[j] = as_f16(scales[j]);
  }
  return true;
}

template <uint32_t dtype>
inline bool search_signed_32(const float* x, const float* importance, uint8_t* b, int64_t n) {
  using Of = Block<dtype>;
  const SignedSearch search = {-static_cast<float>(Of::kLevels), 0.0f, 0.1f, 9, 2};
  alignas(64) const float none[kSub] = {};
  for (int64_t at = 0; at < n; at += kGroup) {
    Lanes<32> g;
    load_lanes(x + at, importance + at, n - at, kBlock, square_weight, given_spread<1>, g);
    Found f;
    Codes<32> codes;
    fit_signed(g, Whole{Of::kLevels}, search, f);
    if (!round_scales(f.step)) return false;
    find_codes(g, f.step, none, Of::kLevels, Whole{Of::kLevels}, codes);
    for (int j = 0; j < kSub && at + j * kBlock < n; ++j, b += Of::kBytes) {
      store_scale(f.step[j], b);
      if constexpr (dtype == RR_Q5_0) pack_fifths(codes, j, b + Of::kHigh);
      pack_codes(codes, j, b + Of::kCodes);
    }
  }
  return true;
}

// q4_1 and q5_1 by their least and largest values, as the codecs encode.
template <uint32_t dtype>
inline bool encode_affine_32(const float* x, uint8_t* b, int64_t n) {
  using Of = Block<dtype>;
  constexpr int kTop = dtype == RR_Q5_1 ? 31 : 15;
  for (int64_t at = 0; at < n; at += kBlock, b += Of::kBytes) {
    float low = x[at], high = x[at];
    for (int i = 1; i < kBlock; ++i) {
      low = x[at + i] < low ? x[at + i] : low;
      high = x[at + i] > high ? x[at + i] : high;
    }
    const float d = (high - low) / static_cast<float>(kTop), factor = inverse(d);
    if (!fits_f16(d) || !fits_f16(low)) return false;
    uint8_t q[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const int32_t code = static_cast<int32_t>((x[at + i] - low) * factor + 0.5f);
      q[i] = static_cast<uint8_t>(code > kTop ? kTop : code);
    }
    store_scale(d, b);
    store_scale(low, b + Of::kMin);
    if constexpr (dtype == RR_Q5_1) pack_fifths(q, b + Of::kHigh);
    pack_nibbles(q, b + Of::kCodes);
  }
  return true;
}

template <uint32_t dtype>
inline bool search_affine_32(const float* x, const float* importance, uint8_t* b, int64_t n) {
  using Of = Block<dtype>;
  constexpr int kTop = dtype == RR_Q5_1 ? 31 : 15;
  const AffineSearch search = {kTop, -0.9f, 0.05f, 37, 1, false};
  for (int64_t at = 0; at < n; at += kGroup) {
    Lanes<32> g;
    load_lanes(x + at, importance + at, n - at, kBlock, square_weight, given_spread<1>, g);
    Found f;
    Codes<32> codes;
    fit_affine(g, search, f);
    if (!round_scales(f.step) || !round_scales(f.offset)) return false;
    find_codes(g, f.step, f.offset, 0.0f, Counted{kTop}, codes);
    for (int j = 0; j < kSub && at + j * kBlock < n; ++j, b += Of::kBytes) {
      store_scale(f.step[j], b);
      store_scale(f.offset[j], b + Of::kMin);
      if constexpr (dtype == RR_Q5_1) pack_fifths(codes, j, b + Of::kHigh);
      pack_codes(codes, j, b + Of::kCodes);
    }
  }
  return true;
}

inline bool encode_iq4_nl(const float* x, const float* importance, uint8_t* b, int64_t n) {
  using Of = Block<RR_IQ4_NL>;
  alignas(64) const float none[kSub] = {};
  for (int64_t at = 0; at < n; at += kGroup) {
    Lanes<32> g;
    load_lanes(x + at, importance ? importance + at : nullptr, n - at, kBlock, size_weight,
               given_spread<2>, g);
    Found f;
    Codes<32> codes;
    fit_signed(g, Listed{kFloatsOf<kIq4Values>.at}, kIq4Search, f);
    if (!round_scales(f.step)) return false;
    find_codes(g, f.step, none, 0.0f, Place{kFloatsOf<kIq4Values>.at}, codes);
    for (int j = 0; j < kSub && at + j * kBlock < n; ++j, b += Of::kBytes) {
      store_scale(f.step[j], b);
      pack_codes(codes, j, b + Of::kCodes);
    }
  }
  return true;
}

// The largest element's power of two gets the largest power of E2M1, which is 4; halves go towards
// zero.
inline bool encode_mxfp4(const float* x, const float*, uint8_t* b, int64_t n) {
  using Of = Block<RR_MXFP4>;
  constexpr FloatList e2m1{kE2m1Values};
  for (int64_t at = 0; at < n; at += kBlock, b += Of::kBytes) {
    const float most = peak(x + at, kBlock);
    int e = 0;
    if (most > 0) {
      frexpf(most, &e);
      e += 124;
      e = e < 0 ? 0 : e > 254 ? 254 : e;
    }
    uint8_t q[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const float size = fabsf(ldexpf(x[at + i], 128 - e));
      int code = 0;
      for (int v = 1; v < 8; ++v) code += size > (e2m1.at[v] + e2m1.at[v - 1]) * 0.5f;
      q[i] = static_cast<uint8_t>(x[at + i] < 0 && code > 0 ? code + 8 : code);
    }
    b[Of::kE] = static_cast<uint8_t>(e);
    pack_nibbles(q, b + Of::kCodes);
  }
  return true;
}

}  // namespace
