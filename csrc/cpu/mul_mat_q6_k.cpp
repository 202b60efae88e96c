// mul_mat with q6_k weights: 256 values, d f16, sixteen int8 scales s, 6-bit q.
// y = d * s_j * (q - 32) in sub-block j of 16 values.
//
// A piece is three vectors [row][4] for each of two sub-blocks: their low six bits are q for
// k = 0 .. 3, 4 .. 7 and 8 .. 11 of the sub-block, their top two bits together q for k = 12 .. 15
// (bits 5-4, 3-2, 1-0).

#include "decode.hpp"
#include "mul_mat_k_signed.hpp"

namespace {

struct Q6_K : SignedK<Q6_K> {
  using Of = Block<RR_Q6_K>;
  static constexpr uint32_t kType = Of::kType;
  static constexpr const char* kRefusal = "w is not packed q6_k";
  static constexpr int kBits = 6, kOffset = 32, kPiece = 384;

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += Of::kBytes, unit += unit_bytes()) {
      memcpy(group + 32 * b + 2 * lane, row + Of::kD, 2);
      uint8_t codes[256];
      for (int j = 0; j < 8; ++j)
        Of::codes<Read>(row, j, codes + 32 * j, [](int q, int) { return static_cast<uint8_t>(q); });
      for (int j = 0; j < 16; ++j) {
        unit[16 * j + lane] = row[Of::kScales + j];
        uint8_t* out = unit + 256 + 192 * j + 4 * lane;
        const uint32_t top = static_cast<uint32_t>(load_int(codes + 16 * j + 12));
        for (int v = 0; v < 3; ++v) {
          const uint32_t pair = top >> (4 - 2 * v) & 0x03030303;
          const uint32_t four = static_cast<uint32_t>(load_int(codes + 16 * j + 4 * v)) | pair << 6;
          memcpy(out + 64 * v, &four, sizeof four);
        }
      }
    }
  }

  struct Sixes {
    Bytes a, b, c;
    RR_INLINE Bytes operator()(int i) const {
      const Bytes six = b_splat(63);
      if (i < 3) return b_and(i == 0 ? a : i == 1 ? b : c, six);
      const Bytes upper = b_select(b_splat(0x30), b_shr<2>(a), b_shr<4>(b));
      return b_and(b_select(b_splat(0x3c), upper, b_shr<6>(c)), six);
    }
  };

  RR_INLINE static Sixes weights(const uint8_t* piece, int half) {
    const uint8_t* at = piece + 192 * half;
    return {b_load(at), b_load(at + 64), b_load(at + 128)};
  }
};

template <>
constexpr int kFreshColumns<Q6_K::Sixes> = kAvx2Alone ? 2 : kAtOnce;

}  // namespace

RR_QUANTISED_PRODUCT(Q6_K)
