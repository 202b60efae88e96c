// Products with weights of q2_k, q3_k and q6_k, whose scales go with 16 values.
//
// Sub-block 4n + j of 32 is bit pair j of 32 bytes, for n = 0, 1. Slice i takes 16 of those bytes
// for two sub-blocks, j and j + 2.
#include "step_experts.cuh"

namespace {

template <uint32_t dtype>
struct Sub16 : Block<dtype> {
  static constexpr bool kApart = true;
};

struct Q2_K : Sub16<RR_Q2_K> {
  static constexpr const char* kRefusal = "w is not plain q2_k";
  static constexpr int kOffset = 0;
  static constexpr Sums kSums = Sums::kFloat;

  __device__ static void slice(const BlockBytes& b, unsigned i, Slice& out) {
    const SubBlocks at(i);
    unsigned pairs[4];
    b.words<4>(kCodes + 32 * at.n + 16 * at.h, pairs);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned w = pairs[k] >> 2 * at.j;
      out.q[k] = static_cast<int>(w & 0x03030303);
      out.q[k + 4] = static_cast<int>(w >> 4 & 0x03030303);
    }
    const float d = b.half(kD), minus_dmin = -b.half(kMin);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int scale = b.byte(kScales + at.sixteen() + 4 * side);
      out.scale[side] = d * static_cast<float>(scale & 15);
      out.low[side] = minus_dmin * static_cast<float>(scale >> 4);
    }
  }
};

struct Q3_K : Sub16<RR_Q3_K> {
  static constexpr const char* kRefusal = "w is not plain q3_k";
  static constexpr int kOffset = 4;
  static constexpr Sums kSums = Sums::kInt;

  __device__ static void slice(const BlockBytes& b, unsigned i, Slice& out) {
    const SubBlocks at(i);
    unsigned third[4], pairs[4];
    b.words<2>(kHigh + 16 * at.h, third);
    b.words<2>(kCodes + 32 * at.n + 16 * at.h, pairs);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned w = pairs[k] >> 2 * at.j, t = third[k] >> (4 * at.n + at.j);
      out.q[k] = static_cast<int>((w & 0x03030303) | (t & 0x01010101) << 2);
      out.q[k + 4] = static_cast<int>((w >> 4 & 0x03030303) | (t & 0x04040404));
    }
    // 6 bits: a nibble of byte s % 8 for scale s, topped by a bit pair of byte 8 + s % 4.
    const unsigned s = 2 * at.j + at.h;
    const int top = b.byte(kScales + 8 + s) >> 4 * at.n;
    const int first = (b.byte(kScales + s) >> 4 * at.n & 15) | (top & 3) << 4;
    const int second = (b.byte(kScales + s + 4) >> 4 * at.n & 15) | (top & 12) << 2;
    const float d = b.half(kD);
    out.scale[0] = d * static_cast<float>(first - 32);
    out.scale[1] = d * static_cast<float>(second - 32);
  }
};

struct Q6_K : Sub16<RR_Q6_K> {
  static constexpr const char* kRefusal = "w is not plain q6_k";
  static constexpr int kOffset = 32;
  static constexpr Sums kSums = Sums::kInt;

  __device__ static void slice(const BlockBytes& b, unsigned i, Slice& out) {
    const SubBlocks at(i);
    unsigned low[4], pairs[4];
    b.words<2>(kCodes + 64 * at.n + 32 * at.j + 16 * at.h, low);
    b.words<2>(kHigh + 32 * at.n + 16 * at.h, pairs);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned w = pairs[k] >> 2 * at.j;
      out.q[k] = static_cast<int>((low[k] & 0x0f0f0f0f) | (w & 0x03030303) << 4);
      out.q[k + 4] = static_cast<int>((low[k] >> 4 & 0x0f0f0f0f) | (w & 0x30303030));
    }
    const float d = b.half(kD);
    out.scale[0] = d * static_cast<float>(b.signed_byte(kScales + at.sixteen()));
    out.scale[1] = d * static_cast<float>(b.signed_byte(kScales + at.sixteen() + 4));
  }
};

}  // namespace

RR_QUANT_PRODUCT(Q2_K)
RR_QUANT_PRODUCT(Q3_K)
RR_QUANT_PRODUCT(Q6_K)
RR_STEP_EXPERTS(Q6_K)
