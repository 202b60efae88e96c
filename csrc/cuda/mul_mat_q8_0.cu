// Products with weights of q8_0.
#include "step_experts.cuh"

namespace {

struct Q8_0 : Block<RR_Q8_0> {
  static constexpr const char* kRefusal = "w is not plain q8_0";
  static constexpr int kOffset = 0;
  static constexpr bool kApart = false;
  static constexpr Sums kSums = Sums::kNone;

  __device__ static void slice(const BlockBytes& b, unsigned, Slice& out) {
    unsigned words[8];
    b.words<2>(kCodes, words);
#pragma unroll
    for (int i = 0; i < 8; ++i) out.q[i] = static_cast<int>(words[i]);
    out.scale[0] = b.half(kD);
  }
};

}  // namespace

RR_QUANT_PRODUCT(Q8_0)
RR_STEP_EXPERTS(Q8_0)
