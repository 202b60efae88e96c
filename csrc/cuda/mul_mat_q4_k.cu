// Products with weights of q4_k and q5_k: eight sub-blocks of 32 with 6-bit scales and minima.
#include "step_experts.cuh"

namespace {

// Scale and low of sub-block j from a block's first 16 bytes: d and dmin, then the low 6 bits of
// bytes j and j + 4, or from j = 4 on nibbles of byte j + 4, topped by two bits of those.
__device__ inline void scale_and_low(const unsigned (&head)[4], unsigned j, Slice& out) {
  const unsigned at = j % 4 * 8;
  const unsigned a = head[1] >> at, b = head[2] >> at, c = head[3] >> at;
  const bool upper = j >= 4;
  const unsigned scale = upper ? (c & 15) | (a >> 2 & 48) : a & 63;
  const unsigned low = upper ? (c >> 4 & 15) | (b >> 2 & 48) : b & 63;
  out.scale[0] = half_to_float(static_cast<uint16_t>(head[0])) * static_cast<float>(scale);
  out.low[0] = -half_to_float(static_cast<uint16_t>(head[0] >> 16)) * static_cast<float>(low);
}

struct Q4_K : Block<RR_Q4_K> {
  static constexpr const char* kRefusal = "w is not plain q4_k";
  static constexpr int kOffset = 0;
  static constexpr bool kApart = false;
  static constexpr Sums kSums = Sums::kFloat;

  __device__ static void slice(const BlockBytes& b, unsigned j, Slice& out) {
    unsigned head[4], words[8];
    b.words<16>(0, head);
    b.words<16>(kCodes + j / 2 * 32, words);
    const unsigned shift = j % 2 * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) out.q[i] = static_cast<int>(words[i] >> shift & 0x0f0f0f0f);
    scale_and_low(head, j, out);
  }
};

struct Q5_K : Block<RR_Q5_K> {
  static constexpr const char* kRefusal = "w is not plain q5_k";
  static constexpr int kOffset = 0;
  static constexpr bool kApart = false;
  static constexpr Sums kSums = Sums::kFloat;

  __device__ static void slice(const BlockBytes& b, unsigned j, Slice& out) {
    const unsigned shift = j % 2 * 4;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      unsigned fifth[4], words[4];
      b.words<16>(kHigh + 4 * i, fifth);
      b.words<16>(kCodes + j / 2 * 32 + 4 * i, words);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        out.q[i + k] =
            static_cast<int>((words[k] >> shift & 0x0f0f0f0f) | (fifth[k] >> j & 0x01010101) << 4);
    }
    unsigned head[4];
    b.words<16>(0, head);
    scale_and_low(head, j, out);
  }
};

}  // namespace

RR_QUANT_PRODUCT(Q4_K)
RR_STEP_EXPERTS(Q4_K)
RR_QUANT_PRODUCT(Q5_K)
RR_STEP_EXPERTS(Q5_K)
