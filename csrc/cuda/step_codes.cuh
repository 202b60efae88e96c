// Weights of block types as operands of tensor cores: bytes of integer codes, straight from weights
// packed by eight rows (rows8.cuh) in shared memory.
//
// A warp takes 16 rows of 256 values. Lane 4g + t has rows g and g + 8, and of each 64 values
// those of lane t in step_x.cuh, a word for every sixteen. Sums of codes times x over 32 values, or
// 16, are exact integers, which are multiplied by the step of these values.
#pragma once

#include "half_pairs.cuh"
#include "matrix_bytes.cuh"
#include "mul_mat_mma_codes.cuh"
#include "rows8.cuh"

namespace {

constexpr int kStepUnit = 16, kStepHalf = 8;  // rows of w; those of packed weights are in eights

// Of a type:
//   kValues, how many share a step, 32 or 16; kSigned, whether codes are;
//   kWhole, whether steps are integers, times d[r], and else floats; kMinima, whether from a value
//   a minimum is taken: dmin[r] times what minima[r] has of sub-blocks 2t and 2t + 1, as halves.
// load(r, row, t) is given row r (0: g, 1: g + 8) in shared memory, where 16 bytes beyond can be
// read, or, if rows lie in pieces, load(r, eight, row) the eight and the number of the row in it.
// kMatrix says whether `matrix` is to be given row lane % 16 from 16 bytes number lane / 16 on.
// codes(quarter, words) gives the words [sixteen][r] of 64 values, quarter after quarter,
// step(r, i) the step of number i of the 256 values' eight, or sixteen.
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
  __device__ void load(int r, const unsigned char* block, int t) {
    AffineSteps::load(r, block, t);
    d[r] *= 0.0625f;
  }

  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
    unsigned both[4];
    load_matrix4(both, matrix + Block<RR_Q4_K>::kCodes + 32 * quarter);
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
  using Of = Block<RR_Q5_K>;
  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
    unsigned both[4], fifths[4];
    load_matrix4(both, matrix + Of::kCodes + 32 * quarter);
    load_matrix4(fifths, matrix + Of::kHigh);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned fifth = fifths[i] >> 2 * quarter;
      words[i / 2][i % 2] = (both[i] & kNibbles) | (fifth << 4 & 0x10101010u);
      words[2 + i / 2][i % 2] = (both[i] >> 4 & kNibbles) | (fifth << 3 & 0x10101010u);
    }
  }

  __device__ int step(int r, int i) const { return static_cast<int>(step_of(r, i)); }
};

// (word & mask) ^ bits, in one instruction.
template <unsigned mask, unsigned bits>
__device__ inline unsigned mask_and_flip(unsigned word) {
#ifdef RR_EMULATE
  return (word & mask) ^ bits;
#else
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "n"(mask), "n"(bits));
  return result;
#endif
}

// Byte i, with its sign, in one instruction.
__device__ inline int signed_byte_of(unsigned word, int i) {
#ifdef RR_EMULATE
  return static_cast<int8_t>(word >> 8 * i);
#else
  int result;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(result) : "r"(word), "r"(0x8880 + 0x1111 * i));
  return result;
#endif
}

// Codes less 32, times 4. The upper six bits of bytes are codes as they are.
template <>
struct StepCodes<RR_Q6_K> {
  using Rows = Rows8<RR_Q6_K>;
  static constexpr int kValues = 16;
  static constexpr bool kSigned = true, kWhole = true, kMinima = false, kMatrix = true;
  const unsigned char* matrix;
  unsigned steps[2][4];
  float d[2];
  unsigned pieces[6][2];  // of two quarters, each row

  __device__ void load(int r, const unsigned char* eight, int row) {
    const uint4 scales =
        *reinterpret_cast<const uint4*>(eight + Rows::kScales * Rows::kPiece + row * Rows::kRow);
    steps[r][0] = scales.x, steps[r][1] = scales.y, steps[r][2] = scales.z, steps[r][3] = scales.w;
    d[r] = 0.25f * load_half(eight + Rows::kBehind + row * Rows::kLeft);
  }

  __device__ void codes(int quarter, unsigned (&words)[4][2]) {
    if (quarter % 2 == 0) load_pieces(quarter * 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int first = quarter % 2 * 3;
      const unsigned of[] = {pieces[first][r], pieces[first + 1][r], pieces[first + 2][r]};
#pragma unroll
      for (int s = 0; s < 3; ++s) words[s][r] = centred(of[s]);
      words[3][r] = centred(Rows::fourth<2>(of[0], of[1], of[2]));
    }
  }

  __device__ int step(int r, int i) const { return signed_byte_of(steps[r][i / 4], i % 4); }

 private:
  __device__ static unsigned centred(unsigned word) {
    return mask_and_flip<0xfcfcfcfcu, 0x80808080u>(word);
  }

  __device__ void load_pieces(int first) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      unsigned both[4];
      load_matrix4(both, matrix + (first + 2 * i) * Rows::kPiece);
#pragma unroll
      for (int j = 0; j < 4; ++j) pieces[2 * i + j / 2][j % 2] = both[j];
    }
  }
};

// How the type of StepCodes<dtype> lies in an eight.
template <class F>
struct StepRowsOf;
template <uint32_t dtype>
struct StepRowsOf<StepCodes<dtype>> : Rows8<dtype> {
  static constexpr int kBytes = kBytesOf256<dtype>;  // of a row
};

// This lane's part of 256 values of a unit: of the eight rows `first`, and of `second`.
template <class F>
__device__ inline F step_codes(const unsigned char* first, const unsigned char* second) {
  using Rows = StepRowsOf<F>;
  const int lane = threadIdx.x % kWarp, row = lane / 4;
  F f;
  if constexpr (Rows::kInPieces) {
    f.load(0, first, row);
    f.load(1, second, row);
  } else {
    f.load(0, first + row * Rows::kRow, lane % 4);
    f.load(1, second + row * Rows::kRow, lane % 4);
  }
  if constexpr (F::kMatrix)
    f.matrix = (lane / kStepHalf % 2 ? second : first) + lane % kStepHalf * Rows::kRow +
               lane / kStepUnit * Rows::kPiece;
  return f;
}

}  // namespace
