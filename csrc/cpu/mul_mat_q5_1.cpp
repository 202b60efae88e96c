// mul_mat with q5_1 weights: 32 values, d and m f16, 5-bit q. y = d * q + m.

#include "mul_mat_block32.hpp"

namespace {

struct Q5_1 : Affine32<Q5_1> {
  static constexpr uint32_t kType = RR_Q5_1;
  static constexpr const char* kRefusal = "w is not packed q5_1";
  static constexpr int64_t kWeightBytes = 24, kUnit = 384;
  static constexpr int kBits = 5;

  static void pack_row(const uint8_t* row, uint8_t* unit, int64_t lane, int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b, row += kWeightBytes, unit += kUnit) {
      memcpy(unit + 2 * lane, row, 2);
      memcpy(unit + 32 + 2 * lane, row + 2, 2);
      pack_nibbles(row + 8, unit + kCodes, lane);
      pack_fifths(static_cast<uint32_t>(load_int(row + 4)), unit + kCodes + 256, lane);
    }
  }

  RR_INLINE static Fives weights(const uint8_t* codes) { return {codes}; }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q5_1)
