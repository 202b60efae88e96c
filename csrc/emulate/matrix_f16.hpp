// What matrix.hpp has, for halves, and the transposed form of ldmatrix.
#pragma once

#include "matrix.hpp"

namespace emulate {

struct HalfPair {
  static float value(unsigned bits, int i) {
    return half_to_float(static_cast<uint16_t>(bits >> (16 * i)));
  }
};

inline void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Product<float> mine{d, a, b};
  collective(0xffffffffu, &mine, &finish_product<float, 16, HalfPair>);
}

// A lane's part of a transposed 8x8 matrix: of column l / 4 the elements in rows 2 (l % 4) and the
// next.
inline void finish_load_matrix4_transposed(void* const* lanes, unsigned) {
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) {
      unsigned both = 0;
      for (int j = 0; j < 2; ++j) {
        const Rows& from = *static_cast<const Rows*>(lanes[8 * i + l % 4 * 2 + j]);
        uint16_t element;
        memcpy(&element, static_cast<const char*>(from.row) + l / 4 * 2, 2);
        both |= static_cast<unsigned>(element) << (16 * j);
      }
      static_cast<const Rows*>(lanes[l])->r[i] = both;
    }
}

inline void load_matrix4_transposed(unsigned (&r)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16)
    fail_block(cudaErrorMisalignedAddress,
               "misaligned: load_matrix4_transposed of a row not at 16 bytes");
  Rows mine{r, row};
  collective(0xffffffffu, &mine, &finish_load_matrix4_transposed);
}

}  // namespace emulate
