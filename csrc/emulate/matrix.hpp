// Tensor cores' matrix products and the copies that feed them, in the register layouts of the PTX
// ISA (mma.sync m16n8k16 and m16n8k32, ldmatrix): lane l holds of a row group l / 4 and of a
// column group l % 4.
#pragma once

#include "fibers.hpp"
#include "numbers.hpp"

namespace emulate {

template <typename T>
struct Product {
  T* d;
  const unsigned* a;
  const unsigned* b;
};

// Register r of A lies in rows l / 4 + 8 (r % 2) and of B in column l / 4; in both, registers of
// the second half of K are A's r / 2 = 1 and B's r = 1. A register holds 32 bits along K. `Unpack`
// gives the values in one. D: row l / 4 + 8 (i / 2), column 2 (l % 4) + i % 2.
template <typename T, int depth, typename Unpack>
void finish_product(void* const* lanes, unsigned) {
  constexpr int kPer = depth / 8;
  T a[16][depth], b[depth][8], d[16][8];
  for (int l = 0; l < 32; ++l) {
    const Product<T>& p = *static_cast<const Product<T>*>(lanes[l]);
    const int group = l / 4, at = l % 4 * kPer;
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < kPer; ++i)
        a[group + 8 * (r % 2)][at + r / 2 * depth / 2 + i] = Unpack::value(p.a[r], i);
    for (int r = 0; r < 2; ++r)
      for (int i = 0; i < kPer; ++i) b[at + r * depth / 2 + i][group] = Unpack::value(p.b[r], i);
    for (int i = 0; i < 4; ++i) d[group + 8 * (i / 2)][l % 4 * 2 + i % 2] = p.d[i];
  }
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < depth; ++k)
      for (int n = 0; n < 8; ++n) d[m][n] += a[m][k] * b[k][n];
  for (int l = 0; l < 32; ++l) {
    const Product<T>& p = *static_cast<const Product<T>*>(lanes[l]);
    for (int i = 0; i < 4; ++i) p.d[i] = d[l / 4 + 8 * (i / 2)][l % 4 * 2 + i % 2];
  }
}

struct Bf16Pair {
  static float value(unsigned bits, int i) {
    return bf16_to_float(static_cast<uint16_t>(bits >> (16 * i)));
  }
};

struct FourBytes {
  static int value(unsigned bits, int i) { return static_cast<int8_t>(bits >> (8 * i)); }
};

inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Product<float> mine{d, a, b};
  collective(0xffffffffu, &mine, &finish_product<float, 16, Bf16Pair>);
}

inline void mma_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Product<int> mine{d, a, b};
  collective(0xffffffffu, &mine, &finish_product<int, 32, FourBytes>);
}

struct Rows {
  unsigned* r;
  const void* row;
};

inline void finish_load_matrix4(void* const* lanes, unsigned) {
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) {
      const Rows& from = *static_cast<const Rows*>(lanes[8 * i + l / 4]);
      memcpy(&static_cast<const Rows*>(lanes[l])->r[i],
             static_cast<const char*>(from.row) + l % 4 * 4, 4);
    }
}

inline void load_matrix4(unsigned (&r)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16)
    fail_block(cudaErrorMisalignedAddress, "misaligned: load_matrix4 of a row not at 16 bytes");
  Rows mine{r, row};
  collective(0xffffffffu, &mine, &finish_load_matrix4);
}

// The copy is done when its thread waits for it, the latest time that a device may take.
inline void async_copy16(void* shared, const void* global) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16)
    fail_block(cudaErrorMisalignedAddress, "misaligned: async_copy16 at less than 16 bytes");
  async_copy(shared, global);
}

template <int left>
void async_copy_wait() {
  static_assert(left >= 0, "a number of groups");
  async_copy_finish(left);
}

}  // namespace emulate
