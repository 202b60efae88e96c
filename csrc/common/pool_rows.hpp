// Which types pools of keys and values have, and how their rows lie.
#pragma once

#include "node.hpp"

namespace {

[[maybe_unused]] constexpr int64_t kPoolBlock = 32;  // elements of a block of the block types

// Bytes of a block of 32 elements; 0 for types that pools do not have.
[[maybe_unused]] inline int64_t pool_block_bytes(uint32_t dtype) {
  switch (dtype) {
    case RR_F32:
      return 128;
    case RR_F16:
    case RR_BF16:
      return 64;
    case RR_Q8_0:
      return 34;
    case RR_Q4_0:
      return 18;
    default:
      return 0;
  }
}

[[maybe_unused]] inline bool in_blocks(uint32_t dtype) {
  return dtype == RR_Q8_0 || dtype == RR_Q4_0;
}

// Bytes of n elements, which are whole blocks where the type has them.
[[maybe_unused]] inline int64_t pool_bytes(uint32_t dtype, int64_t n) {
  return n * pool_block_bytes(dtype) / kPoolBlock;
}

// True for a type that pools have, rows of whole blocks, and elements row-major without gaps.
[[maybe_unused]] inline bool dense_pool(const rr_tensor& t) {
  if (!in_blocks(t.dtype)) return pool_block_bytes(t.dtype) != 0 && dense(t);
  if (t.layout != RR_LAYOUT_PLAIN || t.rank < 1) return false;
  const int64_t last = t.shape[t.rank - 1];
  if (last % kPoolBlock != 0) return false;
  if (last > kPoolBlock && t.strides[t.rank - 1] != pool_block_bytes(t.dtype)) return false;
  int64_t step = pool_bytes(t.dtype, last);
  for (int i = t.rank - 2; i >= 0; --i) {
    if (t.shape[i] != 1 && t.strides[i] != step) return false;
    step *= t.shape[i];
  }
  return true;
}

}  // namespace
