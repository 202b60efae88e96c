// mul_mat with q3_k weights: 256 values, d f16, sixteen 6-bit scales s, 3-bit q.
// y = d * (s_j - 32) * (q - 4) in sub-block j of 16 values.
//
// Packed scales are s - 32. A piece, of two sub-blocks, is a vector of bit pairs for each and one
// [row][4] of third bits: bits 0 .. 3 of its byte j belong to k = 4i + j of the first, 4 .. 7 to
// the second.

#include "mul_mat_k_signed.hpp"
#include "mul_mat_pairs.hpp"

namespace {

struct Q3_K : SignedK<Q3_K> {
  using Of = Block<RR_Q3_K>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed q3_k";
  static constexpr int kBits = 3, kOffset = 4, kPiece = 192;

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes, unit += unit_bytes()) {
      memcpy(group + 32 * b + 2 * lane, row + Of::kD, 2);
      for (int j = 0; j < 16; ++j) {
        unit[16 * j + lane] = static_cast<uint8_t>(Of::scale(row, j) - 32);
        uint8_t* piece = unit + 256 + kPiece * (j / 2) + 4 * lane;
        pack_pairs(row + Of::kCodes + 32 * (j / 8) + 16 * (j % 2), j / 2 % 4 * 2,
                   piece + 64 * (j % 2));
        const uint8_t* third = row + Of::kHigh + 16 * (j % 2);
        for (int i = 0; i < 16; ++i)
          piece[128 + i % 4] |=
              static_cast<uint8_t>((third[i] >> (j / 2) & 1) << (i / 4 + 4 * (j % 2)));
      }
    }
  }

  // Bit i + 4 * half of each byte as bit 2.
  RR_INLINE static Bytes third_bits(Bytes v, int half, int i) {
    switch (i + 4 * half) {
      case 0:
        return b_shl<2>(v);
      case 1:
        return b_shl<1>(v);
      case 2:
        return v;
      case 3:
        return b_shr<1>(v);
      case 4:
        return b_shr<2>(v);
      case 5:
        return b_shr<3>(v);
      case 6:
        return b_shr<4>(v);
      default:
        return b_shr<5>(v);
    }
  }

  struct Threes {
    Bytes pairs, third;
    int half;
    RR_INLINE Bytes operator()(int i) const {
      const Bytes upper = third_bits(third, half, i);
      return b_and(b_select(b_splat(3), shifted_pairs(pairs, i), upper), b_splat(7));
    }
  };

  RR_INLINE static Threes weights(const uint8_t* piece, int half) {
    return {b_load(piece + 64 * half), b_load(piece + 128), half};
  }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q3_K)
