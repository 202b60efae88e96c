// CUDA's functions of single threads.
#pragma once

#include <math.h>

#include "language.hpp"

// The overloads of CUDA: calls that are ambiguous there are ambiguous here.
#define RR_MIN_MAX(type)            \
  inline type min(type a, type b) { \
    return std::min(a, b);          \
  }                                 \
  inline type max(type a, type b) { \
    return std::max(a, b);          \
  }

RR_MIN_MAX(int)
RR_MIN_MAX(unsigned)
RR_MIN_MAX(long)
RR_MIN_MAX(unsigned long)
RR_MIN_MAX(long long)
RR_MIN_MAX(unsigned long long)

#undef RR_MIN_MAX

#define RR_MIN_MAX_MIXED(result, a_type, b_type)                     \
  inline result min(a_type a, b_type b) {                            \
    return std::min(static_cast<result>(a), static_cast<result>(b)); \
  }                                                                  \
  inline result max(a_type a, b_type b) {                            \
    return std::max(static_cast<result>(a), static_cast<result>(b)); \
  }

RR_MIN_MAX_MIXED(unsigned, int, unsigned)
RR_MIN_MAX_MIXED(unsigned, unsigned, int)
RR_MIN_MAX_MIXED(unsigned long, long, unsigned long)
RR_MIN_MAX_MIXED(unsigned long, unsigned long, long)
RR_MIN_MAX_MIXED(unsigned long long, long long, unsigned long long)
RR_MIN_MAX_MIXED(unsigned long long, unsigned long long, long long)

#undef RR_MIN_MAX_MIXED

// Of a number and a NaN the number, as on the device.
inline float min(float a, float b) {
  return fminf(a, b);
}

inline float max(float a, float b) {
  return fmaxf(a, b);
}

inline double min(double a, double b) {
  return fmin(a, b);
}

inline double max(double a, double b) {
  return fmax(a, b);
}

inline double min(float a, double b) {
  return fmin(a, b);
}

inline double min(double a, float b) {
  return fmin(a, b);
}

inline double max(float a, double b) {
  return fmax(a, b);
}

inline double max(double a, float b) {
  return fmax(a, b);
}

namespace emulate {

template <typename To, typename From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

}  // namespace emulate

inline int __float_as_int(float x) {
  return emulate::same_bits<int>(x);
}

inline unsigned __float_as_uint(float x) {
  return emulate::same_bits<unsigned>(x);
}

inline float __int_as_float(int x) {
  return emulate::same_bits<float>(x);
}

inline float __uint_as_float(unsigned x) {
  return emulate::same_bits<float>(x);
}

inline long long __double_as_longlong(double x) {
  return emulate::same_bits<long long>(x);
}

inline double __longlong_as_double(long long x) {
  return emulate::same_bits<double>(x);
}

template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}

// The C library declares functions of some of these names, hence macros.
#define rsqrtf(x) (1.0f / sqrtf(x))
#define rsqrt(x) (1.0 / sqrt(x))
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __fdividef(x, y) ((x) / (y))

inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}

inline float __fmul_rn(float a, float b) {
  return a * b;
}

inline float __fadd_rn(float a, float b) {
  return a + b;
}

inline float __fsub_rn(float a, float b) {
  return a - b;
}

inline float __fdiv_rn(float a, float b) {
  return a / b;
}

inline float __fsqrt_rn(float x) {
  return sqrtf(x);
}

inline float __frcp_rn(float x) {
  return 1.0f / x;
}

inline int __float2int_rn(float x) {
  return static_cast<int>(rintf(x));
}

inline int __float2int_rz(float x) {
  return static_cast<int>(x);
}

inline int __float2int_rd(float x) {
  return static_cast<int>(floorf(x));
}

inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}

inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}

inline int __clz(int x) {
  return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}

inline int __clzll(long long x) {
  return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}

inline int __ffs(int x) {
  return __builtin_ffs(x);
}

inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}

inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1u) << (31 - i);
  return y;
}

inline int __mul24(int a, int b) {
  const auto low = [](int x) { return static_cast<int>(static_cast<unsigned>(x) << 8) >> 8; };
  return static_cast<int>(static_cast<unsigned>(low(a)) * static_cast<unsigned>(low(b)));
}

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}

inline int __mulhi(int a, int b) {
  return static_cast<int>(static_cast<int64_t>(a) * b >> 32);
}

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}

// Four bytes out of the eight of (y, x), each chosen by three bits of a digit of `digits`; the
// digit's fourth bit repeats the byte's sign.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned digits) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned digit = digits >> (4 * i) & 15u;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (digit & 7u))) & 255u;
    if (digit & 8u) byte = byte & 128u ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31u));
}

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (shift & 31u)) >> 32);
}

namespace emulate {

template <typename Combine>
unsigned each_byte(unsigned a, unsigned b, Combine combine) {
  unsigned result = 0;
  for (int i = 0; i < 32; i += 8) result |= (combine(a >> i & 255u, b >> i & 255u) & 255u) << i;
  return result;
}

}  // namespace emulate

inline unsigned __vadd4(unsigned a, unsigned b) {
  return emulate::each_byte(a, b, [](unsigned x, unsigned y) { return x + y; });
}

inline unsigned __vsub4(unsigned a, unsigned b) {
  return emulate::each_byte(a, b, [](unsigned x, unsigned y) { return x - y; });
}

inline unsigned __vsubss4(unsigned a, unsigned b) {
  return emulate::each_byte(a, b, [](unsigned x, unsigned y) {
    const int d = static_cast<int8_t>(x) - static_cast<int8_t>(y);
    return static_cast<unsigned>(std::min(127, std::max(-128, d)));
  });
}

inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  return emulate::each_byte(a, b, [](unsigned x, unsigned y) { return x == y ? 255u : 0u; });
}

inline unsigned __vcmpne4(unsigned a, unsigned b) {
  return emulate::each_byte(a, b, [](unsigned x, unsigned y) { return x != y ? 255u : 0u; });
}

#ifndef __clang__
#define __builtin_assume(condition) static_cast<void>(0)
#endif
