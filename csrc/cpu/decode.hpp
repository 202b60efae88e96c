// Rows of any weight type in the file's own order, as f32, bit for bit what the codecs give:
// every product and sum is one rounding.
#pragma once

#include "decode_grid.hpp"
#include "node.hpp"
#include "simd.hpp"

namespace {

inline float f16_at(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, sizeof h);
  return f16_to_f32(h);
}

inline void decode_f32(const uint8_t* __restrict row, float* __restrict out, int64_t n) {
  memcpy(out, row, static_cast<size_t>(n) * sizeof(float));
}

inline void decode_f16(const uint8_t* __restrict row, float* __restrict out, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    store16(out + i, load16_f16(reinterpret_cast<const uint16_t*>(row + 2 * i)));
  for (; i < n; ++i) out[i] = f16_at(row + 2 * i);
}

inline void decode_bf16(const uint8_t* __restrict row, float* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits =
        static_cast<uint32_t>(row[2 * i]) << 16 | static_cast<uint32_t>(row[2 * i + 1]) << 24;
    memcpy(out + i, &bits, sizeof bits);
  }
}

// 32 values: d f16, int8 q. y = d * q.
inline void decode_q8_0(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(b[2 + i]));
}

// 32 values: d f16, nibbles in halves. y = d * (q - 8).
inline void decode_q4_0(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((b[2 + i] >> 4) - 8);
  }
}

// 32 values: d and m f16, nibbles in halves. y = d * q + m.
inline void decode_q4_1(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b), m = f16_at(b + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(b[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(b[4 + i] >> 4) + m;
  }
}

// 32 values: d f16, 32 fifth bits, nibbles in halves. y = d * (q - 16).
inline void decode_q5_0(const uint8_t* __restrict b, float* __restrict out) {
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

// 32 values: d and m f16, 32 fifth bits, nibbles in halves. y = d * q + m.
inline void decode_q5_1(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b), m = f16_at(b + 2);
  uint32_t fifth;
  memcpy(&fifth, b + 4, sizeof fifth);
  for (int i = 0; i < 16; ++i) {
    const int low = (b[8 + i] & 15) | static_cast<int>((fifth >> i & 1) << 4);
    const int high = b[8 + i] >> 4 | static_cast<int>((fifth >> (i + 16) & 1) << 4);
    out[i] = d * static_cast<float>(low) + m;
    out[i + 16] = d * static_cast<float>(high) + m;
  }
}

constexpr float kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                            1,    13,   25,  38,  53,  69,  89,  113};

// The floats of E2M1, doubled; its negative zero is read as zero.
constexpr float kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 16 bytes of nibbles in halves. y = step * values[q].
inline void decode_listed(const float* values, float step, const uint8_t* __restrict q,
                          float* __restrict out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = step * values[q[i] & 15];
    out[i + 16] = step * values[q[i] >> 4];
  }
}

// 32 values: d f16, nibbles.
inline void decode_iq4_nl(const uint8_t* __restrict b, float* __restrict out) {
  decode_listed(kIq4, f16_at(b), b + 2, out);
}

// 256 values: d f16, upper bit pairs and low nibbles of eight scales, nibbles of 32 values each.
// y = d * (s - 32) * value.
inline void decode_iq4_xs(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b);
  for (int j = 0; j < 8; ++j) {
    const int low = b[4 + j / 2] >> (j % 2 * 4) & 15, high = b[2 + j / 4] >> (j % 4 * 2) & 3;
    const float step = d * static_cast<float>((low | high << 4) - 32);
    decode_listed(kIq4, step, b + 8 + 16 * j, out + 32 * j);
  }
}

// 32 values: exponent e, nibbles. The scale is 2^(e - 128), subnormal for e < 2.
inline void decode_mxfp4(const uint8_t* __restrict b, float* __restrict out) {
  const uint32_t e = b[0], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
  float scale;
  memcpy(&scale, &bits, sizeof scale);
  decode_listed(kE2m1, scale, b + 1, out);
}

