// Elements of the types that cast takes, to and from floats.
#pragma once

#include "castable.hpp"
#include "copy.cuh"

namespace {

template <uint32_t dtype>
struct Element;

template <>
struct Element<RR_F32> {
  using type = float;
  static __device__ float wide(float x) { return x; }
  static __device__ float rounded(float x) { return x; }
};

template <>
struct Element<RR_F16> {
  using type = uint16_t;
  static __device__ float wide(uint16_t x) { return half_to_float(x); }
  static __device__ uint16_t rounded(float x) { return float_to_half(x); }
};

template <>
struct Element<RR_BF16> {
  using type = uint16_t;
  static __device__ float wide(uint16_t x) { return bf16_to_float(x); }
  static __device__ uint16_t rounded(float x) { return float_to_bf16(x); }
};

template <>
struct Element<RR_I32> {
  using type = int32_t;
  static __device__ float wide(int32_t x) { return static_cast<float>(x); }
  // Towards zero, held to the range of i32; NaN gives 0.
  static __device__ int32_t rounded(float x) {
    if (!(x == x)) return 0;
    if (x >= 2147483648.0f) return INT32_MAX;
    if (x < -2147483648.0f) return INT32_MIN;
    return static_cast<int32_t>(x);
  }
};

// The element at p as a float, of a type known at run time.
__device__ inline float element(uint32_t dtype, const char* p) {
  switch (dtype) {
    case RR_F32:
      return *reinterpret_cast<const float*>(p);
    case RR_F16:
      return half_to_float(*reinterpret_cast<const uint16_t*>(p));
    case RR_BF16:
      return bf16_to_float(*reinterpret_cast<const uint16_t*>(p));
    default:
      return static_cast<float>(*reinterpret_cast<const int32_t*>(p));
  }
}

}  // namespace
