// Packers of RR_LAYOUT_ROWS8.
#include <string.h>

#include "../common/kernel.hpp"
#include "rows8.cuh"

namespace {

constexpr int64_t kRows = 8, kValues = 256;

template <uint32_t dtype>
size_t rows8_bytes(int64_t rows, int64_t cols) {
  if (cols == 0 || cols % kValues != 0) return 0;
  return static_cast<size_t>((rows + kRows - 1) / kRows * kRows * (cols / kValues) *
                             kBytesOf256<dtype>);
}

template <uint32_t dtype>
void pack_rows8(const void* plain, void* packed, int64_t rows, int64_t cols) {
  constexpr int64_t kBytes = kBytesOf256<dtype>;
  const auto* from = static_cast<const uint8_t*>(plain);
  auto* eight = static_cast<uint8_t*>(packed);
  const int64_t blocks = cols / kValues;
  for (int64_t first = 0; first < rows; first += kRows)
    for (int64_t b = 0; b < blocks; ++b, eight += kRows * kBytes) {
      const int there = static_cast<int>(rows - first < kRows ? rows - first : kRows);
      if (there < kRows) memset(eight, 0, kRows * kBytes);
      for (int r = 0; r < there; ++r)
        Rows8<dtype>::put(from + ((first + r) * blocks + b) * kBytes, eight, r);
    }
}

}  // namespace

#define RR_ROWS8(dtype) \
  RR_PACKER(dtype##_by_eight, dtype, RR_LAYOUT_ROWS8, rows8_bytes<dtype>, pack_rows8<dtype>)

RR_ROWS8(RR_Q4_0)
RR_ROWS8(RR_Q4_1)
RR_ROWS8(RR_Q5_0)
RR_ROWS8(RR_Q5_1)
RR_ROWS8(RR_Q8_0)
RR_ROWS8(RR_Q4_K)
RR_ROWS8(RR_Q5_K)
RR_ROWS8(RR_Q6_K)
RR_ROWS8(RR_IQ4_NL)
RR_ROWS8(RR_IQ4_XS)
RR_ROWS8(RR_MXFP4)
