// mul_mat with q5_0 weights: 32 values, d f16, 5-bit q. y = d * (q - 16).

#include "mul_mat_block32.hpp"

namespace {

struct Q5_0 : Signed32<Q5_0> {
  using Of = Block<RR_Q5_0>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed q5_0";
  static constexpr int64_t kUnit = 320;
  static constexpr int kBits = 5, kOffset = 16;

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes, unit += kUnit) {
      memcpy(group + 32 * b + 2 * lane, row + Of::kD, 2);
      pack_nibbles(row + Of::kCodes, unit, lane);
      pack_fifths(static_cast<uint32_t>(load_int(row + Of::kHigh)), unit + 256, lane);
    }
  }

  RR_INLINE static Fives weights(const uint8_t* unit) { return {unit}; }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q5_0)
