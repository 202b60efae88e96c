// How weights of block types lie in RR_LAYOUT_ROWS8.
//
// What eight rows have of 256 values is an eight, a multiple of 16 bytes that lie together. Eights
// of the same rows follow each other in the order of K, then come those of the next eight rows;
// rows that the last ones lack are zeros.
//
// Rows8<dtype> says how a type lies within an eight, to what packs it and to all that read it. A
// type keeps the file's blocks, row after row, unless it is specialised below to lie in pieces.
#pragma once

#include <string.h>

#include "decode.cuh"

namespace {

// Bits of `a` where the mask has ones, else those of `b`, in one instruction.
template <unsigned mask>
__device__ inline unsigned select_bits(unsigned a, unsigned b) {
#ifdef RR_EMULATE
  return (a & mask) | (b & ~mask);
#else
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(result) : "n"(mask), "r"(a), "r"(b));
  return result;
#endif
}

// kRow: bytes from a row to the next one, kPiece: from 16 bytes of a row to its next ones. put: row
// `row` of an eight from its 256 values in the file's blocks, on the host. decode32: as that of
// decode.cuh, of a row's 256 values.
template <uint32_t dtype>
struct Rows8 {
  static constexpr bool kInPieces = false;
  static constexpr int kRow = kBytesOf256<dtype>, kPiece = 16;

  static void put(const uint8_t* blocks, uint8_t* eight, int row) {
    memcpy(eight + row * kRow, blocks, kRow);
  }
  __device__ static void decode32(const uint8_t* eight, int row, int group, float* out) {
    ::decode32<dtype>(eight + row * kRow, group, out);
  }
};

// Rows in pieces of 16 bytes, each piece of all eight rows together: that is how load_matrix4 reads
// codes as operands, at whole words, and with no two rows in the same banks of shared memory
// wherever the eight begins. Bytes that fill no piece lie behind, row after row.
template <uint32_t dtype>
struct Pieces8 {
  static constexpr bool kInPieces = true;
  static constexpr int kRow = 16, kPiece = 8 * kRow;
  static constexpr int kBytes = kBytesOf256<dtype>, kWhole = kBytes / 16, kLeft = kBytes % 16;
  static constexpr int kBehind = kWhole * kPiece;

  // own: the row's bytes in the order of pieces.
  static void put_pieces(const uint8_t* own, uint8_t* eight, int row) {
    for (int piece = 0; piece < kWhole; ++piece)
      memcpy(eight + piece * kPiece + row * kRow, own + 16 * piece, 16);
    if (kLeft > 0) memcpy(eight + kBehind + row * kLeft, own + 16 * kWhole, kLeft);
  }

  // Word `i` of a row's piece.
  __device__ static unsigned word(const uint8_t* eight, int row, int piece, int i) {
    return *reinterpret_cast<const unsigned*>(eight + piece * kPiece + row * kRow + 4 * i);
  }
};

// Sixteen pieces of codes in the order of K, then one of the steps of all eight blocks.
template <>
struct Rows8<RR_Q8_0> : Pieces8<RR_Q8_0> {
  using Of = Block<RR_Q8_0>;
  static constexpr int kSteps = 16;  // the piece

  static void put(const uint8_t* blocks, uint8_t* eight, int row) {
    uint8_t own[kBytes];
    for (int block = 0; block < 8; ++block, blocks += Of::kBytes) {
      memcpy(own + 16 * kSteps + 2 * block, blocks + Of::kD, 2);
      memcpy(own + 32 * block, blocks + Of::kCodes, 32);
    }
    put_pieces(own, eight, row);
  }

  __device__ static void decode32(const uint8_t* eight, int row, int group, float* out) {
    const float d = load_half(eight + kSteps * kPiece + row * kRow + 2 * group);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const unsigned codes = word(eight, row, 2 * group + i / 4, i % 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) out[4 * i + k] = times(d, static_cast<int8_t>(byte_of(codes, k)));
    }
  }
};

// Three pieces for each 64 values: codes of the first three sixteens in the upper six bits of their
// bytes, and in the lower two of the three those of the fourth, from the uppermost on. Then one of
// the sixteen scales; d is left.
template <>
struct Rows8<RR_Q6_K> : Pieces8<RR_Q6_K> {
  using Of = Block<RR_Q6_K>;
  static constexpr int kScales = 12;  // the piece

  static void put(const uint8_t* block, uint8_t* eight, int row) {
    uint8_t own[kBytes];
    for (int quarter = 0; quarter < 4; ++quarter) put_quarter(block, quarter, own + 48 * quarter);
    memcpy(own + 16 * kScales, block + Of::kScales, 18);
    put_pieces(own, eight, row);
  }

  // Codes of the fourth sixteen, of four values, in the six bits of a byte that lie `up` above the
  // lowest; other bits hold anything. words: of the pieces.
  template <int up>
  __device__ static unsigned fourth(unsigned first, unsigned second, unsigned third) {
    const unsigned lower = select_bits<0x0c0c0c0cu << up>(second << (2 + up), third << up);
    return select_bits<0x30303030u << up>(first << (4 + up), lower);
  }

  __device__ static void decode32(const uint8_t* eight, int row, int group, float* out) {
    const float d = load_half(eight + kBehind + kLeft * row);
    const uint8_t* scales = eight + kScales * kPiece + row * kRow + 2 * group;
    const float step[2] = {times(d, static_cast<int8_t>(scales[0])),
                           times(d, static_cast<int8_t>(scales[1]))};
    const int first = group / 2 * 3;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned a = word(eight, row, first, i), b = word(eight, row, first + 1, i),
                     c = word(eight, row, first + 2, i);
      const unsigned codes[2] = {group % 2 ? c >> 2 : a >> 2,
                                 group % 2 ? fourth<0>(a, b, c) : b >> 2};
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          out[16 * h + 4 * i + k] = times(step[h], (byte_of(codes[h], k) & 63) - 32);
    }
  }

 private:
  // Three pieces of the 64 values number `quarter`, eight bytes of each at a time.
  static void put_quarter(const uint8_t* block, int quarter, uint8_t* to) {
    constexpr uint64_t kEach = 0x0101010101010101u;
    const int shift = quarter % 2 * 4;
    for (int i = 0; i < 16; i += 8) {
      uint64_t low[4], high[2], codes[4];
      for (int s = 0; s < 4; ++s)
        memcpy(low + s, block + Of::kCodes + quarter / 2 * 64 + 16 * s + i, 8);
      for (int s = 0; s < 2; ++s)
        memcpy(high + s, block + Of::kHigh + quarter / 2 * 32 + 16 * s + i, 8);
      for (int s = 0; s < 4; ++s) {
        const uint64_t top = high[s % 2] >> (shift + s / 2 * 2) & 3 * kEach;
        codes[s] = (low[s] >> shift & 15 * kEach) | top << 4;
      }
      for (int piece = 0; piece < 3; ++piece) {
        const uint64_t own = codes[piece] << 2 | (codes[3] >> (4 - 2 * piece) & 3 * kEach);
        memcpy(to + 16 * piece + i, &own, 8);
      }
    }
  }
};

}  // namespace
