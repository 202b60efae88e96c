// Sums of parts of a tile, and how they become the tile's: from zero on, in the order of k.
#pragma once

#include "prompt_sources.cuh"

namespace {

constexpr int kFoursApart = kPromptWarps * kWarp;  // from one of a lane's fours to its next

// Where a lane's sums of a part of a tile lie, four by four: parts that a block gathers share the
// block's place.
template <class Tiles>
__device__ inline float4* part_sums(const PromptJob<Tiles>& job, const PromptTile& tile, int part) {
  const int64_t place =
      job.tiles.gathered ? static_cast<int>(blockIdx.x) : int64_t{tile.split} * tile.parts + part;
  return job.pieces + place * (tile.width / 8) * kFoursApart + threadIdx.x;
}

// Leaves a part's sums there, together with those of parts before it that the block has gathered.
// True for the last of these: sums are the tile's.
template <int width, class Tiles>
__device__ inline bool leave_part(const PromptJob<Tiles>& job, const PromptTile& tile,
                                  float (&sums)[width / 2]) {
  constexpr int kAtOnce = 8;
  float4* at = part_sums(job, tile, tile.part);
  const bool gathered = job.tiles.gathered, last = gathered && tile.part + 1 == tile.parts;
#pragma unroll
  for (int first = 0; first < width / 8; first += kAtOnce) {
    float4 before[kAtOnce] = {};
    if (gathered && tile.part > 0)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) before[i] = __ldcg(at + (first + i) * kFoursApart);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float* own = sums + 4 * (first + i);
      own[0] = before[i].x + own[0];
      own[1] = before[i].y + own[1];
      own[2] = before[i].z + own[2];
      own[3] = before[i].w + own[3];
      if (!last) at[(first + i) * kFoursApart] = make_float4(own[0], own[1], own[2], own[3]);
    }
  }
  return last;
}

constexpr int kFoursOfAdder = 2;  // fours of a lane that a block adds up

// Sums of all parts of a lane's fours from number `first` on.
template <class Tiles>
__device__ inline void add_parts(const PromptJob<Tiles>& job, const PromptTile& tile, int first,
                                 float (&sums)[4 * kFoursOfAdder]) {
  constexpr int kPartsAtOnce = 4;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
#pragma unroll 1
  for (int part = 0; part < tile.parts; part += kPartsAtOnce) {
    float4 read[kPartsAtOnce][kFoursOfAdder];
#pragma unroll
    for (int p = 0; p < kPartsAtOnce; ++p)
#pragma unroll
      for (int i = 0; i < kFoursOfAdder; ++i)
        if (part + p < tile.parts)
          read[p][i] = part_sums(job, tile, part + p)[(first + i) * kFoursApart];
#pragma unroll
    for (int p = 0; p < kPartsAtOnce; ++p)
      if (part + p < tile.parts)
#pragma unroll
        for (int i = 0; i < kFoursOfAdder; ++i) {
          sums[4 * i] += read[p][i].x;
          sums[4 * i + 1] += read[p][i].y;
          sums[4 * i + 2] += read[p][i].z;
          sums[4 * i + 3] += read[p][i].w;
        }
  }
}

}  // namespace
