// Rows of key and value pools, four elements at a time: fetched as they lie, made f32 later, so
// that memory is waited for while the elements before are computed with.
#pragma once

#include "kernel.cuh"
#include "pool_rows.hpp"

namespace {

// A pool at all its heads. quads: four elements of a plain type may be read at once.
struct Pool {
  const char *base, *end;
  int64_t row_bytes, head_bytes;  // from one position, one head to the next
  uint32_t dtype;
  int size;
  bool quads;

  // Types of two bytes or less, four elements of which are fetched ahead.
  __device__ bool ahead() const { return dtype != RR_F32 && quads; }
};

[[maybe_unused]] inline Pool pool_of(const rr_tensor& t) {
  const int64_t head = pool_bytes(t.dtype, t.shape[2]);
  const int64_t align = 4 * element_bytes(t.dtype);
  const char* base = static_cast<const char*>(t.data);
  return {base,
          base + t.shape[0] * t.shape[1] * head,
          head * t.shape[1],
          head,
          t.dtype,
          static_cast<int>(t.shape[2]),
          align == 0 || (head % align == 0 && reinterpret_cast<uintptr_t>(t.data) % align == 0)};
}

__device__ inline unsigned halves_at(const char* p) {
  const uint16_t* at = reinterpret_cast<const uint16_t*>(p);
  return at[0] | static_cast<unsigned>(at[1]) << 16;
}

// Where four elements are in a row: the first, and of block types their block's scale.
struct Place4 {
  int64_t at, scale;
  unsigned upper;  // of nibbles: whether they are the upper ones, in bit 16
};

// d: the first of them, a multiple of 4.
__device__ inline Place4 place4(uint32_t dtype, int d) {
  if (dtype == RR_Q8_0) return {d / 32 * 34 + 2 + d % 32, d / 32 * 34, 0};
  if (dtype == RR_Q4_0) return {d / 32 * 18 + 2 + d % 16, d / 32 * 18, (d / 16 % 2u) << 16};
  return {d * 2, 0, 0};
}

// As they lie. Of block types also the scale, and above it which nibbles.
template <uint32_t dtype>
__device__ inline uint2 fetch4(const char* row, const Place4& place) {
  if (dtype == RR_F16) return *reinterpret_cast<const uint2*>(row + place.at);
  const unsigned scale = *reinterpret_cast<const uint16_t*>(row + place.scale);
  return make_uint2(halves_at(row + place.at), scale | place.upper);
}

// Element d of a plain type.
__device__ inline float read1(const Pool& pool, const char* row, int d) {
  if (d >= pool.size) return 0.0f;
  if (pool.dtype == RR_F32) return reinterpret_cast<const float*>(row)[d];
  const uint16_t x = reinterpret_cast<const uint16_t*>(row)[d];
  return pool.dtype == RR_F16 ? half_to_float(x) : bf16_to_float(x);
}

// Elements d .. d + 3 of a plain type.
__device__ inline float4 read4(const Pool& pool, const char* row, int d) {
  if (pool.dtype == RR_F32 && pool.quads)
    return *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(row) + d);
  return make_float4(read1(pool, row, d), read1(pool, row, d + 1), read1(pool, row, d + 2),
                     read1(pool, row, d + 3));
}

__device__ inline float byte_at(unsigned four, int i) {
  return static_cast<float>(static_cast<int8_t>(four >> (8 * i)));
}

__device__ inline float nibble_at(unsigned four, int i, int shift) {
  return static_cast<float>(static_cast<int>(four >> (8 * i + shift) & 15) - 8);
}

template <uint32_t dtype>
__device__ inline float4 decode4(uint2 raw) {
  if (dtype == RR_F16)
    return make_float4(half_to_float(static_cast<uint16_t>(raw.x)),
                       half_to_float(static_cast<uint16_t>(raw.x >> 16)),
                       half_to_float(static_cast<uint16_t>(raw.y)),
                       half_to_float(static_cast<uint16_t>(raw.y >> 16)));
  if (dtype == RR_BF16)
    return make_float4(bf16_to_float(static_cast<uint16_t>(raw.x)),
                       bf16_to_float(static_cast<uint16_t>(raw.x >> 16)),
                       bf16_to_float(static_cast<uint16_t>(raw.y)),
                       bf16_to_float(static_cast<uint16_t>(raw.y >> 16)));
  const float scale = half_to_float(static_cast<uint16_t>(raw.y));
  if (dtype == RR_Q8_0)
    return make_float4(scale * byte_at(raw.x, 0), scale * byte_at(raw.x, 1),
                       scale * byte_at(raw.x, 2), scale * byte_at(raw.x, 3));
  const int shift = raw.y >> 16 ? 4 : 0;
  return make_float4(scale * nibble_at(raw.x, 0, shift), scale * nibble_at(raw.x, 1, shift),
                     scale * nibble_at(raw.x, 2, shift), scale * nibble_at(raw.x, 3, shift));
}

}  // namespace
