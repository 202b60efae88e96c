// mul_mat with q5_1 weights: 32 values, d and m f16, 5-bit q. y = d * q + m.

#include "mul_mat_block32.hpp"

namespace {

struct Q5_1 : Affine32<Q5_1> {
  using Of = Block<RR_Q5_1>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed q5_1";
  static constexpr int64_t kUnit = 384;
  static constexpr int kBits = 5;

  static void pack_row(const uint8_t* row, uint8_t* unit, int64_t lane, int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes, unit += kUnit) {
      memcpy(unit + 2 * lane, row + Of::kD, 2);
      memcpy(unit + 32 + 2 * lane, row + Of::kMin, 2);
      pack_nibbles(row + Of::kCodes, unit + kCodes, lane);
      pack_fifths(static_cast<uint32_t>(load_int(row + Of::kHigh)), unit + kCodes + 256, lane);
    }
  }

  RR_INLINE static Fives weights(const uint8_t* codes) { return {codes}; }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q5_1)
