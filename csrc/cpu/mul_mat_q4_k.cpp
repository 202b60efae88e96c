// mul_mat with q4_k weights: 256 values, d and dmin f16, eight 6-bit scales s and minima m,
// nibbles. y = d * s_j * q - dmin * m_j in sub-block j of 32 values.

#include "mul_mat_k_affine.hpp"

namespace {

struct Q4_K : AffineK<Q4_K> {
  using Of = Block<RR_Q4_K>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed q4_k";
  static constexpr int kBits = 4, kPair = 512;

  static void pack_row(const uint8_t* row, uint8_t* unit, int64_t lane, int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes, unit += unit_bytes()) {
      pack_head(row, unit, lane);
      pack_nibbles(row + Of::kCodes, unit, lane);
    }
  }

  RR_INLINE static Bytes low(const uint8_t* codes, int i) {
    return b_and(b_load(codes + 64 * i), b_splat(15));
  }

// High nibbles may stay where they are, sixteenfold, if 16 * 15 * 127 * 2 does not overflow.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
  static constexpr float kHighScale = 1.0f / 16;
  RR_INLINE static Bytes high(const uint8_t* codes, int i) {
    return b_and(b_load(codes + 64 * i), b_splat(0xf0));
  }
#else
  static constexpr float kHighScale = 1.0f;
  RR_INLINE static Bytes high(const uint8_t* codes, int i) {
    return b_and(b_shr<4>(b_load(codes + 64 * i)), b_splat(15));
  }
#endif
};

}  // namespace

RR_QUANTISED_PRODUCT(Q4_K)
