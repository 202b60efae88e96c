// Elements of the types that cast takes, as floats.
#pragma once

#include "castable.hpp"
#include "copy.hpp"

namespace {

constexpr int64_t kChunk = 256;

// Up to kChunk dense elements as floats, 16 at a time: both sides hold kChunk elements.
inline void decode(uint32_t dtype, const void* from, float* to, int64_t n) {
  const auto* half = static_cast<const uint16_t*>(from);
  const auto* whole = static_cast<const int32_t*>(from);
  for (int64_t i = 0; i < n; i += 16) {
    if (dtype == RR_F32)
      store16(to + i, load16(static_cast<const float*>(from) + i));
    else if (dtype == RR_F16)
      store16(to + i, load16_f16(half + i));
    else if (dtype == RR_BF16)
      store16(to + i, load16_bf16(half + i));
    else
      for (int64_t j = i; j < i + 16; ++j) to[j] = static_cast<float>(whole[j]);
  }
}

// Up to kChunk elements, `step` bytes apart; `to` holds kChunk.
inline void gather(uint32_t dtype, char* from, int64_t step, float* to, int64_t n) {
  alignas(64) char raw[kChunk * 4];
  const int64_t bytes = element_bytes(dtype);
  memset(raw + n * bytes, 0, static_cast<size_t>(-n & 15) * static_cast<size_t>(bytes));
  char* const ends[] = {raw, from};
  const int64_t steps[] = {bytes, step};
  copy_run(ends, steps, n, bytes);
  decode(dtype, raw, to, n);
}

}  // namespace
