// mul_mat with q5_k weights: 256 values, d and dmin f16, eight 6-bit scales s and minima m, 5-bit
// q. y = d * s_j * q - dmin * m_j in sub-block j of 32 values.
//
// The nibbles of two sub-blocks are followed by two vectors [row][4] of fifth bits, the first for
// k = 0 .. 15 of each sub-block: bits 0 .. 3 of its byte j belong to k = 4i + j of the even one,
// 4 .. 7 to the odd one.

#include "mul_mat_block32.hpp"
#include "mul_mat_k_affine.hpp"

namespace {

struct Q5_K : AffineK<Q5_K> {
  using Of = Block<RR_Q5_K>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed q5_k";
  static constexpr int kBits = 5, kPair = 640;
  static constexpr float kHighScale = 1.0f;

  // Sub-block j's fifth bits are bit j of 32 bytes.
  static void pack_fifths(const uint8_t* q, uint8_t* unit, int64_t lane) {
    for (int k = 0; k < 32; ++k)
      for (int j = 0; j < 8; ++j)
        unit[kCodes + kPair * (j / 2) + 512 + 64 * (k / 16) + 4 * lane + k % 4] |=
            static_cast<uint8_t>((q[k] >> j & 1) << (k / 4 % 4 + 4 * (j % 2)));
  }

  static void pack_row(const uint8_t* row, uint8_t* unit, int64_t lane, int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes, unit += unit_bytes()) {
      pack_head(row, unit, lane);
      pack_nibbles(row + Of::kCodes, unit, lane);
      pack_fifths(row + Of::kHigh, unit, lane);
    }
  }

  RR_INLINE static Bytes low(const uint8_t* codes, int i) {
    return low_five(b_load(codes + 64 * i), b_load(codes + 512 + 64 * (i / 4)), i % 4);
  }

  RR_INLINE static Bytes high(const uint8_t* codes, int i) {
    return high_five(b_load(codes + 64 * i), b_load(codes + 512 + 64 * (i / 4)), i % 4);
  }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q5_K)
