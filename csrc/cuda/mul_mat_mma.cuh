// y = x w^T with block-quantised weights on tensor cores, for many rows of x at once.
//
// x is rounded to bf16 once, into the workspace. A block of eight warps makes the products of 128
// rows of w, 16 a warp, with up to 128 rows of x. Bytes of w come to shared memory as they are;
// each warp decodes its own rows into registers, in the very layout of the products' operand, so
// that every weight is decoded once a block and never written. Copies run ahead by two units of 64
// values of k. Where blocks are too few to fill a card, k is split over several, whose sums are
// added in ascending k.
#pragma once

#include "mul_mat_mma_codes.cuh"

namespace {

constexpr int kMmaThreads = 256, kMmaWarps = kMmaThreads / kWarp;
constexpr int kRowsOfWarp = 16, kRowsOfBlock = kRowsOfWarp * kMmaWarps;
constexpr int kUnit = 64;               // values of k that are multiplied between two barriers
constexpr int kUnitBytes = 2 * kUnit;   // of one row of x
constexpr int kStages = 3;              // units of x that shared memory holds
constexpr int64_t kFewestRows = 9;      // of x; fewer are as fast one by one
constexpr int64_t kEnoughBlocks = 200;  // for a card of some 130 multiprocessors
constexpr int64_t kWantedBlocks = 264;  // two for each
constexpr int64_t kMostSplits = 16;
constexpr int64_t kMostOfAxis = 1 << 30;

// What is fetched of a row of w at a time, and how it lies in shared memory: at the same distance
// from a multiple of 16 bytes as in the file, in odd multiples of 16, so that eight rows start in
// different banks.
template <uint32_t dtype>
struct Chunk {
  static constexpr int values = Block<dtype>::kValues < 128 ? 128 : Block<dtype>::kValues;
  static constexpr int units = values / kUnit;
  static constexpr int bytes = values / Block<dtype>::kValues * Block<dtype>::kBytes;
  static constexpr int lowest = Block<dtype>::kBytes & -Block<dtype>::kBytes;
  static constexpr int grain = lowest < 16 ? lowest : 16;  // what the bytes' addresses divide by
  static constexpr int pieces = (16 - grain + bytes + 15) / 16;
  static constexpr int pitch = 16 * (pieces | 1);
  static constexpr int warp_bytes = kRowsOfWarp * pitch;
  static_assert(kStages <= units + 1, "a chunk is asked for while the one before is multiplied");
};

template <uint32_t dtype, int tokens>
constexpr int mma_shared() {
  return kStages * tokens * kUnitBytes + 2 * kMmaWarps * Chunk<dtype>::warp_bytes;
}

struct MmaJob {
  const uint8_t *w, *w_end;
  int64_t w_row;      // bytes
  const uint16_t* x;  // bf16, its columns in the order of `operand_order`
  int64_t x_row;      // values
  float* y;
  int64_t y_row, y_split;  // values; of a split's sums, if there are several
  int n, m, k;
  int units;    // of one split
  bool vector;  // y takes stores of 16 bytes
  // Where weights are chosen: each tile's weight, or -1 for no tile; of each of its rows the row of
  // y, or -1; bytes of a weight.
  const int *weights, *order;
  int64_t w_matrix;
};

// Position p of 16 in an operand row holds value 4t to 4t + 3 of lane t: two at 2t, two at 8 + 2t.
__device__ inline int operand_order(int p) {
  return p % 8 / 2 * 4 + p / 8 * 2 + p % 2;
}

// Of 16 rows of w, the one in column g of product j: a lane's four columns are then neighbours.
__device__ inline int operand_row(int j, int g) {
  return g / 2 * 4 + 2 * j + g % 2;
}

// Eight values of a row of x, from column `at` on, to `out`; columns beyond k are zero.
__device__ inline void round_eight(const float* in, int64_t k, int64_t at, void* out) {
  unsigned pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t from = at / 16 * 16 + operand_order(static_cast<int>(at % 16) + 2 * i);
    pair[i] = from < k ? pack_bf16(in[from], in[from + 1]) : 0;
  }
  *static_cast<uint4*>(out) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

// Rows of so many bf16 at the start of the workspace are this form of is_prepared and their length.
constexpr int kRoundedForm = 16;

// Grid: rows of x, columns.
__global__ void __launch_bounds__(kMmaThreads)
    round_x(const float* x, int64_t x_row, int64_t k, uint16_t* out, int64_t out_row) {
  enter_grid();
  const int64_t at = 8 * (static_cast<int64_t>(blockIdx.y) * kMmaThreads + threadIdx.x);
  if (at < out_row) round_eight(x + blockIdx.x * x_row, k, at, out + blockIdx.x * out_row + at);
}

// Rows of 128 bytes, whose eight pieces of 16 are exchanged so that eight rows' same piece, as
// load_matrix4 asks for it, lies in different banks.
__device__ inline int swizzled(int row, int piece) {
  return row * kUnitBytes + (piece ^ (row & 7)) * 16;
}

// A unit of the block's rows of x, of which `from` is this thread's place in the first.
template <int tokens>
__device__ inline void fetch_x(const MmaJob& job, const uint16_t* from, unsigned char* to) {
  constexpr int kStep = kMmaThreads / 8;
  to += swizzled(threadIdx.x / 8, threadIdx.x % 8);
#pragma unroll
  for (int i = 0; i < tokens / kStep; ++i)
    async_copy16(to + i * kStep * kUnitBytes, from + i * kStep * job.x_row);
}

__device__ inline int misalignment(const uint8_t* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) & 15);
}

