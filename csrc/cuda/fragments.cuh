// Weights of block types as operands of tensor cores, straight from the file's bytes.
//
// A warp takes 16 rows of 256 values as A of m16n8k16, in 16 steps. Lane 4g + t has rows g and
// g + 8, and of each the sub-blocks of 32 values 2t and 2t + 1: step 2i + h is values 4i to 4i + 3
// of sub-block 2t + h, of which 0 and 2 are neighbours in the first half of K and 1 and 3 in the
// second. x lies in the same order (prompt_halves.cuh), so that every type's words are used whole.
#pragma once

#include "decode.cuh"
#include "half_pairs.cuh"

namespace {

__device__ inline void read16(const unsigned char* at, unsigned* out) {
  const uint4 v = *reinterpret_cast<const uint4*>(at);
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}

// n words from an even address on, `odd` bytes (0 or 2) behind a multiple of 4, shifted right by
// `bits` more, below 16: bits come in from the word behind.
template <int n>
__device__ inline void read_words(const unsigned char* at, unsigned odd, unsigned bits,
                                  unsigned (&out)[n]) {
  const unsigned* word = reinterpret_cast<const unsigned*>(at - odd);
  unsigned low = word[0];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const unsigned high = word[i + 1];
    out[i] = __funnelshift_r(low, high, 8 * odd + bits);
    low = high;
  }
}

// Scales and minima of q4_k and q5_k: integers below 64.
struct AffineScales {
  unsigned scale[2][2];  // of row and sub-block, twice
  unsigned minima[2];    // of row, both sub-blocks
  float d[2], dmin[2];

  __device__ void load(int r, const unsigned char* block, int t) {
    unsigned head[4];
    read16(block, head);
    // From sub-block 4 on the lower four bits stand behind, the upper two where those before have
    // theirs.
    const bool upper = t >= 2;
    const unsigned at = t % 2 * 16, at_top = at + (upper ? 2 : 0), at_low = at + (upper ? 4 : 0);
    const unsigned s =
        ((upper ? head[3] : head[1]) >> at & 0x0f0fu) | (head[1] >> at_top & 0x3030u);
    const unsigned m =
        ((upper ? head[3] : head[2]) >> at_low & 0x0f0fu) | (head[2] >> at_top & 0x3030u);
    const unsigned both = add_pairs(__byte_perm(s, 0x64646464u, 0x4140), pair_of(kMinus1024));
    scale[r][0] = low_twice(both);
    scale[r][1] = high_twice(both);
    minima[r] = add_pairs(__byte_perm(m, 0x64646464u, 0x4140), pair_of(kMinus1024));
    d[r] = half_to_float(static_cast<uint16_t>(head[0]));
    dmin[r] = half_to_float(static_cast<uint16_t>(head[0] >> 16));
  }
};

// (code - zero) * scale of four codes, of which minus_zero also takes the 1024.
__device__ inline void centred(unsigned codes, unsigned minus_zero, unsigned scale, unsigned& even,
                               unsigned& odd) {
  even = multiply_pairs(add_pairs(even_bytes(codes), minus_zero), scale);
  odd = multiply_pairs(add_pairs(odd_bytes(codes), minus_zero), scale);
}

}  // namespace
