// Products with weights of iq4_nl, iq4_xs and mxfp4: nibbles that choose from a list of values.
#include "mul_mat_quant_chosen.cuh"

namespace {

constexpr unsigned four(int a, int b, int c, int d) {
  return (a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | (d & 255u) << 24;
}

// Sixteen values as bytes, four to a word.
struct Iq4Values {
  static constexpr unsigned kA = four(-127, -104, -83, -65), kB = four(-49, -35, -22, -10),
                            kC = four(1, 13, 25, 38), kD = four(53, 69, 89, 113);
};

// The floats of E2M1, doubled; its negative zero is read as zero.
struct E2m1Values {
  static constexpr unsigned kA = four(0, 1, 2, 3), kB = four(4, 6, 8, 12), kC = four(0, -1, -2, -3),
                            kD = four(-4, -6, -8, -12);
};

// The values that the four lowest nibbles of w choose.
template <class V>
__device__ inline unsigned listed(unsigned w) {
  const unsigned at = w & 0x7777;
  const unsigned lower = __byte_perm(V::kA, V::kB, at), upper = __byte_perm(V::kC, V::kD, at);
  return __byte_perm(lower, upper, (w & 0x8888) >> 1 | 0x3210);
}

// Nibbles in halves as values.
template <class V>
__device__ inline void lookup(const unsigned (&w)[4], int (&q)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned a = listed<V>(w[i]), b = listed<V>(w[i] >> 16);
    q[i] = static_cast<int>(__byte_perm(a, b, 0x6420));
    q[i + 4] = static_cast<int>(__byte_perm(a, b, 0x7531));
  }
}

struct Listed {
  static constexpr int kOffset = 0;
  static constexpr bool kApart = false;
  static constexpr Sums kSums = Sums::kNone;
};

struct IQ4_NL : Listed {
  static constexpr uint32_t kType = RR_IQ4_NL;
  static constexpr const char* kRefusal = "w is not plain iq4_nl";
  static constexpr int kValues = 32, kBytes = 18;

  __device__ static void slice(const BlockBytes& b, unsigned, Slice& out) {
    unsigned words[4];
    b.words<2>(2, words);
    lookup<Iq4Values>(words, out.q);
    out.scale[0] = b.half(0);
  }
};

struct IQ4_XS : Listed {
  static constexpr uint32_t kType = RR_IQ4_XS;
  static constexpr const char* kRefusal = "w is not plain iq4_xs";
  static constexpr int kValues = 256, kBytes = 136;

  __device__ static void slice(const BlockBytes& b, unsigned j, Slice& out) {
    unsigned head[2], words[4];
    b.words<8>(0, head);
    b.words<8>(8 + 16 * j, words);
    lookup<Iq4Values>(words, out.q);
    const unsigned scale = (head[1] >> 4 * j & 15) | (head[0] >> (16 + 2 * j) & 3) << 4;
    const float d = half_to_float(static_cast<uint16_t>(head[0]));
    out.scale[0] = d * static_cast<float>(static_cast<int>(scale) - 32);
  }
};

struct MXFP4 : Listed {
  static constexpr uint32_t kType = RR_MXFP4;
  static constexpr const char* kRefusal = "w is not plain mxfp4";
  static constexpr int kValues = 32, kBytes = 17;

  __device__ static void slice(const BlockBytes& b, unsigned, Slice& out) {
    unsigned words[4];
    b.words<1>(1, words);
    lookup<E2m1Values>(words, out.q);
    // 2^(e - 128), subnormal for e < 2.
    const int e = b.byte(0);
    out.scale[0] = __int_as_float(e < 2 ? 0x00200000 << e : (e - 1) << 23);
  }
};

}  // namespace

RR_QUANT_PRODUCT(IQ4_NL)
RR_QUANT_PRODUCT(IQ4_XS)
RR_QUANT_PRODUCT(MXFP4)
