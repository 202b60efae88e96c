// Weights of block types as operands of warpgroups' products of bytes: codes times the integer
// steps of their sub-blocks as two bytes, so that sums over 256 values need no multiplication.
#pragma once

#include "step_codes_32.cuh"

namespace {

// Of a type, beside what StepCodes has:
//   kSigned: whether upper bytes are; lower ones are not.
// After begin(), operands(i, a) gives, of values 32i to 32i + 31 for i from 0 to 7 in turn, the
// operands of lower bytes, a[0], and of upper ones, a[1]. whole(low, high, upper_low, upper_high)
// is the total of their sums with lower and with upper bytes of x, these times 128, rounded once,
// and factor(r) what it is to be multiplied by.
template <uint32_t dtype>
struct WideCodes;

template <uint32_t dtype>
struct StepRowsOf<WideCodes<dtype>> : StepRowsOf<StepCodes<dtype>> {};

// Steps are 8h + l with h and l below 8: codes below 32 times either are bytes.
template <>
struct WideCodes<RR_Q4_K> : AffineSteps {
  static constexpr bool kSigned = false;
  unsigned parts[2][2][2];  // l and h of steps, as AffineSteps has these
  unsigned both[4];

  __device__ void load(int r, const unsigned char* block, int t) {
    AffineSteps::load(r, block, t);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      parts[0][r][i] = steps[r][i] & 0x07070707u;
      parts[1][r][i] = steps[r][i] >> 3 & 0x07070707u;
    }
  }
  __device__ void begin() { load_matrix4(both, matrix + Block<RR_Q4_K>::kCodes); }
  __device__ void operands(int i, unsigned (&a)[2][4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned codes = (i % 2 ? both[j] >> 4 : both[j]) & kNibbles;
#pragma unroll
      for (int part = 0; part < 2; ++part)
        a[part][j] = codes * __byte_perm(parts[part][j % 2][i / 4], 0,
                                         0x4440u + static_cast<unsigned>(i) % 4);
    }
    // The next ones come while products run.
    if (i % 2 == 1 && i < 7) load_matrix4(both, matrix + Block<RR_Q4_K>::kCodes + 16 * (i + 1));
  }
  // Below 2^31, whatever x is.
  __device__ static float whole(int low, int high, int upper_low, int upper_high) {
    return static_cast<float>(1024 * upper_high + 128 * upper_low + 8 * high + low);
  }
  __device__ float factor(int r) const { return d[r]; }
};

// Codes less 32, times 4, times steps are integers of 16 bits.
template <>
struct WideCodes<RR_Q6_K> : StepCodes<RR_Q6_K> {
  static constexpr bool kSigned = true;
  unsigned words[4][2];

  __device__ void begin() {}
  __device__ void operands(int i, unsigned (&a)[2][4]) {
    if (i % 2 == 0) codes(i / 2, words);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int s = i % 2 * 2 + j / 2;
      const unsigned step = static_cast<unsigned>(this->step(j % 2, i / 2 * 4 + s));
      // Two products, from 32768 on.
      const unsigned offset = 0x80008000u - step * 0x00800080u;
      const unsigned word = words[s][j % 2] ^ 0x80808080u;
      const unsigned even = (word & 0x00fc00fcu) * step + offset;
      const unsigned odd = (word >> 8 & 0x00fc00fcu) * step + offset;
      a[0][j] = __byte_perm(even, odd, 0x6240);
      a[1][j] = __byte_perm(even, odd, 0x7351) ^ 0x80808080u;
    }
  }
  __device__ static float whole(int low, int high, int upper_low, int upper_high) {
    return fmaf(128.0f, static_cast<float>(256 * upper_high + upper_low),
                static_cast<float>(256 * high + low));
  }
  __device__ float factor(int r) const { return d[r]; }
};

}  // namespace
