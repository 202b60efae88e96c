// Weight values of any type, decoded bit for bit as the codecs do: every product and sum is one
// rounding. Blocks lie in the file's own order.
#pragma once

#include "grid_codes.cuh"
#include "kernel.cuh"

namespace {

// How a type's bytes lie: `bytes` hold `values` consecutive values.
template <uint32_t dtype>
struct Block;

#define RR_BLOCK(dtype, n_values, n_bytes)                   \
  template <>                                                \
  struct Block<dtype> {                                      \
    static constexpr int values = n_values, bytes = n_bytes; \
  };

RR_BLOCK(RR_F32, 1, 4)
RR_BLOCK(RR_F16, 1, 2)
RR_BLOCK(RR_BF16, 1, 2)
RR_BLOCK(RR_Q4_0, 32, 18)
RR_BLOCK(RR_Q4_1, 32, 20)
RR_BLOCK(RR_Q5_0, 32, 22)
RR_BLOCK(RR_Q5_1, 32, 24)
RR_BLOCK(RR_Q8_0, 32, 34)
RR_BLOCK(RR_Q2_K, 256, 84)
RR_BLOCK(RR_Q3_K, 256, 110)
RR_BLOCK(RR_Q4_K, 256, 144)
RR_BLOCK(RR_Q5_K, 256, 176)
RR_BLOCK(RR_Q6_K, 256, 210)
RR_BLOCK(RR_IQ2_XXS, 256, 66)
RR_BLOCK(RR_IQ2_XS, 256, 74)
RR_BLOCK(RR_IQ2_S, 256, 82)
RR_BLOCK(RR_IQ3_XXS, 256, 98)
RR_BLOCK(RR_IQ3_S, 256, 110)
RR_BLOCK(RR_IQ4_NL, 32, 18)
RR_BLOCK(RR_IQ4_XS, 256, 136)
RR_BLOCK(RR_MXFP4, 32, 17)

#undef RR_BLOCK

// Bytes of 256 values, which weights in RR_LAYOUT_ROWS8 keep together.
template <uint32_t dtype>
constexpr int kBytesOf256 = 256 / Block<dtype>::values * Block<dtype>::bytes;

// A dtype as a constant.
template <uint32_t dtype>
struct Type {
  static constexpr uint32_t value = dtype;
};

// Calls f(Type<dtype>{}); false, without a call, for types that have no blocks.
template <typename F>
inline bool with_block_type(uint32_t dtype, F f) {
  switch (dtype) {
#define RR_CASE(name) \
  case name:          \
    return f(Type<name>{}), true;
    RR_CASE(RR_Q4_0)
    RR_CASE(RR_Q4_1)
    RR_CASE(RR_Q5_0)
    RR_CASE(RR_Q5_1)
    RR_CASE(RR_Q8_0)
    RR_CASE(RR_Q2_K)
    RR_CASE(RR_Q3_K)
    RR_CASE(RR_Q4_K)
    RR_CASE(RR_Q5_K)
    RR_CASE(RR_Q6_K)
    RR_CASE(RR_IQ2_XXS)
    RR_CASE(RR_IQ2_XS)
    RR_CASE(RR_IQ2_S)
    RR_CASE(RR_IQ3_XXS)
    RR_CASE(RR_IQ3_S)
    RR_CASE(RR_IQ4_NL)
    RR_CASE(RR_IQ4_XS)
    RR_CASE(RR_MXFP4)
    default:
      return false;
  }
}

// The same for all types that decode32 takes.
template <typename F>
inline bool with_type(uint32_t dtype, F f) {
  switch (dtype) {
    RR_CASE(RR_F32)
    RR_CASE(RR_F16)
    RR_CASE(RR_BF16)
#undef RR_CASE
    default:
      return with_block_type(dtype, f);
  }
}

// Entry `code` of sixteen signed bytes, four to a word.
__device__ inline float listed(unsigned a, unsigned b, unsigned c, unsigned d, int code) {
  const unsigned low = code & 4 ? b : a, high = code & 4 ? d : c, word = code & 8 ? high : low;
  return static_cast<float>(static_cast<int8_t>(byte_of(word, code & 3)));
}

// The code book of iq4_nl and iq4_xs: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53,
// 69, 89, 113.
__device__ inline float iq4(int code) {
  return listed(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u, code);
}

// The floats of E2M1, doubled: 0, 1, 2, 3, 4, 6, 8, 12, and with the sign; negative zero is zero.
__device__ inline float e2m1(int code) {
  return listed(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu, code);
}

// The scale of an mxfp4 block of exponent e: 2^(e - 128), subnormal for e < 2.
__device__ inline float mxfp4_scale(unsigned e) {
  return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// Scale and minimum of sub-block j of q4_k and q5_k: eight of each, 6 bits, in 12 bytes.
__device__ inline void scale_and_minimum(const uint8_t* s, int j, int* scale, int* minimum) {
  const int at = j & 3, a = s[at], b = s[at + 4];
  if (j < 4) {
    *scale = a & 63;
    *minimum = b & 63;
  } else {
    const int c = s[at + 8];
    *scale = (c & 15) | (a >> 6) << 4;
    *minimum = c >> 4 | (b >> 6) << 4;
  }
}

// Scale of 16 values, sub-block k of 16, of q3_k: 6 bits each in 12 bytes.
__device__ inline int q3_k_scale(const uint8_t* s, int k) {
  return (s[k % 8] >> (k / 8 * 4) & 15) | (s[8 + k % 4] >> (k / 4 * 2) & 3) << 4;
}

// Scale of 32 values, sub-block j of 8, of iq4_xs.
__device__ inline int iq4_xs_scale(const uint8_t* b, int j) {
  return (b[4 + j / 2] >> (j % 2 * 4) & 15) | (b[2 + j / 4] >> (j % 4 * 2) & 3) << 4;
}

// out[i] = f(low nibble i), out[i + 16] = f(high nibble i) of 16 bytes that are 2-byte aligned.
template <typename F>
__device__ inline void each_nibble(const uint8_t* q, float* out, F f) {
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    const unsigned pair = load16(q + i);
    out[i] = f(static_cast<int>(pair & 15), i);
    out[i + 1] = f(static_cast<int>(pair >> 8 & 15), i + 1);
    out[i + 16] = f(static_cast<int>(pair >> 4 & 15), i + 16);
    out[i + 17] = f(static_cast<int>(pair >> 12), i + 17);
  }
}

// out[i] = f(byte i) of 32 bytes that are 2-byte aligned.
template <typename F>
__device__ inline void each_byte(const uint8_t* q, float* out, F f) {
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const unsigned pair = load16(q + i);
    out[i] = f(static_cast<int>(pair & 255), i);
    out[i + 1] = f(static_cast<int>(pair >> 8), i + 1);
  }
}

