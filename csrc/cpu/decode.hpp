// Rows of any weight type in the file's own order, as f32, bit for bit what the codecs give:
// every product and sum is one rounding.
#pragma once

#include "block_types.hpp"
#include "node.hpp"
#include "simd.hpp"

namespace {

inline float f16_at(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, sizeof h);
  return f16_to_f32(h);
}

// A list's values as floats.
struct FloatList {
  float at[16] = {};
  constexpr explicit FloatList(const int (&values)[16]) {
    for (int i = 0; i < 16; ++i) at[i] = static_cast<float>(values[i]);
  }
};

template <const int (&values)[16]>
constexpr FloatList kFloatsOf{values};

// How decode32 reads a block's bytes (block.hpp): one by one, in loops that become vectors.
struct Read {
  static float half(const uint8_t* p) { return f16_at(p); }
  static unsigned pair(const uint8_t* p) { return p[0] | p[1] << 8; }
  static unsigned word(const uint8_t* p) { return pair(p) | pair(p + 2) << 16; }
  static unsigned shifted(const uint8_t* p, int i, int shift) { return p[i] >> shift; }

  static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }

  template <const int (&values)[16]>
  static float listed(int i) {
    return kFloatsOf<values>.at[i];
  }

  template <class F>
  static void nibbles(const uint8_t* __restrict q, float* __restrict out, F f) {
    for (int i = 0; i < 16; ++i) {
      out[i] = f(q[i] & 15, i);
      out[i + 16] = f(q[i] >> 4, i + 16);
    }
  }

  template <class F>
  static void bytes(const uint8_t* __restrict q, float* __restrict out, F f) {
    for (int i = 0; i < 32; ++i) out[i] = f(q[i], i);
  }

  template <typename T, class F>
  static void halves(const uint8_t* __restrict q, T* __restrict out, F f) {
    for (int h = 0; h < 2; ++h)
      for (int i = 0; i < 16; ++i) out[16 * h + i] = f(q[16 * h + i], 16 * h + i, h);
  }

  template <uint32_t dtype>
  static void grid(const uint8_t* __restrict b, int j, float* __restrict out) {
    using B = Block<dtype>;
    uint8_t codes[32];
    grid_codes<dtype>(b, j, codes);
    const float d = half(b + B::kD) * B::kFactor;
    for (int first = 0; first < 32; first += B::kWidth) {
      const auto scale = static_cast<int>(B::scale(b, (32 * j + first) / B::kWidth));
      const float step = times(d, 2 * scale + 1);
      for (int i = first; i < first + B::kWidth; ++i)
        out[i] = step * listed<B::kMagnitudes>(codes[i]);
    }
  }
};

// n values, whole blocks.
template <uint32_t dtype>
inline void decode_blocks(const uint8_t* __restrict row, float* __restrict out, int64_t n) {
  using B = Block<dtype>;
  for (int64_t i = 0; i < n; i += B::kValues, row += B::kBytes)
    for (int j = 0; j < B::kValues / 32; ++j) B::template decode32<Read>(row, j, out + i + 32 * j);
}

template <>
inline void decode_blocks<RR_F32>(const uint8_t* __restrict row, float* __restrict out, int64_t n) {
  memcpy(out, row, static_cast<size_t>(n) * sizeof(float));
}

template <>
inline void decode_blocks<RR_F16>(const uint8_t* __restrict row, float* __restrict out, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    store16(out + i, load16_f16(reinterpret_cast<const uint16_t*>(row + 2 * i)));
  for (; i < n; ++i) out[i] = f16_at(row + 2 * i);
}

template <>
inline void decode_blocks<RR_BF16>(const uint8_t* __restrict row, float* __restrict out,
                                   int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits =
        static_cast<uint32_t>(row[2 * i]) << 16 | static_cast<uint32_t>(row[2 * i + 1]) << 24;
    memcpy(out + i, &bits, sizeof bits);
  }
}

// A type's block, and how n values, whole blocks, are decoded.
struct Format {
  uint32_t dtype;
  int64_t values, bytes;
  void (*decode)(const uint8_t* row, float* out, int64_t n);
};

template <uint32_t... dtypes>
inline const Format* format_among(uint32_t dtype) {
  static constexpr Format formats[] = {
      {dtypes, Block<dtypes>::kValues, Block<dtypes>::kBytes, decode_blocks<dtypes>}...};
  for (const Format& f : formats)
    if (f.dtype == dtype) return &f;
  return nullptr;
}

// Null for a type that does not decode.
inline const Format* format_of(uint32_t dtype) {
  return format_among<RR_WEIGHT_TYPES>(dtype);
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