// One row's part of a chunk that starts at `start`, by four lanes.
template <uint32_t dtype>
__device__ inline void fetch_w(const uint8_t* start, const uint8_t* end, unsigned char* to, int t) {
  constexpr int kPieces = Chunk<dtype>::pieces;
  constexpr bool kWhole = Chunk<dtype>::bytes == 16 * kPieces;  // nothing beyond the chunk
  const uint8_t* from = kWhole ? start : start - misalignment(start);
  if (kWhole || from + 16 * kPieces <= end) {
#pragma unroll
    for (int piece = 0; piece < kPieces; piece += 4)
      if (piece + 4 <= kPieces || t < kPieces % 4)
        async_copy16(to + 16 * (piece + t), from + 16 * (piece + t));
  } else {
#pragma unroll 1
    for (int i = t; i < 16 * kPieces && from + i < end; i += 4) to[i] = from[i];
  }
}

// Step s of a unit's 16 values of k as the operand of one column.
template <bool wide>
__device__ inline void decode_step(const Unit& unit, int s, unsigned (&b)[2]) {
  float value[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    value[i] = fmaf(Bias<wide>::code(unit.codes[s], i), unit.scale[s], unit.offset[s]);
  b[0] = pack_bf16(value[0], value[1]);
  b[1] = pack_bf16(value[2], value[3]);
}

// Adds one unit's products: of `steps` times 16 values of k.
template <bool wide, int tokens>
__device__ inline void multiply(const Unit (&unit)[2], const unsigned char* x, int steps,
                                float (&sums)[tokens / 16][2][4]) {
  const int lane = threadIdx.x % kWarp, row = lane % 16;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    if (s >= steps) continue;
    unsigned b[2][2];
    decode_step<wide>(unit[0], s, b[0]);
    decode_step<wide>(unit[1], s, b[1]);
    const unsigned char* from = x + swizzled(row, 2 * s + lane / 16);
#pragma unroll
    for (int i = 0; i < tokens / 16; ++i) {
      unsigned a[4];
      load_matrix4(a, from + 16 * i * kUnitBytes);
      mma_bf16(sums[i][0], a, b[0]);
      mma_bf16(sums[i][1], a, b[1]);
    }
  }
}