__device__ inline float times(float step, int q) {
  return step * static_cast<float>(q);
}

// Decodes values 32 group to 32 group + 31 of a row that starts at `row`, which is 2-byte aligned
// (4-byte aligned if of f32; any of mxfp4).
template <uint32_t dtype>
__device__ inline void decode32(const uint8_t* row, int64_t group, float* out) {
  static_assert(dtype == RR_F32 || dtype == RR_F16 || dtype == RR_BF16);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int64_t at = 32 * group + i;
    if constexpr (dtype == RR_F32)
      out[i] = reinterpret_cast<const float*>(row)[at];
    else if constexpr (dtype == RR_F16)
      out[i] = half_to_float(reinterpret_cast<const uint16_t*>(row)[at]);
    else
      out[i] = bf16_to_float(reinterpret_cast<const uint16_t*>(row)[at]);
  }
}

// y = d * q; d f16, int8 q.
template <>
__device__ inline void decode32<RR_Q8_0>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 34 * group;
  const float d = load_half(b);
  each_byte(b + 2, out, [=](int q, int) { return times(d, static_cast<int8_t>(q)); });
}

// y = d * (q - 8); d f16, nibbles in halves.
template <>
__device__ inline void decode32<RR_Q4_0>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 18 * group;
  const float d = load_half(b);
  each_nibble(b + 2, out, [=](int q, int) { return times(d, q - 8); });
}

