// Rows of any weight type in the file's own order, as f32, bit for bit what the codecs give:
// every product and sum is one rounding.
#pragma once

#include "node.hpp"
#include "simd.hpp"

namespace {

struct Blocks {
  int64_t values, bytes;  // of one block; values 0: not a type that decodes
};

inline Blocks blocks_of(uint32_t dtype) {
  switch (dtype) {
    case RR_F32:
      return {1, 4};
    case RR_F16:
    case RR_BF16:
      return {1, 2};
    case RR_Q8_0:
      return {32, 34};
    case RR_Q5_0:
      return {32, 22};
    case RR_Q4_K:
      return {256, 144};
    case RR_Q6_K:
      return {256, 210};
    default:
      return {0, 0};
  }
}

inline float f16_at(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, sizeof h);
  return f16_to_f32(h);
}

inline void decode_f16(const uint8_t* row, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    store16(out + i, load16_f16(reinterpret_cast<const uint16_t*>(row + 2 * i)));
  for (; i < n; ++i) out[i] = f16_at(row + 2 * i);
}

inline void decode_bf16(const uint8_t* row, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits =
        static_cast<uint32_t>(row[2 * i]) << 16 | static_cast<uint32_t>(row[2 * i + 1]) << 24;
    memcpy(out + i, &bits, sizeof bits);
  }
}

// 32 values: d f16, int8 q. y = d * q.
inline void decode_q8_0(const uint8_t* b, float* out) {
  const float d = f16_at(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(b[2 + i]));
}

// 32 values: d f16, 32 fifth bits, nibbles in halves. y = d * (q - 16).
inline void decode_q5_0(const uint8_t* b, float* out) {
  const float d = f16_at(b);
  uint32_t fifth;
  memcpy(&fifth, b + 2, sizeof fifth);
  for (int i = 0; i < 16; ++i) {
    const int low = (b[6 + i] & 15) | static_cast<int>((fifth >> i & 1) << 4);
    const int high = b[6 + i] >> 4 | static_cast<int>((fifth >> (i + 16) & 1) << 4);
    out[i] = d * static_cast<float>(low - 16);
    out[i + 16] = d * static_cast<float>(high - 16);
  }
}

// 256 values: d and dmin f16, eight 6-bit scales and minima in 12 bytes, nibbles; sub-blocks 2j
// and 2j + 1 are the low and high nibbles of 32 bytes. y = d * s * q - dmin * m.
inline void decode_q4_k(const uint8_t* b, float* out) {
  const float d = f16_at(b), dmin = f16_at(b + 2);
  const uint8_t* s = b + 4;
  for (int j = 0; j < 8; ++j) {
    int scale = s[j & 3] & 63, minimum = s[(j & 3) + 4] & 63;
    if (j >= 4) {
      scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
      minimum = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
    const float step = d * static_cast<float>(scale), offset = dmin * static_cast<float>(minimum);
    const uint8_t* q = b + 16 + 32 * (j / 2);
    const int shift = j % 2 * 4;
    for (int i = 0; i < 32; ++i)
      out[32 * j + i] = step * static_cast<float>(q[i] >> shift & 15) - offset;
  }
}

// 256 values: low nibbles, upper bit pairs, sixteen int8 scales, d f16. y = d * s * (q - 32).
inline void decode_q6_k(const uint8_t* b, float* out) {
  const float d = f16_at(b + 208);
  for (int part = 0; part < 8; ++part) {
    const int half = part / 4, group = part % 4;
    const uint8_t* low = b + 64 * half + 32 * (group % 2);
    const uint8_t* high = b + 128 + 32 * half;
    const int low_shift = group / 2 * 4, high_shift = 2 * group;
    for (int i = 0; i < 32; ++i) {
      const float step = d * static_cast<float>(static_cast<int8_t>(b[192 + 2 * part + i / 16]));
      const int q = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
      out[32 * part + i] = step * static_cast<float>(q - 32);
    }
  }
}

template <void (*Decode)(const uint8_t*, float*)>
inline void decode_blocks(Blocks size, const uint8_t* row, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += size.values, row += size.bytes) Decode(row, out + i);
}

// n values, whole blocks, of a type that blocks_of knows.
inline void decode_row(uint32_t dtype, const uint8_t* row, float* out, int64_t n) {
  switch (dtype) {
    case RR_F16:
      return decode_f16(row, out, n);
    case RR_BF16:
      return decode_bf16(row, out, n);
    case RR_Q8_0:
      return decode_blocks<decode_q8_0>(blocks_of(dtype), row, out, n);
    case RR_Q5_0:
      return decode_blocks<decode_q5_0>(blocks_of(dtype), row, out, n);
    case RR_Q4_K:
      return decode_blocks<decode_q4_k>(blocks_of(dtype), row, out, n);
    case RR_Q6_K:
      return decode_blocks<decode_q6_k>(blocks_of(dtype), row, out, n);
    default:
      memcpy(out, row, static_cast<size_t>(n) * sizeof(float));
  }
}

// Whether a matrix's rows lie in the file's order without gaps inside.
inline bool decodable(const rr_tensor& w, char* why, size_t size) {
  const Blocks b = blocks_of(w.dtype);
  if (w.layout != RR_LAYOUT_PLAIN || b.values == 0)
    return refuse(why, size, "w needs plain f32, f16, bf16, q8_0, q5_0, q4_k or q6_k") != 0;
  if (w.rank != 2 || w.shape[1] % b.values != 0 ||
      (w.shape[1] > b.values && w.strides[1] != b.bytes))
    return refuse(why, size, "w needs to be a matrix of dense rows in whole blocks") != 0;
  return true;
}

}  // namespace
