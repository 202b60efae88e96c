// How a block of the step products shares its part of a weight out among warps, and how the bytes
// come to shared memory (mul_mat_step.cuh).
#pragma once

#include "step_codes_32.cuh"
#include "step_products.hpp"

namespace {

using riverrun::StepJob;
using riverrun::StepWeight;

constexpr int kStepUnit = 16, kStepHalf = 8;  // rows of w

// How a kernel for up to 4 * tiles rows of x is built. Blocks of up to 8 rows fit beside those of
// the next kernel.
template <int tiles_>
struct StepShape {
  static constexpr int tiles = tiles_;
  static constexpr int warps = 8, threads = warps * kWarp, resident = tiles <= 2 ? 2 : 1;
  // Sums of parts that meet at a time: 8 bytes a lane for each tile.
  static constexpr int slots = tiles == 1 ? 24 : tiles == 8 ? 40 : 32;
  static constexpr int slot = tiles * kWarp;  // in float2
  // Of shared memory, in bytes; what is left of it caches x.
  static constexpr int memory = resident == 2 ? 112 * 1024 : 192 * 1024;
  static constexpr int sums = (slots + 1) * slot * 8;
};

// How the bytes of a type come to shared memory: a block of 256 values of a unit's rows, an odd
// number of 16 bytes apart. A warp copies whole pieces of several rows at a time, `lanes` to a row,
// then the rest of all rows in one go, if it is that small.
template <uint32_t dtype, class Shape>
struct StepStage {
  using F = StepCodes<dtype>;
  static constexpr int pieces = (16 - F::kGrain + F::kBytes + 15) / 16;
  static constexpr int pitch = 16 * (pieces | 1);
  static constexpr int bytes = kStepUnit * pitch;
  static constexpr int lanes = pieces < 12 ? 8 : 16;
  static constexpr int rest = pieces % lanes * 16 <= kWarp ? pieces % lanes : 0;
  static constexpr int full = (pieces - rest + lanes - 1) / lanes * lanes;
  // 16 bytes more are read beyond the last row.
  static constexpr int room = (Shape::memory - Shape::sums - 16) / (Shape::warps * bytes);
  static constexpr int count = room < 5 ? room : 5;
  static constexpr int shared = Shape::sums + Shape::warps * count * bytes + 16;
  static_assert(count >= 2, "one stage is filled while another is read");
};

// What a block has of a weight: rows from `first` on, in units of 16 and at the end perhaps one of
// 8 or fewer; K in parts of `blocks` blocks of 256 values or one more, of which there are `longer`.
struct StepShare {
  int first, rows, units, parts, blocks, longer;

  __device__ int begin(int part) const { return part * blocks + min(part, longer); }
  __device__ int end(int part) const { return begin(part + 1); }
  __device__ int row(int unit) const { return first + unit * kStepUnit; }
  // Of a unit's rows.
  __device__ int left(int unit) const { return min(rows - unit * kStepUnit, kStepUnit); }
};

// What a warp takes one after the other: whole units, then parts of those that are left.
template <class Shape>
struct StepItem {
  int whole;         // units that are left to be taken whole
  int unit, number;  // the unit; the part's number among those that are left
  int part;          // 0 of a whole unit

  __device__ explicit StepItem(const StepShare& share)
      : whole(share.units / Shape::warps),
        unit(static_cast<int>(threadIdx.x / kWarp)),
        number(unit - Shape::warps),
        part(0) {
    if (whole == 0) next_part(share);
  }
  __device__ bool exists(const StepShare& share) const { return unit < share.units; }
  __device__ void next(const StepShare& share) {
    unit += Shape::warps;
    if (whole > 0 && --whole > 0) return;
    next_part(share);
  }
  __device__ void next_part(const StepShare& share) {
    number += Shape::warps;
    const int of_rest = number / share.parts;
    unit = share.units / Shape::warps * Shape::warps + of_rest;
    part = number - of_rest * share.parts;
  }
  // Blocks of 256 values.
  __device__ int begin(const StepShare& share) const { return share.begin(part); }
  __device__ int end(const StepShare& share) const {
    return share.end(whole > 0 ? share.parts - 1 : part);
  }
};

// What a warp fetches next.
template <uint32_t dtype, class Shape>
struct StepFetch {
  using F = StepCodes<dtype>;
  using Stage = StepStage<dtype, Shape>;
  static constexpr int kLanes = Stage::lanes, kRows = kWarp / kLanes;
  const StepWeight& w;
  const StepShare& share;
  StepItem<Shape> item;
  int left = 0, rows = 0;  // blocks and rows of the item
  // Of this lane's first row, and where the rest is fetched.
  const unsigned char *from = nullptr, *rest = nullptr;

  __device__ StepFetch(const StepWeight& weight, const StepShare& of_weight)
      : w(weight), share(of_weight), item(of_weight) {
    begin();
  }

  __device__ void begin() {
    if (!item.exists(share)) return;
    const int lane = threadIdx.x % kWarp, block = item.begin(share);
    left = item.end(share) - block;
    rows = share.left(item.unit);
    const unsigned char* unit =
        w.data + share.row(item.unit) * w.row_bytes + int64_t{block} * F::kBytes;
    from = unit + lane / kLanes * w.row_bytes + lane % kLanes * 16;
    if constexpr (Stage::rest > 0)
      rest = unit + lane / Stage::rest * w.row_bytes + (Stage::full + lane % Stage::rest) * 16;
  }

  // A piece of 16 bytes, of a row that begins at any multiple of kGrain. Memory of cards ends at
  // multiples of 16 bytes.
  __device__ void copy(unsigned char* target, const unsigned char* source) const {
    if constexpr (F::kGrain < 16) {
      source -= reinterpret_cast<uintptr_t>(source) & 15;
      if (source >= w.end) return;
    }
    async_copy16(target, source);
  }

  __device__ void next(unsigned char* stage) {
    if (left > 0) {
      const int lane = threadIdx.x % kWarp;
      const unsigned char* source = from;
      unsigned char* target = stage + lane / kLanes * Stage::pitch + lane % kLanes * 16;
#pragma unroll
      for (int r = 0; r < kStepUnit; r += kRows, source += kRows * w.row_bytes)
#pragma unroll
        for (int piece = 0; piece < Stage::full; piece += kLanes)
          if (r + lane / kLanes < rows && piece + lane % kLanes < Stage::pieces)
            copy(target + r * Stage::pitch + piece * 16, source + piece * 16);
      if constexpr (Stage::rest > 0) {
        if (lane < rows * Stage::rest)
          copy(stage + lane / Stage::rest * Stage::pitch + (Stage::full + lane % Stage::rest) * 16,
               rest);
        rest += F::kBytes;
      }
      from += F::kBytes;
      if (--left == 0) {
        item.next(share);
        begin();
      }
    }
    async_copy_commit();
  }
};

}  // namespace
