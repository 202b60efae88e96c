// mul_mat with iq4_nl weights: 32 values, d f16, nibbles that name values of a code book.
// y = d * value.

#include "iq4.hpp"

namespace {

struct Iq4Nl : Signed32<Iq4Nl> {
  static constexpr uint32_t kType = RR_IQ4_NL;
  static constexpr const char* kRefusal = "w is not packed iq4_nl";
  static constexpr int64_t kWeightBytes = 18, kUnit = 256;
  static constexpr int kBits = 8, kOffset = kIq4Offset;

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += kWeightBytes) {
      memcpy(group + 32 * b + 2 * lane, row, 2);
      pack_nibbles(row + 2, unit + kUnit * b, lane);
    }
  }

  RR_INLINE static Looked weights(const uint8_t* unit) { return {b_table(kIq4Codes), {unit}}; }
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq4Nl)