// A lane's sums of one row of x: four neighbouring rows of w.
__device__ inline void store_sums(const MmaJob& job, int token, int at, float4 sums) {
  if (token < 0 || token >= job.n || at >= job.m) return;
  float* to = job.y + blockIdx.z * job.y_split + token * job.y_row + at;
  if (job.vector) {
    *reinterpret_cast<float4*>(to) = sums;
    return;
  }
  to[0] = sums.x;
  if (at + 1 < job.m) to[1] = sums.y;
  if (at + 2 < job.m) to[2] = sums.z;
  if (at + 3 < job.m) to[3] = sums.w;
}

// Grid: tiles of rows of x, of rows of w, splits of k. chosen: each tile of x has its own weight.
template <uint32_t dtype, int tokens, bool chosen>
__global__ void __launch_bounds__(kMmaThreads, 2) multiply_tile(MmaJob job) {
  enter_grid();
  using C = Chunk<dtype>;
  constexpr int kStage = tokens * kUnitBytes;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int row = static_cast<int>(blockIdx.y) * kRowsOfBlock + warp * kRowsOfWarp;
  const int first = static_cast<int>(blockIdx.z) * job.units;
  const int last = min(first + job.units, (job.k + kUnit - 1) / kUnit);
  const int weight = chosen ? job.weights[blockIdx.x] : 0;
  if (weight < 0) return;
  unsigned char* xs = dynamic_shared();
  unsigned char* ws = xs + kStages * kStage + warp * 2 * C::warp_bytes + g * C::pitch;

  const uint16_t* x = job.x + (blockIdx.x * tokens + threadIdx.x / 8) * job.x_row + first * kUnit +
                      threadIdx.x % 8 * 8;
  const uint8_t* w[2];
  int at[2];  // of the chunk that is multiplied, in shared memory
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    // Rows beyond the last are the last.
    w[j] = job.w + (chosen ? weight * job.w_matrix : 0) +
           min(row + operand_row(j, g), job.m - 1) * job.w_row + first / C::units * C::bytes;
    at[j] = misalignment(w[j]);
  }
  const auto fetch_chunk = [&](unsigned char* to) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      fetch_w<dtype>(w[j], job.w_end, to + 8 * j * C::pitch, t);
      w[j] += C::bytes;
    }
  };
  fetch_chunk(ws);
  prepare<Codes<dtype>>(0);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (first + i < last) fetch_x<tokens>(job, x + i * kUnit, xs + i * kStage);
    async_copy_commit();
  }
  x += (kStages - 1) * kUnit;

  float sums[tokens / 16][2][4] = {};
  int stage = 0, side = 0;
  for (int unit = first; unit < last; side ^= 1) {
#pragma unroll
    for (int u = 0; u < C::units && unit < last; ++u, ++unit, x += kUnit) {
      async_copy_wait<kStages - 2>();
      __syncthreads();
      const int free = stage == 0 ? kStages - 1 : stage - 1;
      if (unit + kStages - 1 < last) {
        fetch_x<tokens>(job, x, xs + free * kStage);
        if (u == C::units - kStages + 1) fetch_chunk(ws + (side ^ 1) * C::warp_bytes);
      }
      async_copy_commit();
      if (row < job.m) {
        Unit taken[2];
#pragma unroll
        for (int j = 0; j < 2; ++j)
          Codes<dtype>::take(ws + side * C::warp_bytes + 8 * j * C::pitch + at[j], u, t, taken[j]);
        const int steps = C::values < 256 && job.k - unit * kUnit < kUnit ? 2 : 4;
        multiply<Codes<dtype>::wide, tokens>(taken, xs + stage * kStage, steps, sums);
      }
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) at[j] = (at[j] + C::bytes) & 15;
  }
  const int token = static_cast<int>(blockIdx.x) * tokens + g;
