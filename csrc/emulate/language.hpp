// The words that CUDA adds to C++, and its vector types with the alignment that devices demand.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__ __attribute__((unused))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One block at a time runs in the process. Not thread-local: a library that is loaded later has
// little room for that.
#define __shared__ static

constexpr int warpSize = 32;

#define RR_VECTOR2(name, type, align)       \
  struct alignas(align) name {              \
    type x, y;                              \
  };                                        \
  inline name make_##name(type x, type y) { \
    return {x, y};                          \
  }

#define RR_VECTOR3(name, type)                      \
  struct name {                                     \
    type x, y, z;                                   \
  };                                                \
  inline name make_##name(type x, type y, type z) { \
    return {x, y, z};                               \
  }

#define RR_VECTOR4(name, type, align)                       \
  struct alignas(align) name {                              \
    type x, y, z, w;                                        \
  };                                                        \
  inline name make_##name(type x, type y, type z, type w) { \
    return {x, y, z, w};                                    \
  }

RR_VECTOR2(char2, signed char, 2)
RR_VECTOR2(uchar2, unsigned char, 2)
RR_VECTOR2(short2, short, 4)
RR_VECTOR2(ushort2, unsigned short, 4)
RR_VECTOR2(int2, int, 8)
RR_VECTOR2(uint2, unsigned, 8)
RR_VECTOR2(float2, float, 8)
RR_VECTOR2(double2, double, 16)
RR_VECTOR2(longlong2, long long, 16)
RR_VECTOR2(ulonglong2, unsigned long long, 16)
RR_VECTOR3(int3, int)
RR_VECTOR3(uint3, unsigned)
RR_VECTOR3(float3, float)
RR_VECTOR4(char4, signed char, 4)
RR_VECTOR4(uchar4, unsigned char, 4)
RR_VECTOR4(short4, short, 8)
RR_VECTOR4(ushort4, unsigned short, 8)
RR_VECTOR4(int4, int, 16)
RR_VECTOR4(uint4, unsigned, 16)
RR_VECTOR4(float4, float, 16)

#undef RR_VECTOR2
#undef RR_VECTOR3
#undef RR_VECTOR4

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

// __thread rather than thread_local: no call to initialise them stands before every use.
extern __thread uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern __thread uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern __thread uint3 blockDim __attribute__((tls_model("initial-exec")));
extern __thread uint3 gridDim __attribute__((tls_model("initial-exec")));