// 256 values: sixteen 4-bit scales and minima, bit pairs, d and dmin f16; sub-block k of 16 is bit
// pair k / 2 % 4 of 16 bytes. y = d * s * q - dmin * m.
inline void decode_q2_k(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b + 80), dmin = f16_at(b + 82);
  for (int k = 0; k < 16; ++k) {
    const float step = d * static_cast<float>(b[k] & 15);
    const float offset = dmin * static_cast<float>(b[k] >> 4);
    const uint8_t* q = b + 16 + 32 * (k / 8) + 16 * (k % 2);
    const int shift = k / 2 % 4 * 2;
    for (int i = 0; i < 16; ++i)
      out[16 * k + i] = step * static_cast<float>(q[i] >> shift & 3) - offset;
  }
}

// 256 values: third bits, bit pairs as in q2_k, sixteen 6-bit scales in 12 bytes, d f16.
// y = d * (s - 32) * (q - 4).
inline void decode_q3_k(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b + 108);
  const uint8_t* s = b + 96;
  for (int k = 0; k < 16; ++k) {
    const int low = s[k % 8] >> (k / 8 * 4) & 15, high = s[8 + k % 4] >> (k / 4 * 2) & 3;
    const float step = d * static_cast<float>((low | high << 4) - 32);
    const uint8_t *third = b + 16 * (k % 2), *q = b + 32 + 32 * (k / 8) + 16 * (k % 2);
    const int shift = k / 2 % 4 * 2;
    for (int i = 0; i < 16; ++i) {
      const int code = (q[i] >> shift & 3) | (third[i] >> (k / 2) & 1) << 2;
      out[16 * k + i] = step * static_cast<float>(code - 4);
    }
  }
}

// Scale and minimum of sub-block j of q4_k and q5_k: eight of each, 6 bits, in 12 bytes.
inline void scale_and_minimum(const uint8_t* s, int j, float* scale, float* minimum) {
  int a = s[j & 3] & 63, b = s[(j & 3) + 4] & 63;
  if (j >= 4) {
    a = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    b = s[j + 4] >> 4 | (s[j] >> 6) << 4;
  }
  *scale = static_cast<float>(a);
  *minimum = static_cast<float>(b);
}

// 256 values: d and dmin f16, scales and minima, nibbles; sub-blocks 2j and 2j + 1 are the low and
// high nibbles of 32 bytes. y = d * s * q - dmin * m.
inline void decode_q4_k(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b), dmin = f16_at(b + 2);
  for (int j = 0; j < 8; ++j) {
    float scale, minimum;
    scale_and_minimum(b + 4, j, &scale, &minimum);
    const float step = d * scale, offset = dmin * minimum;
    const uint8_t* q = b + 16 + 32 * (j / 2);
    const int shift = j % 2 * 4;
    for (int i = 0; i < 32; ++i)
      out[32 * j + i] = step * static_cast<float>(q[i] >> shift & 15) - offset;
  }
}

// q4_k with 32 bytes of fifth bits before the nibbles: of sub-block j, bit j of each.
inline void decode_q5_k(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b), dmin = f16_at(b + 2);
  for (int j = 0; j < 8; ++j) {
    float scale, minimum;
    scale_and_minimum(b + 4, j, &scale, &minimum);
    const float step = d * scale, offset = dmin * minimum;
    const uint8_t *fifth = b + 16, *q = b + 48 + 32 * (j / 2);
    const int shift = j % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int code = (q[i] >> shift & 15) | (fifth[i] >> j & 1) << 4;
      out[32 * j + i] = step * static_cast<float>(code) - offset;
    }
  }
}

