// Weights of block types as operands of tensor cores: bytes of integer codes, straight from the
// file's bytes in shared memory.
//
// A warp takes 16 rows of 256 values. Lane 4g + t has rows g and g + 8, and of each 64 values
// those of lane t in step_x.cuh, a word for every sixteen. Sums of codes times x over 32 values, or
// 16, are exact integers, which are multiplied by the step of these values.
#pragma once

#include "half_pairs.cuh"
#include "matrix_bytes.cuh"
#include "mul_mat_mma_codes.cuh"

namespace {

// Of a type:
//   kBytes of 256 values, kGrain, the power of two up to 16 that their addresses divide by;
//   kValues, how many share a step, 32 or 16; kSigned, whether codes are;
//   kWhole, whether steps are integers, times d[r], and else floats; kMinima, whether from a value
//   a minimum is taken: dmin[r] times what minima[r] has of sub-blocks 2t and 2t + 1, as halves.
// load(r, block, t) is given row r (0: g, 1: g + 8) in shared memory, where 16 bytes beyond the
// block can be read, and kMatrix says whether `matrix` is to be given row lane % 16 from byte
// 16 (lane / 16) on. codes(quarter, words) gives the words [sixteen][r] of 64 values, step(r, i)
// the step of number i of the 256 values' eight, or sixteen.
template <uint32_t dtype>
struct StepCodes;

// Scales and minima of q4_k and q5_k: integers below 64.
struct AffineSteps {
  static constexpr int kValues = 32;
  static constexpr bool kSigned = false, kWhole = true, kMinima = true, kMatrix = true;
  const unsigned char* matrix;
  unsigned steps[2][2];  // of row: sub-blocks 0 to 3, 4 to 7
  unsigned minima[2];
  float d[2], dmin[2];

  __device__ void load(int r, const unsigned char* block, int t) {
    const uint4 head = *reinterpret_cast<const uint4*>(block);
    // From sub-block 4 on the lower four bits stand behind, the upper two where those before have
    // theirs.
    steps[r][0] = head.y & 0x3f3f3f3fu;
    steps[r][1] = (head.w & kNibbles) | (head.y >> 2 & 0x30303030u);
    const unsigned all =
        t < 2 ? head.z & 0x3f3f3f3fu : (head.w >> 4 & kNibbles) | (head.z >> 2 & 0x30303030u);
    const unsigned two = t % 2 ? all >> 16 : all;
    minima[r] = add_pairs(__byte_perm(two, 0x64646464u, 0x4140), pair_of(kMinus1024));
    d[r] = half_to_float(static_cast<uint16_t>(head.x));
    dmin[r] = half_to_float(static_cast<uint16_t>(head.x >> 16));
  }

  __device__ unsigned step_of(int r, int i) const { return steps[r][i / 4] >> 8 * (i % 4) & 255u; }
};

// Codes of odd sub-blocks stay where they are, times 16; the others' steps make up for it.
template <>
struct StepCodes<RR_Q4_K> : AffineSteps {
  static constexpr int kBytes = 144, kGrain = 16;

  __device__ void load(int r, const unsigned char* block, int t) {
    AffineSteps::load(r, block, t);
    d[r] *= 0.0625f;
  }

  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
    unsigned both[4];
    load_matrix4(both, matrix + 16 + 32 * quarter);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i / 2][i % 2] = both[i] & kNibbles;
      words[2 + i / 2][i % 2] = both[i] & ~kNibbles;
    }
  }

  __device__ int step(int r, int i) const {
    if (i % 2) return static_cast<int>(step_of(r, i));
    const unsigned word = steps[r][i / 4];
    return static_cast<int>((i % 4 ? word >> 12 : word << 4) & 0xff0u);
  }
};

template <>
struct StepCodes<RR_Q5_K> : AffineSteps {
  static constexpr int kBytes = 176, kGrain = 16;

  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
    unsigned both[4], fifths[4];
    load_matrix4(both, matrix + 48 + 32 * quarter);
    load_matrix4(fifths, matrix + 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned fifth = fifths[i] >> 2 * quarter;
      words[i / 2][i % 2] = (both[i] & kNibbles) | (fifth << 4 & 0x10101010u);
      words[2 + i / 2][i % 2] = (both[i] >> 4 & kNibbles) | (fifth << 3 & 0x10101010u);
    }
  }

  __device__ int step(int r, int i) const { return static_cast<int>(step_of(r, i)); }
};

// A word at an even address, `odd` bytes (0 or 2) behind a multiple of 4.
__device__ inline unsigned even_word(const unsigned char* at, unsigned odd) {
  const unsigned* word = reinterpret_cast<const unsigned*>(at - odd);
  return __funnelshift_r(word[0], word[1], 8 * odd);
}

// Codes less 32, times 4: the upper two bits of a code stay in the upper two of a byte.
template <>
struct StepCodes<RR_Q6_K> {
  static constexpr int kBytes = 210, kGrain = 2, kValues = 16;
  static constexpr bool kSigned = true, kWhole = true, kMinima = false, kMatrix = false;
  const unsigned char* block[2];
  unsigned odd[2], steps[2][4];
  float d[2];

  __device__ void load(int r, const unsigned char* from, int t) {
    odd[r] = reinterpret_cast<uintptr_t>(from) & 2;
    block[r] = from + 4 * t;
#pragma unroll
    for (int i = 0; i < 4; ++i) steps[r][i] = even_word(from + 192 + 4 * i, odd[r]);
    d[r] = 0.25f * load_half(from + 208);
  }

  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
    const int half = quarter / 2, upper = quarter % 2;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned high = even_word(block[r] + 128 + 32 * half + 16 * i, odd[r]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const unsigned low = even_word(block[r] + 64 * half + 32 * h + 16 * i, odd[r]);
          const unsigned lower = upper ? low >> 2 : low << 2;
          const unsigned top = high << (upper ? 2 - 2 * h : 6 - 2 * h);
          words[2 * h + i][r] = (lower & 0x3c3c3c3cu) | ((top & 0xc0c0c0c0u) ^ 0x80808080u);
        }
      }
  }

  __device__ int step(int r, int i) const {
    return static_cast<int8_t>(steps[r][i / 4] >> 8 * (i % 4));
  }
};

}  // namespace
