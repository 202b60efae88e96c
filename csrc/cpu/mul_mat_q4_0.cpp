// mul_mat with q4_0 weights: 32 values, d f16, nibbles. y = d * (q - 8).

#include "mul_mat_block32.hpp"

namespace {

struct Q4_0 : Signed32<Q4_0> {
  using Of = Block<RR_Q4_0>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed q4_0";
  static constexpr int64_t kUnit = 256;
  static constexpr int kBits = 4, kOffset = 8;

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes) {
      memcpy(group + 32 * b + 2 * lane, row + Of::kD, 2);
      pack_nibbles(row + Of::kCodes, unit + kUnit * b, lane);
    }
  }

  RR_INLINE static Nibbles weights(const uint8_t* unit) { return {unit}; }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q4_0)