// 256 values: low nibbles, upper bit pairs, sixteen int8 scales, d f16. y = d * s * (q - 32).
inline void decode_q6_k(const uint8_t* __restrict b, float* __restrict out) {
  const float d = f16_at(b + 208);
  for (int k = 0; k < 16; ++k) {
    const float step = d * static_cast<float>(static_cast<int8_t>(b[192 + k]));
    const int half = k / 8, group = k / 2 % 4;
    const uint8_t* low = b + 64 * half + 32 * (group % 2) + 16 * (k % 2);
    const uint8_t* high = b + 128 + 32 * half + 16 * (k % 2);
    const int low_shift = group / 2 * 4, high_shift = 2 * group;
    for (int i = 0; i < 16; ++i) {
      const int q = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
      out[16 * k + i] = step * static_cast<float>(q - 32);
    }
  }
}

template <int Values, int Bytes, void (*Decode)(const uint8_t*, float*)>
inline void decode_blocks(const uint8_t* __restrict row, float* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i += Values, row += Bytes) Decode(row, out + i);
}

// A type's block, and how n values, whole blocks, are decoded.
struct Format {
  uint32_t dtype;
  int64_t values, bytes;
  void (*decode)(const uint8_t* row, float* out, int64_t n);
};

template <int Values, int Bytes, void (*Decode)(const uint8_t*, float*)>
constexpr Format block_format(uint32_t dtype) {
  return {dtype, Values, Bytes, decode_blocks<Values, Bytes, Decode>};
}

constexpr Format kFormats[] = {
    {RR_F32, 1, 4, decode_f32},
    {RR_F16, 1, 2, decode_f16},
    {RR_BF16, 1, 2, decode_bf16},
    block_format<32, 18, decode_q4_0>(RR_Q4_0),
    block_format<32, 20, decode_q4_1>(RR_Q4_1),
    block_format<32, 22, decode_q5_0>(RR_Q5_0),
    block_format<32, 24, decode_q5_1>(RR_Q5_1),
    block_format<32, 34, decode_q8_0>(RR_Q8_0),
    block_format<256, 84, decode_q2_k>(RR_Q2_K),
    block_format<256, 110, decode_q3_k>(RR_Q3_K),
    block_format<256, 144, decode_q4_k>(RR_Q4_K),
    block_format<256, 176, decode_q5_k>(RR_Q5_K),
    block_format<256, 210, decode_q6_k>(RR_Q6_K),
    block_format<32, 18, decode_iq4_nl>(RR_IQ4_NL),
    block_format<256, 136, decode_iq4_xs>(RR_IQ4_XS),
    block_format<32, 17, decode_mxfp4>(RR_MXFP4),
    block_format<256, 66, decode_iq2_xxs>(RR_IQ2_XXS),
    block_format<256, 74, decode_iq2_xs>(RR_IQ2_XS),
    block_format<256, 82, decode_iq2_s>(RR_IQ2_S),
    block_format<256, 98, decode_iq3_xxs>(RR_IQ3_XXS),
    block_format<256, 110, decode_iq3_s>(RR_IQ3_S),
};

// Null for a type that does not decode.
inline const Format* format_of(uint32_t dtype) {
  for (const Format& f : kFormats)
    if (f.dtype == dtype) return &f;
  return nullptr;
}

// n values, whole blocks, of a type that has a format.
[[maybe_unused]] inline void decode_row(uint32_t dtype, const uint8_t* row, float* out, int64_t n) {
  format_of(dtype)->decode(row, out, n);
}

// Whether a matrix's rows lie in the file's order without gaps inside.
inline bool decodable(const rr_tensor& w, char* why, size_t size) {
  const Format* f = format_of(w.dtype);
  if (w.layout != RR_LAYOUT_PLAIN || f == nullptr)
    return refuse(why, size, "w needs a type that decodes, in the file's own order") != 0;
  if (w.rank != 2 || w.shape[1] % f->values != 0 ||
      (w.shape[1] > f->values && w.strides[1] != f->bytes))
    return refuse(why, size, "w needs to be a matrix of dense rows in whole blocks") != 0;
  return true;
}

}  // namespace