// y = d * q + m; d and m f16, nibbles in halves.
template <>
__device__ inline void decode32<RR_Q4_1>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 20 * group;
  const float d = load_half(b), m = load_half(b + 2);
  each_nibble(b + 4, out, [=](int q, int) { return times(d, q) + m; });
}

__device__ inline int fifth_bit(unsigned bits, int i) {
  return static_cast<int>(bits >> i & 1) << 4;
}

// y = d * (q - 16); d f16, 32 fifth bits, nibbles in halves.
template <>
__device__ inline void decode32<RR_Q5_0>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 22 * group;
  const float d = load_half(b);
  const unsigned bits = load32(b + 2);
  each_nibble(b + 6, out, [=](int q, int i) { return times(d, (q | fifth_bit(bits, i)) - 16); });
}

// y = d * q + m; d and m f16, 32 fifth bits, nibbles in halves.
template <>
__device__ inline void decode32<RR_Q5_1>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 24 * group;
  const float d = load_half(b), m = load_half(b + 2);
  const unsigned bits = load32(b + 4);
  each_nibble(b + 8, out, [=](int q, int i) { return times(d, q | fifth_bit(bits, i)) + m; });
}

// y = d * value[q]; d f16, nibbles in halves.
template <>
__device__ inline void decode32<RR_IQ4_NL>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 18 * group;
  const float d = load_half(b);
  each_nibble(b + 2, out, [=](int q, int) { return d * iq4(q); });
}

// y = d * (s - 32) * value[q]; 256 values: d f16, upper bit pairs and low nibbles of eight scales,
// nibbles of 32 values each.
template <>
__device__ inline void decode32<RR_IQ4_XS>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 136 * (group / 8);
  const int j = static_cast<int>(group % 8);
  const float step = times(load_half(b), iq4_xs_scale(b, j) - 32);
  each_nibble(b + 8 + 16 * j, out, [=](int q, int) { return step * iq4(q); });
}

// y = 2^(e - 128) * value[q]; e one byte, nibbles in halves.
template <>
__device__ inline void decode32<RR_MXFP4>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 17 * group;
  const float scale = mxfp4_scale(b[0]);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int q = b[1 + i];
    out[i] = scale * e2m1(q & 15);
    out[i + 16] = scale * e2m1(q >> 4);
  }
}

// y = d * s * q - dmin * m; 256 values: sixteen 4-bit scales and minima, bit pairs, d and dmin f16;
// sub-block k of 16 is bit pair k / 2 % 4 of 16 bytes.
template <>
__device__ inline void decode32<RR_Q2_K>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 84 * (group / 8);
  const int j = static_cast<int>(group % 8), shift = j % 4 * 2;
  const float d = load_half(b + 80), dmin = load_half(b + 82);
  const unsigned scales = load16(b + 2 * j);
  const float step[2] = {times(d, scales & 15), times(d, scales >> 8 & 15)};
  const float offset[2] = {times(dmin, scales >> 4 & 15), times(dmin, scales >> 12)};
  each_byte(b + 16 + 32 * (j / 4), out,
            [&](int q, int i) { return times(step[i / 16], q >> shift & 3) - offset[i / 16]; });
}

// y = d * (s - 32) * (q - 4); 256 values: third bits, bit pairs as in q2_k, sixteen 6-bit scales,
// d f16.
template <>
__device__ inline void decode32<RR_Q3_K>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 110 * (group / 8);
  const int j = static_cast<int>(group % 8), shift = j % 4 * 2;
  const float d = load_half(b + 108);
  const float step[2] = {times(d, q3_k_scale(b + 96, 2 * j) - 32),
                         times(d, q3_k_scale(b + 96, 2 * j + 1) - 32)};
  each_byte(b + 32 + 32 * (j / 4), out, [&](int q, int i) {
    const int third = static_cast<int>(load16(b + i / 2 * 2) >> (i % 2 * 8 + j) & 1);
    return times(step[i / 16], ((q >> shift & 3) | third << 2) - 4);
  });
}

