// Weights of block types packed by eight rows (RR_LAYOUT_ROWS8), as products on cards read them.
#include <string.h>

#include "../common/kernel.hpp"

namespace {

constexpr int64_t kRows = 8, kValues = 256;

// block: bytes of 256 values.
template <int64_t block>
size_t rows8_bytes(int64_t rows, int64_t cols) {
  if (cols == 0 || cols % kValues != 0) return 0;
  return static_cast<size_t>((rows + kRows - 1) / kRows * kRows * (cols / kValues) * block);
}

template <int64_t block>
void pack_rows8(const void* plain, void* packed, int64_t rows, int64_t cols) {
  const auto* from = static_cast<const uint8_t*>(plain);
  auto* to = static_cast<uint8_t*>(packed);
  const int64_t blocks = cols / kValues;
  for (int64_t first = 0; first < rows; first += kRows)
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t r = first; r < first + kRows; ++r, to += block) {
        if (r < rows)
          memcpy(to, from + (r * blocks + b) * block, block);
        else
          memset(to, 0, block);
      }
}

}  // namespace

#define RR_ROWS8(id, dtype, block) \
  RR_PACKER(id, dtype, RR_LAYOUT_ROWS8, rows8_bytes<block>, pack_rows8<block>)

RR_ROWS8(q4_0, RR_Q4_0, 8 * 18)
RR_ROWS8(q4_1, RR_Q4_1, 8 * 20)
RR_ROWS8(q5_0, RR_Q5_0, 8 * 22)
RR_ROWS8(q5_1, RR_Q5_1, 8 * 24)
RR_ROWS8(q8_0, RR_Q8_0, 8 * 34)
RR_ROWS8(q4_k, RR_Q4_K, 144)
RR_ROWS8(q5_k, RR_Q5_K, 176)
RR_ROWS8(q6_k, RR_Q6_K, 210)
RR_ROWS8(iq4_nl, RR_IQ4_NL, 8 * 18)
RR_ROWS8(iq4_xs, RR_IQ4_XS, 136)
RR_ROWS8(mxfp4, RR_MXFP4, 8 * 17)
