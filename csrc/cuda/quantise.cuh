// Rows of x as int8 with one f32 scale per 32 values, for products with weights of block types.
//
// A slice is what one lane takes of a row: two halves of 16 values each. As a rule they are the
// halves of one block of 32; for formats whose scales go with 16 values (`apart`), slices of 256
// values are halves h of blocks b and b + 2, b and h as in place_of. 32 slices make a chunk, whose
// record holds the first halves' bytes, the second halves', and then {scale, sum} of each slice,
// or of each first and then of each second half.
#pragma once

#include "rows.cuh"

namespace {

constexpr int kChunkSlices = kWarp, kChunkValues = 32 * kChunkSlices;
constexpr int kHalfBytes = 16 * kChunkSlices;  // of a record: the halves of one side

// What stands beside a scale: the sum of the quantised values as an integer or as a float.
enum class Sums { kNone, kInt, kFloat };

// Quantised rows in the workspace.
struct Quantised {
  unsigned char* data;
  int64_t stride;  // bytes of a row
  int64_t rows;
};

template <bool apart>
constexpr int kRecordBytes = 2 * kHalfBytes + (apart ? 2 : 1) * 8 * kChunkSlices;

template <bool apart>
inline int64_t quantised_bytes(int64_t k) {
  return (k + kChunkValues - 1) / kChunkValues * kRecordBytes<apart>;
}

// Rows of x, each of `quads` times four values.
struct Floats {
  Rows rows;
  int64_t quads, count;
};

inline Floats floats_of(const rr_tensor& x) {
  return {rows_of(x), x.shape[x.rank - 1] / 4, n_rows(x)};
}

struct Place {
  int64_t slice;
  int side;
};

// Where half h of block b of a row lies.
template <bool apart>
__device__ inline Place place_of(int64_t b, int h) {
  if (!apart) return {b, h};
  const int inner = static_cast<int>(b % 8);
  return {b / 8 * 8 + inner / 4 * 4 + inner % 2 * 2 + h, inner / 2 % 2};
}

// Which half h, of blocks 4n + j and 4n + j + 2 of 256 values, a slice apart is.
struct SubBlocks {
  unsigned n, j, h;
  __device__ explicit SubBlocks(unsigned slice) : n(slice / 4), j(slice / 2 % 2), h(slice % 2) {}
  // Its first half as one of 16; the second half is 4 further on.
  __device__ unsigned sixteen() const { return 8 * n + 2 * j + h; }
};

// The scale of a block from the largest magnitude's bits, and its inverse. A NaN or an infinity in
// x makes the scale NaN, so that every product of that row is NaN; a block so small that the
// inverse would leave the range of f32 is zero.
struct BlockScale {
  float scale, inverse;
};

__device__ inline BlockScale block_scale(int bits) {
  const float peak = __int_as_float(bits);
  if (bits >= 0x7f800000) return {NAN, 0.0f};
  if (peak < 1e-36f) return {0.0f, 0.0f};
  return {peak / 127.0f, 127.0f / peak};
}

__device__ inline float4 load4(const float* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16 == 0) return *reinterpret_cast<const float4*>(p);
  return make_float4(p[0], p[1], p[2], p[3]);
}

// Four values of row t / (K / 4), by thread t of the grid; eight threads make a block. All lanes
// of a warp come here.
template <bool apart, Sums sums>
__device__ inline void quantise_part(const Floats& x, const Quantised& out, int64_t t) {
  const bool mine = t < x.quads * x.count;
  const int64_t row = mine ? t / x.quads : 0, quad = mine ? t - row * x.quads : 0;
  const float* in = row_at<const float>(x.rows, row) + 4 * quad;
  const float4 v = mine ? load4(in) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float values[4] = {v.x, v.y, v.z, v.w};
  int most = 0;
  for (float value : values) most = max(most, __float_as_int(value) & 0x7fffffff);
  for (int step = 1; step < 8; step *= 2) most = max(most, __shfl_xor_sync(kAllLanes, most, step));
  const BlockScale s = block_scale(most);
  unsigned bytes = 0;
  int sum = 0;
  for (int i = 0; i < 4; ++i) {
    // A value that is not finite has the inverse 0.
    const float scaled = s.inverse == 0.0f ? 0.0f : values[i] * s.inverse;
    const int q = static_cast<int>(rintf(scaled));
    bytes |= static_cast<unsigned>(q & 255) << (8 * i);
    sum += q;
  }
  for (int step = 1; step < (apart ? 4 : 8); step *= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (!mine) return;
  const int h = static_cast<int>(quad / 4 % 2);
  const Place at = place_of<apart>(quad / 8, h);
  unsigned char* record =
      out.data + row * out.stride + at.slice / kChunkSlices * kRecordBytes<apart>;
  const int64_t lane = at.slice % kChunkSlices;
  reinterpret_cast<unsigned*>(record)[at.side * kHalfBytes / 4 + lane * 4 + quad % 4] = bytes;
  if (quad % (apart ? 4 : 8) != 0) return;
  float2* meta = reinterpret_cast<float2*>(record + 2 * kHalfBytes);
  const float second = sums == Sums::kFloat ? static_cast<float>(sum) : __int_as_float(sum);
  meta[(apart ? at.side * kChunkSlices : 0) + lane] = make_float2(s.scale, second);
}

constexpr int kQuantiseThreads = 256;

// The number of a layout for is_prepared.
template <bool apart, Sums sums>
constexpr int kQuantisedForm = 1 + 2 * static_cast<int>(sums) + (apart ? 1 : 0);

// Blocks of kQuantiseThreads threads that quantise x.
[[maybe_unused]] inline int64_t quantise_blocks(const rr_tensor& x) {
  return blocks_for(numel(x) / 4, kQuantiseThreads);
}

template <bool apart, Sums sums>
__global__ void quantise_rows(Floats x, Quantised out) {
  enter_grid();
  quantise_part<apart, sums>(x, out, blockIdx.x * int64_t{kQuantiseThreads} + threadIdx.x);
}

}  // namespace
