// Products with weights of q4_0, q4_1, q5_0 and q5_1: blocks of 32 codes, nibbles in halves.
#include "mul_mat_quant_chosen.cuh"

namespace {

template <uint32_t dtype>
struct Block32 : Block<dtype> {
  static constexpr bool kApart = false;
};

struct Q4_0 : Block32<RR_Q4_0> {
  static constexpr const char* kRefusal = "w is not plain q4_0";
  static constexpr int kOffset = 8;
  static constexpr Sums kSums = Sums::kInt;

  __device__ static void slice(const BlockBytes& b, unsigned, Slice& out) {
    unsigned words[4];
    b.words<2>(kCodes, words);
    nibbles(words, out.q);
    out.scale[0] = b.half(kD);
  }
};

struct Q4_1 : Block32<RR_Q4_1> {
  static constexpr const char* kRefusal = "w is not plain q4_1";
  static constexpr int kOffset = 0;
  static constexpr Sums kSums = Sums::kFloat;

  __device__ static void slice(const BlockBytes& b, unsigned, Slice& out) {
    unsigned words[4];
    b.words<4>(kCodes, words);
    nibbles(words, out.q);
    scale_and_low(b.word(kD), out);
  }

  __device__ static void scale_and_low(unsigned d_and_m, Slice& out) {
    out.scale[0] = half_to_float(static_cast<uint16_t>(d_and_m));
    out.low[0] = half_to_float(static_cast<uint16_t>(d_and_m >> 16));
  }
};

// Bit i of `fifth` becomes bit 4 of code i.
__device__ inline void add_fifth(unsigned fifth, int (&q)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    q[i] |= static_cast<int>((fifth >> 4 * i & 15) * 0x02040810u & 0x10101010);
}

struct Q5_0 : Block32<RR_Q5_0> {
  static constexpr const char* kRefusal = "w is not plain q5_0";
  static constexpr int kOffset = 16;
  static constexpr Sums kSums = Sums::kInt;

  __device__ static void slice(const BlockBytes& b, unsigned, Slice& out) {
    unsigned words[5];
    b.words<2>(kHigh, words);
    const unsigned low[4] = {words[1], words[2], words[3], words[4]};
    nibbles(low, out.q);
    add_fifth(words[0], out.q);
    out.scale[0] = b.half(kD);
  }
};

struct Q5_1 : Block32<RR_Q5_1> {
  static constexpr const char* kRefusal = "w is not plain q5_1";
  static constexpr int kOffset = 0;
  static constexpr Sums kSums = Sums::kFloat;

  __device__ static void slice(const BlockBytes& b, unsigned, Slice& out) {
    unsigned words[4];
    b.words<8>(kCodes, words);
    nibbles(words, out.q);
    add_fifth(b.word(kHigh), out.q);
    Q4_1::scale_and_low(b.word(kD), out);
  }
};

}  // namespace

RR_QUANT_PRODUCT(Q4_0)
RR_QUANT_PRODUCT(Q4_1)
RR_QUANT_PRODUCT(Q5_0)
RR_QUANT_PRODUCT(Q5_1)
