// mul_mat with mxfp4 weights: 32 values, exponent e, nibbles that name doubled E2M1 floats.
// y = 2^(e - 128) * value.
//
// The table of scales holds their upper 16 bits, which is all they have.

#include "mul_mat_block32.hpp"

namespace {

struct Mxfp4 : Signed32<Mxfp4> {
  using Of = Block<RR_MXFP4>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed mxfp4";
  static constexpr int64_t kUnit = 256;
  static constexpr int kBits = 5, kOffset = 12;
  static constexpr ByteTable kTable{kE2m1Values, kOffset};

  // Upper half of the scale, which is subnormal for e < 2. Blocks of zeros have e = 0, but to
  // compute with subnormal numbers is slow: their scale is zero.
  static uint16_t scale_bits(const uint8_t* block) {
    bool zero = true;
    for (int i = Of::kCodes; i < Of::kBytes; ++i) zero = zero && (block[i] & 0x77) == 0;
    return zero ? 0 : static_cast<uint16_t>(Of::scale(block[Of::kE]) >> 16);
  }

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes) {
      const uint16_t scale = scale_bits(row);
      memcpy(group + 32 * b + 2 * lane, &scale, 2);
      pack_nibbles(row + Of::kCodes, unit + kUnit * b, lane);
    }
  }

  RR_INLINE static Floats scale(const uint8_t* table) { return f_from_bf16(table); }

  // kIntBias times the largest scales would be infinite: it is taken off first.
  RR_INLINE static Floats scaled(Ints codes, Floats d, Floats, float x_scale, Floats sum) {
    const Floats one = f_splat(1.0f);
    return f_fma(f_mul(i_scaled(codes, one, surplus(one)), f_splat(x_scale)), d, sum);
  }

  RR_INLINE static Looked weights(const uint8_t* unit) { return {b_table(kTable.value), {unit}}; }
};

}  // namespace

RR_QUANTISED_PRODUCT(Mxfp4)