#pragma unroll
  for (int i = 0; i < 2 * (tokens / 16); ++i) {
    const float *a = sums[i / 2][0] + i % 2 * 2, *b = sums[i / 2][1] + i % 2 * 2;
    const int at = token + 8 * i;
    store_sums(job, chosen ? job.order[at] : at, row + 4 * t, make_float4(a[0], a[1], b[0], b[1]));
  }
}

// y = the sum of the splits' sums.
__global__ void __launch_bounds__(kMmaThreads)
    add_splits(MmaJob job, float* y, int64_t y_row, int splits) {
  enter_grid();
  const int64_t at = static_cast<int64_t>(blockIdx.y) * kMmaThreads + threadIdx.x;
  if (at >= job.m) return;
  const float* from = job.y + blockIdx.x * job.y_row + at;
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) sum += from[s * job.y_split];
  y[blockIdx.x * y_row + at] = sum;
}

// How a product is cut. Workspace: x, whose rows fill tiles, then the splits' sums.
struct MmaCut {
  int64_t n, m, k, x_row, splits, units;
  int tokens;

  int64_t x_bytes() const { return blocks_for(n, tokens) * tokens * x_row * 2; }
  int64_t workspace() const { return x_bytes() + (splits > 1 ? splits * n * m * 4 : 0); }
};

inline MmaCut cut_mma(const rr_node* node, int64_t chunk_values) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1];
  MmaCut cut{n_rows(x), w.shape[0], w.shape[1], 0, 1, 0, 32};
  const int64_t chunks = blocks_for(cut.k, chunk_values);
  const int64_t down = blocks_for(cut.m, kRowsOfBlock);
  cut.x_row = blocks_for(cut.k, kUnit) * kUnit;
  if (cut.n > 32) cut.tokens = 64;
  if (cut.n > 64 && down * blocks_for(cut.n, 128) >= kEnoughBlocks) cut.tokens = 128;
  const int64_t tiles = down * blocks_for(cut.n, cut.tokens);
  if (tiles > 0) cut.splits = min(min(kWantedBlocks / tiles, chunks / 2), kMostSplits);
  if (cut.splits < 1) cut.splits = 1;
  const int64_t each = blocks_for(chunks, cut.splits);
  cut.splits = blocks_for(chunks, each);
  cut.units = each * (chunk_values / kUnit);
  return cut;
}

