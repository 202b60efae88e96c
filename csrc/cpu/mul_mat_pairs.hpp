// How q2_k and q3_k pack bit pairs: a vector [row][4] for each sub-block of 16 values, in which bit
// pair i of byte j belongs to k = 4i + j.
#pragma once

#include "mul_mat_quant.hpp"

namespace {

// A sub-block's pairs stand at bit `shift` of 16 bytes.
RR_INLINE void pack_pairs(const uint8_t* q, int shift, uint8_t* out) {
  for (int j = 0; j < 4; ++j) {
    int byte = 0;
    for (int i = 0; i < 4; ++i) byte |= (q[4 * i + j] >> shift & 3) << (2 * i);
    out[j] = static_cast<uint8_t>(byte);
  }
}

// Pair i of each byte as its lowest bits, i < 4.
RR_INLINE Bytes shifted_pairs(Bytes v, int i) {
  return i == 0 ? v : i == 1 ? b_shr<2>(v) : i == 2 ? b_shr<4>(v) : b_shr<6>(v);
}

}  // namespace
