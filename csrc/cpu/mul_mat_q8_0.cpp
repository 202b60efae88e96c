// mul_mat with q8_0 weights: 32 values, d f16 and int8 q.
//
// A block's codes are [k / 4][row][4] bytes q + 128: unsigned, for the dot instructions.

#include "mul_mat_block32.hpp"

namespace {

struct Q8_0 : Signed32<Q8_0> {
  using Of = Block<RR_Q8_0>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed q8_0";
  static constexpr int64_t kUnit = 512;
  static constexpr int kBits = 8, kOffset = 128;

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes) {
      memcpy(group + 32 * b + 2 * lane, row + Of::kD, 2);
      for (int i = 0; i < 8; ++i) {
        const int32_t four = load_int(row + Of::kCodes + 4 * i) ^ static_cast<int32_t>(0x80808080);
        memcpy(unit + kUnit * b + 64 * i + 4 * lane, &four, 4);
      }
    }
  }

  RR_INLINE static Plain weights(const uint8_t* unit) { return {unit}; }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q8_0)
