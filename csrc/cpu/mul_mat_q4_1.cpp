// mul_mat with q4_1 weights: 32 values, d and m f16, nibbles. y = d * q + m.

#include "mul_mat_block32.hpp"

namespace {

struct Q4_1 : Affine32<Q4_1> {
  static constexpr uint32_t kType = RR_Q4_1;
  static constexpr const char* kRefusal = "w is not packed q4_1";
  static constexpr int64_t kWeightBytes = 20, kUnit = 320;
  static constexpr int kBits = 4;

  static void pack_row(const uint8_t* row, uint8_t* unit, int64_t lane, int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b, row += kWeightBytes, unit += kUnit) {
      memcpy(unit + 2 * lane, row, 2);
      memcpy(unit + 32 + 2 * lane, row + 2, 2);
      pack_nibbles(row + 4, unit + kCodes, lane);
    }
  }

  RR_INLINE static Nibbles weights(const uint8_t* codes) { return {codes}; }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q4_1)
