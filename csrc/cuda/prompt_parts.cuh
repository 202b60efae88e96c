// Sums of parts of a tile, of which the warp that comes last makes the tile's.
#pragma once

#include "counters.cuh"
#include "prompt_sources.cuh"

namespace {

// Where a lane's sums of a part of a tile lie, four by four.
template <int width, class Tiles>
__device__ inline float4* part_sums(const PromptJob<Tiles>& job, const PromptTile& tile, int part) {
  constexpr int kThreads = kPromptWarps * kWarp;
  const int64_t unit = tile.split * tile.parts + part;
  return job.pieces + unit * (width / 8) * kThreads + threadIdx.x;
}

// Puts a warp's sums of its part there. True where it is the last of the tile's parts.
template <int width, class Tiles>
__device__ inline bool leave_part(const PromptJob<Tiles>& job, const PromptTile& tile,
                                  const float (&sums)[width / 2]) {
  float4* to = part_sums<width>(job, tile, tile.part);
#pragma unroll
  for (int i = 0; i < width / 8; ++i)
    to[i * kPromptWarps * kWarp] =
        make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
  __syncwarp();
  int last = 0;
  if (lane_of_warp() == 0)
    last = arrives_last(job.counters + tile.split * kPromptWarps + threadIdx.x / kWarp,
                        static_cast<unsigned>(tile.parts));
  return __shfl_sync(kAllLanes, last, 0) != 0;
}

// Sums of all parts, added in the order of k, from the four number `first` on.
template <int width, class Tiles, int n>
__device__ inline void add_parts(const PromptJob<Tiles>& job, const PromptTile& tile, int first,
                                 float (&sums)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) sums[i] = 0.0f;
#pragma unroll 1
  for (int part = 0; part < tile.parts; ++part) {
    const float4* from = part_sums<width>(job, tile, part) + first * kPromptWarps * kWarp;
#pragma unroll
    for (int i = 0; i < n / 4; ++i) {
      const float4 four = __ldcg(from + i * kPromptWarps * kWarp);
      sums[4 * i] += four.x;
      sums[4 * i + 1] += four.y;
      sums[4 * i + 2] += four.z;
      sums[4 * i + 3] += four.w;
    }
  }
}

}  // namespace
