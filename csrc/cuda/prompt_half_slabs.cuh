// Rows of x rounded to halves, as prompts' products take them.
#pragma once

#include "fragments.cuh"
#include "prompt_rows.cuh"

namespace {

constexpr int kHalvesBlock = 256, kHalvesKept = 5;

// 2^n such that it brings a value of this size, as bits of a float without sign, to 2^14 or more
// and below 2^15, or nearer to that; and 2^-n.
__device__ inline float power_for(unsigned size) {
  return __uint_as_float((268 - max(size >> 23, 15u)) << 23);
}

__device__ inline float inverse_power_for(unsigned size) {
  return __uint_as_float((max(size >> 23, 15u) - 14) << 23);
}

__device__ inline float inverse_of_power(float power) {
  return __uint_as_float((254u << 23) - __float_as_uint(power));
}

struct Unscaled {
  __device__ void operator()(float4&, int) const {}
};

// What a lane's four values are made of.
struct Fetched {
  float4 first, second;
};

// Rows as a tensor has them. Like every source of halve_slabs: `fetch` reads what a lane's four
// values of row `row` from value `at` on are made of, and computes nothing, so that nothing waits
// before all is asked for; `make` makes them, of 128 that its warp has together; `scale_of`, what
// is done to them then, given all of the block's by `each`.
struct TensorSource {
  const float* x;
  int64_t x_row;
  bool vector;  // rows begin at multiples of 16 bytes

  __device__ void fetch(int row, int at, Fetched& to) const {
    const float* from = x + row * x_row + at;
    to.first = vector ? *reinterpret_cast<const float4*>(from)
                      : make_float4(from[0], from[1], from[2], from[3]);
  }

  __device__ float4 make(int, const Fetched& from) const { return from.first; }

  template <int threads, class Each>
  __device__ Unscaled scale_of(int, const Each&) const {
    return {};
  }
};

// Rounds a row into slabs, in the order of fragments.cuh, and puts the inverse of its power of two
// after the slabs. A NaN or infinity stays what it is. Grid: rows.
template <int threads, class Source>
__global__ void __launch_bounds__(threads)
    halve_slabs(const __grid_constant__ Source source, int k, uint8_t* out, int64_t slab,
                float* inverses, SlabPlaces places) {
  enter_grid();
  constexpr int kWarps = threads / kWarp;
  __shared__ unsigned most[kWarps];
  __shared__ __align__(16) unsigned staged[kWarps][kHalvesBlock / 2];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int row = static_cast<int>(blockIdx.x), blocks = k / kHalvesBlock;
  const auto place = [&](int block, int half) {
    return block * kHalvesBlock + half * kHalvesBlock / 2 + 4 * lane;
  };
  const auto read = [&](int block, int half) {
    Fetched from = {};
    source.fetch(row, place(block, half), from);
    return source.make(place(block, half), from);
  };
  float4 kept[kHalvesKept][2];  // blocks of the warp; those beyond are read again
  const auto each = [&](const auto& take) {
#pragma unroll
    for (int i = 0; i < kHalvesKept; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (warp + i * kWarps < blocks) take(kept[i][half], place(warp + i * kWarps, half));
    for (int block = warp + kHalvesKept * kWarps; block < blocks; block += kWarps)
      for (int half = 0; half < 2; ++half) {
        const int at = place(block, half);
        float4 v = read(block, half);
        take(v, at);
      }
  };
  Fetched fetched[kHalvesKept][2] = {};
#pragma unroll
  for (int i = 0; i < kHalvesKept; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (warp + i * kWarps < blocks)
        source.fetch(row, place(warp + i * kWarps, half), fetched[i][half]);
#pragma unroll
  for (int i = 0; i < kHalvesKept; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (warp + i * kWarps < blocks)
        kept[i][half] = source.make(place(warp + i * kWarps, half), fetched[i][half]);
  const auto scale = source.template scale_of<threads>(k, each);
  unsigned size = 0;
  each([&](float4& v, int at) {
    scale(v, at);
    for (const float value : {v.x, v.y, v.z, v.w})
      size = max(size, __float_as_uint(value) & 0x7fffffffu);
  });
  size = __reduce_max_sync(kAllLanes, size);
  if (lane == 0) most[warp] = size;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) size = max(size, most[i]);
  for (int i = threadIdx.x; i < places.copies; i += threads)
    if (const int at = places.row(row, i); at >= 0) inverses[at] = inverse_power_for(size);
  const float power = power_for(size);
  uint8_t* to = out + lane / 8 * slab;
  const auto write = [&](int block, const float4& first, const float4& second) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4& v = half ? second : first;
      const int four = lane + half * kWarp, t = four / 16, step = four % 8 * 2 + four / 8 % 2;
      staged[warp][8 * step + t] = pack_f16(v.x * power, v.z * power);
      staged[warp][8 * step + 4 + t] = pack_f16(v.y * power, v.w * power);
    }
    __syncwarp();
    const uint4 piece = *reinterpret_cast<const uint4*>(&staged[warp][4 * lane]);
    for (int i = 0; i < places.copies; ++i)
      if (const int at = places.row(row, i); at >= 0)
        *reinterpret_cast<uint4*>(to + block * 4 * slab + piece_of_slab(at, lane % 8)) = piece;
    __syncwarp();
  };
#pragma unroll
  for (int i = 0; i < kHalvesKept; ++i)
    if (warp + i * kWarps < blocks) write(warp + i * kWarps, kept[i][0], kept[i][1]);
  for (int block = warp + kHalvesKept * kWarps; block < blocks; block += kWarps) {
    float4 v[2];
    for (int half = 0; half < 2; ++half) {
      v[half] = read(block, half);
      scale(v[half], place(block, half));
    }
    write(block, v[0], v[1]);
  }
}

// One launch for n rows of k values.
template <class Source>
void launch_halving(const rr_exec* exec, const Source& source, int64_t n, int k, uint8_t* slabs,
                    int64_t slab, float* inverses, SlabPlaces places) {
  const auto launch = [&](auto kernel, int threads) {
    RR_LAUNCH(exec, kernel, static_cast<unsigned>(n), threads, 0, source, k, slabs, slab, inverses,
              places);
  };
  if (k <= 4 * kHalvesBlock)
    launch(halve_slabs<128, Source>, 128);
  else if (k <= kHalvesKept * 8 * kHalvesBlock)
    launch(halve_slabs<256, Source>, 256);
  else
    launch(halve_slabs<512, Source>, 512);
}

}  // namespace
