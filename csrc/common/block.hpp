// What kernels know of a weight type's blocks, on processors and on cards: Block<dtype>.
#pragma once

#include <stdint.h>

#include "riverrun.h"

// Before functions that cards call, too.
#if defined(__CUDACC__)
#define RR_BOTH __device__
#else
#define RR_BOTH
#endif

namespace {

// Of a type: kType; kBytes, which hold kValues consecutive values; at which bytes a block's fields
// are: kD the scale and kMin the minimum or what minima are multiplied by, f16 each, kScales of
// sub-blocks (and minima), kCodes, the codes' upper bits kHigh where they lie apart, kSigns.
//
// decode32<Read>(b, j, out) gives values 32j to 32j + 31 of block b, bit for bit as the type's
// codec does: every product and sum is one rounding. What reads bytes is of processors (decode.hpp)
// or of cards (decode.cuh):
//   half(p), pair(p), word(p): an f16 as a float; two and four bytes as a number;
//   shifted(p, i, shift): byte i of p, shifted right; above its own bits is anything;
//   nibbles(q, out, f): of 16 bytes, out[i] = f(lower four bits of byte i, i), and
//     out[i + 16] = f(upper four, i + 16);
//   bytes(q, out, f): of 32 bytes, out[i] = f(byte i, i);
//   halves(q, out, f): of 32 bytes, out[i] = f(byte i, i, i / 16);
//   listed<list>(i): list[i] as a float;
//   from_bits(word): the float that has these bits;
//   grid<dtype>(b, j, out): all of decode32, of types of grids (block_grid.hpp).
template <uint32_t dtype>
struct Block;

template <uint32_t dtype, int values, int bytes>
struct BlockOf {
  static constexpr uint32_t kType = dtype;
  static constexpr int kValues = values, kBytes = bytes;
};

template <>
struct Block<RR_F32> : BlockOf<RR_F32, 1, 4> {};
template <>
struct Block<RR_F16> : BlockOf<RR_F16, 1, 2> {};
template <>
struct Block<RR_BF16> : BlockOf<RR_BF16, 1, 2> {};

RR_BOTH inline float times(float step, int q) {
  return step * static_cast<float>(q);
}

}  // namespace
