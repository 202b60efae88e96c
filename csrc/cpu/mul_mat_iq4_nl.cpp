// mul_mat with iq4_nl weights: 32 values, d f16, nibbles that name values of a code book.
// y = d * value.

#include "mul_mat_block32.hpp"

namespace {

struct Iq4Nl : Signed32<Iq4Nl> {
  using Of = Block<RR_IQ4_NL>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed iq4_nl";
  static constexpr int64_t kUnit = 256;
  static constexpr int kBits = 8, kOffset = 127;
  static constexpr ByteTable kTable{kIq4Values, kOffset};

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes) {
      memcpy(group + 32 * b + 2 * lane, row + Of::kD, 2);
      pack_nibbles(row + Of::kCodes, unit + kUnit * b, lane);
    }
  }

  RR_INLINE static Looked weights(const uint8_t* unit) { return {b_table(kTable.value), {unit}}; }
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq4Nl)