// y = d * s * q - dmin * m; 256 values: d and dmin f16, scales and minima, nibbles; sub-blocks 2j
// and 2j + 1 are the low and high nibbles of 32 bytes.
template <>
__device__ inline void decode32<RR_Q4_K>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 144 * (group / 8);
  const int j = static_cast<int>(group % 8), shift = j % 2 * 4;
  int scale, minimum;
  scale_and_minimum(b + 4, j, &scale, &minimum);
  const float step = times(load_half(b), scale), offset = times(load_half(b + 2), minimum);
  each_byte(b + 16 + 32 * (j / 2), out,
            [=](int q, int) { return times(step, q >> shift & 15) - offset; });
}

// q4_k with 32 bytes of fifth bits before the nibbles: of sub-block j, bit j of each.
template <>
__device__ inline void decode32<RR_Q5_K>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 176 * (group / 8);
  const int j = static_cast<int>(group % 8), shift = j % 2 * 4;
  int scale, minimum;
  scale_and_minimum(b + 4, j, &scale, &minimum);
  const float step = times(load_half(b), scale), offset = times(load_half(b + 2), minimum);
  each_byte(b + 48 + 32 * (j / 2), out, [=](int q, int i) {
    const int fifth = static_cast<int>(load16(b + 16 + i / 2 * 2) >> (i % 2 * 8 + j) & 1);
    return times(step, (q >> shift & 15) | fifth << 4) - offset;
  });
}

// y = d * s * (q - 32); 256 values: low nibbles, upper bit pairs, sixteen int8 scales, d f16.
template <>
__device__ inline void decode32<RR_Q6_K>(const uint8_t* row, int64_t group, float* out) {
  const uint8_t* b = row + 210 * (group / 8);
  const int j = static_cast<int>(group % 8), half = j / 4, quarter = j % 4;
  const float d = load_half(b + 208);
  const unsigned scales = load16(b + 192 + 2 * j);
  const float step[2] = {times(d, static_cast<int8_t>(scales & 255)),
                         times(d, static_cast<int8_t>(scales >> 8))};
  const uint8_t* high = b + 128 + 32 * half;
  const int low_shift = quarter / 2 * 4, high_shift = 2 * quarter;
  each_byte(b + 64 * half + 32 * (quarter % 2), out, [&](int q, int i) {
    const unsigned upper = load16(high + i / 2 * 2) >> (i % 2 * 8 + high_shift) & 3;
    return times(step[i / 16], ((q >> low_shift & 15) | static_cast<int>(upper) << 4) - 32);
  });
}

// y = d * factor * (2 * s + 1) * value; 256 values of grids, laid out as grid_codes.cuh says.
template <uint32_t dtype>
__device__ inline void decode_grid32(const uint8_t* row, int64_t group, float* out) {
  using Part = GridPart<dtype>;
  const uint8_t* b = row + Block<dtype>::bytes * (group / 8);
  const float d = load_half(b) * Part::kFactor;
#pragma unroll
  for (int p = 0; p < 32 / Part::kValues; ++p) {
    const Part part(b, static_cast<int>(group % 8) * (32 / Part::kValues) + p);
    const float step = times(d, 2 * part.scale() + 1);
#pragma unroll
    for (int i = 0; i < Part::kValues / 4; ++i) {
      const unsigned codes = part.four(Part::entries(), i);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        out[Part::kValues * p + 4 * i + k] = times(step, byte_of(codes, k) - Part::kZero);
    }
  }
}

#define RR_DECODE_GRID(dtype)                                                             \
  template <>                                                                             \
  __device__ inline void decode32<dtype>(const uint8_t* row, int64_t group, float* out) { \
    decode_grid32<dtype>(row, group, out);                                                \
  }

RR_DECODE_GRID(RR_IQ2_XXS)
RR_DECODE_GRID(RR_IQ2_XS)
RR_DECODE_GRID(RR_IQ2_S)
RR_DECODE_GRID(RR_IQ3_XXS)
RR_DECODE_GRID(RR_IQ3_S)

#undef RR_DECODE_GRID

}  // namespace
