// Products with weights of iq4_nl, iq4_xs and mxfp4: nibbles that choose from a list of values.
#include "bytes.cuh"
#include "mul_mat_quant_chosen.cuh"

namespace {

// The values that the four lowest nibbles of w choose.
template <const int (&values)[16]>
__device__ inline unsigned listed(unsigned w) {
  constexpr unsigned a = four_values(values, 0, 0), b = four_values(values, 4, 0),
                     c = four_values(values, 8, 0), d = four_values(values, 12, 0);
  const unsigned at = w & 0x7777, lower = __byte_perm(a, b, at), upper = __byte_perm(c, d, at);
  return __byte_perm(lower, upper, (w & 0x8888) >> 1 | 0x3210);
}

// Nibbles in halves as values.
template <const int (&values)[16]>
__device__ inline void lookup(const unsigned (&w)[4], int (&q)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned a = listed<values>(w[i]), b = listed<values>(w[i] >> 16);
    q[i] = static_cast<int>(__byte_perm(a, b, 0x6420));
    q[i + 4] = static_cast<int>(__byte_perm(a, b, 0x7531));
  }
}

template <uint32_t dtype>
struct Listed : Block<dtype> {
  static constexpr int kOffset = 0;
  static constexpr bool kApart = false;
  static constexpr Sums kSums = Sums::kNone;
};

struct IQ4_NL : Listed<RR_IQ4_NL> {
  static constexpr const char* kRefusal = "w is not plain iq4_nl";

  __device__ static void slice(const BlockBytes& b, unsigned, Slice& out) {
    unsigned words[4];
    b.words<2>(kCodes, words);
    lookup<kIq4Values>(words, out.q);
    out.scale[0] = b.half(kD);
  }
};

struct IQ4_XS : Listed<RR_IQ4_XS> {
  static constexpr const char* kRefusal = "w is not plain iq4_xs";

  __device__ static void slice(const BlockBytes& b, unsigned j, Slice& out) {
    unsigned head[2], words[4];
    b.words<8>(0, head);
    b.words<8>(kCodes + 16 * j, words);
    lookup<kIq4Values>(words, out.q);
    const unsigned scale = (head[1] >> 4 * j & 15) | (head[0] >> (8 * kHigh + 2 * j) & 3) << 4;
    const float d = half_to_float(static_cast<uint16_t>(head[0]));
    out.scale[0] = d * static_cast<float>(static_cast<int>(scale) - 32);
  }
};

struct MXFP4 : Listed<RR_MXFP4> {
  static constexpr const char* kRefusal = "w is not plain mxfp4";

  __device__ static void slice(const BlockBytes& b, unsigned, Slice& out) {
    unsigned words[4];
    b.words<1>(kCodes, words);
    lookup<kE2m1Values>(words, out.q);
    out.scale[0] = __uint_as_float(scale(static_cast<unsigned>(b.byte(kE))));
  }
};

}  // namespace

RR_QUANT_PRODUCT(IQ4_NL)
RR_QUANT_PRODUCT(IQ4_XS)
RR_QUANT_PRODUCT(MXFP4)