// The current device's.
inline int device_number(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

template <uint32_t dtype, int tokens, bool chosen>
void launch_tiles(const rr_exec* exec, const MmaJob& job, int64_t tiles, int64_t splits) {
  constexpr int kBytes = mma_shared<dtype, tokens>();
  const dim3 grid(static_cast<unsigned>(tiles),
                  static_cast<unsigned>(blocks_for(job.m, kRowsOfBlock)),
                  static_cast<unsigned>(splits));
  allow_shared(multiply_tile<dtype, tokens, chosen>, kBytes);
  RR_LAUNCH(exec, (multiply_tile<dtype, tokens, chosen>), grid, kMmaThreads, kBytes, job);
}

// Values from one row to the next; -1 where rows are not evenly spaced.
inline int64_t row_step(const rr_tensor& t) {
  int64_t step = 0, rows = 1;
  for (int i = t.rank - 2; i >= 0; --i) {
    if (t.shape[i] == 1) continue;
    if (rows == 1) step = t.strides[i];
    if (t.strides[i] != step * rows) return -1;
    rows *= t.shape[i];
  }
  return step / 4;
}

inline bool takes_vectors(const MmaJob& job) {
  return job.m % 4 == 0 && job.y_row % 4 == 0 && reinterpret_cast<uintptr_t>(job.y) % 16 == 0;
}

template <uint32_t dtype>
void run_mma(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  const MmaCut cut = cut_mma(node, Chunk<dtype>::values);
  if (cut.m == 0 || cut.n == 0) return;
  auto* memory = static_cast<uint8_t*>(exec->workspace);
  auto* rounded = reinterpret_cast<uint16_t*>(memory);
  const auto n = static_cast<unsigned>(cut.n);

  const auto blocks = static_cast<unsigned>(blocks_for(cut.x_row / 8, kMmaThreads));
  if (!is_prepared(exec, x, kRoundedForm + static_cast<int>(cut.x_row)))
    RR_LAUNCH(exec, round_x, dim3(n, blocks), kMmaThreads, 0, data<const float>(x), row_step(x),
              cut.k, rounded, cut.x_row);

  MmaJob job{};
  job.w = data<const uint8_t>(w);
  job.w_row = cut.k / Block<dtype>::kValues * Block<dtype>::kBytes;
  job.w_end = job.w + cut.m * job.w_row;
  job.x = rounded;
  job.x_row = cut.x_row;
  const bool split = cut.splits > 1;
  job.y = split ? reinterpret_cast<float*>(memory + cut.x_bytes()) : data<float>(y);
  job.y_row = split ? cut.m : row_step(y);
  job.y_split = cut.n * cut.m;
  job.n = static_cast<int>(cut.n);
  job.m = static_cast<int>(cut.m);
  job.k = static_cast<int>(cut.k);
  job.units = static_cast<int>(cut.units);
  job.vector = takes_vectors(job);
  const bool fits =
      mma_shared<dtype, 128>() <= device_number(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (cut.tokens == 32)
    launch_tiles<dtype, 32, false>(exec, job, blocks_for(cut.n, 32), cut.splits);
  else if (cut.tokens == 64 || !fits)
    launch_tiles<dtype, 64, false>(exec, job, blocks_for(cut.n, 64), cut.splits);
  else
    launch_tiles<dtype, 128, false>(exec, job, blocks_for(cut.n, 128), cut.splits);

  if (!split) return;
  const dim3 all(n, static_cast<unsigned>(blocks_for(cut.m, kMmaThreads)));
  RR_LAUNCH(exec, add_splits, all, kMmaThreads, 0, job, data<float>(y), row_step(y),
            static_cast<int>(cut.splits));
}

template <uint32_t dtype>
size_t workspace_mma(const rr_node* node, int32_t) {
  return static_cast<size_t>(cut_mma(node, Chunk<dtype>::values).workspace());
}

// What all products of this kind ask of x, y, the weight's type and layout, and the device.
template <uint32_t dtype>
int supports_tiles(const rr_node* node, char* why, size_t size, uint32_t layout = RR_LAYOUT_PLAIN) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  if (w.dtype != dtype || w.layout != layout) return refuse(why, size, "another type of weight");
  if (x.dtype != RR_F32 || !dense_tail(x, 1) || !dense_tail(y, 1))
    return refuse(why, size, "x and y need dense f32 rows");
  if (row_step(x) < 0 || row_step(y) < 0)
    return refuse(why, size, "x and y need evenly spaced rows");
  for (int i = 0; i < w.rank; ++i)
    if (n_rows(y) > kMostOfAxis || w.shape[i] > kMostOfAxis) return refuse(why, size, "too large");
  const int64_t k = w.shape[w.rank - 1];
  if (k % Block<dtype>::kValues != 0 || k == 0)
    return refuse(why, size, "w needs rows of whole blocks");
  if (device_number(cudaDevAttrComputeCapabilityMajor) < 8)
    return refuse(why, size, "needs compute capability 8.0");
  return 1;
}

template <uint32_t dtype>
int supports_mma(const rr_node* node, char* why, size_t size) {
  if (!supports_tiles<dtype>(node, why, size)) return 0;
  if (node->inputs[1].rank != 2) return refuse(why, size, "w needs to be a matrix");
  if (n_rows(node->inputs[0]) < kFewestRows)
    return refuse(why, size, "too few rows for tensor cores");
  return 1;
}

}  // namespace
