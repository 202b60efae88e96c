// Weight values of any type, decoded bit for bit as the codecs do: every product and sum is one
// rounding. Blocks lie in the file's own order.
#pragma once

#include "block_types.hpp"
#include "grid_codes.cuh"
#include "kernel.cuh"

namespace {

// Bytes of 256 values, which weights in RR_LAYOUT_ROWS8 keep together.
template <uint32_t dtype>
constexpr int kBytesOf256 = 256 / Block<dtype>::kValues * Block<dtype>::kBytes;

// Calls f(Block<dtype>{}) if the type is among dtypes; false, without a call, if it is not.
template <uint32_t... dtypes, typename F>
inline bool with_type(uint32_t dtype, F f) {
  return (... || (dtype == dtypes && (f(Block<dtypes>{}), true)));
}

// The scale of an mxfp4 block of exponent e.
__device__ inline float mxfp4_scale(unsigned e) {
  return __uint_as_float(Block<RR_MXFP4>::scale(e));
}

// How a type's decode32 reads bytes (block.hpp): two at a time where blocks are at even addresses.
template <bool even>
struct Read {
  __device__ static float half(const uint8_t* p) { return load_half(p); }
  __device__ static unsigned word(const uint8_t* p) { return load32(p); }
  __device__ static float from_bits(unsigned bits) { return __uint_as_float(bits); }

  __device__ static unsigned pair(const uint8_t* p) {
    return even ? load16(p) : p[0] | static_cast<unsigned>(p[1]) << 8;
  }

  __device__ static unsigned shifted(const uint8_t* p, int i, int shift) {
    return pair(p + i / 2 * 2) >> (i % 2 * 8 + shift);
  }

  // Entry `i` of sixteen signed bytes, four to a word.
  template <const int (&values)[16]>
  __device__ static float listed(int i) {
    constexpr unsigned a = four_values(values, 0, 0), b = four_values(values, 4, 0),
                       c = four_values(values, 8, 0), d = four_values(values, 12, 0);
    const unsigned low = i & 4 ? b : a, high = i & 4 ? d : c, word = i & 8 ? high : low;
    return static_cast<float>(static_cast<int8_t>(byte_of(word, i & 3)));
  }

  template <typename F>
  __device__ static void nibbles(const uint8_t* q, float* out, F f) {
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const unsigned two = pair(q + i);
      out[i] = f(static_cast<int>(two & 15), i);
      out[i + 1] = f(static_cast<int>(two >> 8 & 15), i + 1);
      out[i + 16] = f(static_cast<int>(two >> 4 & 15), i + 16);
      out[i + 17] = f(static_cast<int>(two >> 12), i + 17);
    }
  }

  template <typename F>
  __device__ static void halves(const uint8_t* q, float* out, F f) {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const unsigned two = pair(q + i);
      out[i] = f(static_cast<int>(two & 255), i, i / 16);
      out[i + 1] = f(static_cast<int>(two >> 8), i + 1, i / 16);
    }
  }

  template <typename F>
  __device__ static void bytes(const uint8_t* q, float* out, F f) {
    halves(q, out, [=](int code, int i, int) { return f(code, i); });
  }

  template <uint32_t dtype>
  __device__ static void grid(const uint8_t* b, int j, float* out) {
    using Part = GridPart<dtype>;
    const float d = load_half(b + Block<dtype>::kD) * Part::kFactor;
#pragma unroll
    for (int p = 0; p < 32 / Part::kWidth; ++p) {
      const Part part(b, j * (32 / Part::kWidth) + p);
      const float step = times(d, 2 * part.scale() + 1);
#pragma unroll
      for (int i = 0; i < Part::kWidth / 4; ++i) {
        const unsigned codes = part.four(Part::entries(), i);
#pragma unroll
        for (int k = 0; k < 4; ++k)
          out[Part::kWidth * p + 4 * i + k] = times(step, byte_of(codes, k) - Part::kZero);
      }
    }
  }
};

// Decodes values 32 group to 32 group + 31 of a row of blocks, which starts at an even address (any
// of mxfp4).
template <uint32_t dtype>
__device__ inline void decode32(const uint8_t* row, int64_t group, float* out) {
  using B = Block<dtype>;
  constexpr int kParts = B::kValues / 32;
  B::template decode32<Read<B::kBytes % 2 == 0>>(row + B::kBytes * (group / kParts),
                                                 static_cast<int>(group % kParts), out);
}

}  // namespace
