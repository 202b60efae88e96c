// y = x w^T for prompts, with block-quantised weights, on the warpgroups of compute capability 9.0.
//
// x is rounded to bf16 or f16 once, into the workspace, in slabs of 64 values of k that hold all
// rows of x, so that a tile's part of a slab is one copy. Two warpgroups make the products of 64
// rows of w each with a tile of rows of x: each warp decodes its own 16 rows into registers, the
// operand A, while the products of the unit before run; x is the operand B, which one more warp
// copies ahead. Blocks stay for all tiles. All of k is added in one order whatever the tile, so
// that a row of y is the same in any company.
#pragma once

#include "prompt_exact.hpp"
#include "prompt_halves.cuh"
#include "prompt_parts.cuh"
#include "prompt_products.hpp"

namespace {

template <uint32_t dtype>
constexpr bool kInHalves = dtype == RR_Q4_K || dtype == RR_Q5_K || dtype == RR_Q6_K;

template <uint32_t dtype>
constexpr bool kPlain = dtype == RR_BF16;

template <uint32_t dtype, class Tiles>
using RowsOf = std::conditional_t<
    kPlain<dtype>, PlainRows<Tiles>,
    std::conditional_t<kInHalves<dtype>, HalfRows<dtype, Tiles>, Bf16Rows<dtype, Tiles>>>;

// In how many parts x is multiplied.
template <uint32_t dtype>
constexpr int kPartsOfX = kPlain<dtype> ? 2 : 1;

// Before the first barrier: tables in shared memory that decoding asks for.
template <uint32_t dtype>
__device__ inline void prepare_decoding() {
  if constexpr (!kPlain<dtype>) prepare<Codes<dtype>>(0);
}

template <class T>
constexpr auto has_tables(int) -> decltype(T::prepare(), true) {
  return true;
}

template <class T>
constexpr bool has_tables(long) {
  return false;
}

// Bytes of static shared memory that they take, at most.
template <uint32_t dtype>
constexpr int table_bytes() {
  if constexpr (!kPlain<dtype>)
    if (has_tables<Codes<dtype>>(0)) return 4096;
  return 0;
}

// How many units of x shared memory holds beside two chunks of w for each warp.
template <uint32_t dtype>
struct PromptMemory {
  static constexpr int kW = 2 * kPromptWarps * Chunk<dtype>::warp_bytes;
  static constexpr int kBarriers = 128;
  static constexpr int kStages =
      (kPromptShared - kTilesApart - kBarriers - kW - table_bytes<dtype>()) / kPromptStage;
  static constexpr int kBytes = kTilesApart + kStages * kPromptStage + kW + kBarriers;
  static_assert(kStages >= 3 && 16 * kStages <= kBarriers, "copies run ahead");

  unsigned char *x, *w;
  uint64_t *full, *empty;

  __device__ PromptMemory() {
    unsigned char* start = dynamic_shared();
    x = start + (-reinterpret_cast<uintptr_t>(start) & (kTilesApart - 1));
    w = x + kStages * kPromptStage;
    full = reinterpret_cast<uint64_t*>(w + kW);
    empty = full + kStages;
  }
};

// A place in the ring of units of x, and the parity of its round.
template <int stages>
struct Ring {
  int stage = 0, parity = 0;

  __device__ void advance() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Copies of x: one thread.
template <uint32_t dtype, class Tiles>
__device__ inline void copy_prompt(const PromptJob<Tiles>& job, const PromptMemory<dtype>& memory) {
  Ring<PromptMemory<dtype>::kStages> ring;
  constexpr int kUnits = Chunk<dtype>::units * kPartsOfX<dtype>;
  for (int i = job.tiles.first(); i < job.tiles.number(); i = job.tiles.after(i)) {
    const PromptTile tile = job.tiles.tile(i);
    const int units = tile.chunks * kUnits;
    const unsigned bytes = tile.width * kSlabBytes;
    const uint8_t* from =
        job.x + tile.first * kUnits * job.slab + static_cast<int64_t>(tile.token) * kSlabBytes;
    for (int unit = 0; unit < units; ++unit, from += job.slab, ring.advance()) {
      barrier_wait(memory.empty + ring.stage, ring.parity ^ 1);
      barrier_expect(memory.full + ring.stage, bytes);
      bulk_copy(memory.x + ring.stage * kPromptStage, from, bytes, memory.full + ring.stage);
    }
  }
}

// silu(gate) * x, to the few last bits that products of a prompt leave open.
__device__ inline float quick_swiglu(float gate, float x) {
#ifdef RR_EMULATE
  return gate / (1.0f + expf(-gate)) * x;
#else
  return __fdividef(gate, 1.0f + __expf(-gate)) * x;
#endif
}

// A lane's sums of two neighbouring rows of w, with two of x at a time: `fours` of those of a tile,
// from number `first` on. scaled: rows of x were multiplied by a power of two.
template <bool scaled, int fours, class Tiles>
__device__ inline void store_sums(const PromptJob<Tiles>& job, const PromptTile& tile, int first,
                                  const float (&sums)[4 * fours]) {
  const PromptWeight& weight = job.weights[tile.weight];
  const int row = row_of_lane(tile), token = tile.token + 8 * first + threadIdx.x % 4 * 2;
  if (row >= weight.m) return;
#pragma unroll
  for (int i = 0; i < fours; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = token + 8 * i + j;
      if (at >= tile.end) continue;
      float2 both = make_float2(sums[4 * i + j], sums[4 * i + 2 + j]);
      if (scaled) {
        const float factor = job.x_factors[at];
        both.x *= factor;
        both.y *= factor;
      }
      float* to = weight.y + job.tiles.row_of_y(at) * job.y_row;
      if constexpr (Tiles::kGated) {
        to[row / 2] = quick_swiglu(both.x, both.y);
        continue;
      }
      to += row;
      if (weight.vector) {
        *reinterpret_cast<float2*>(to) = both;
      } else {
        to[0] = both.x;
        if (row + 1 < weight.m) to[1] = both.y;
      }
    }
}

// y of tiles whose parts are tiles of their own. Grid: such tiles, fours of a lane.
template <uint32_t dtype, class Tiles>
__global__ void __launch_bounds__(kFoursApart)
    add_prompt_parts(const __grid_constant__ PromptJob<Tiles> job) {
  enter_grid();
  const PromptTile tile =
      job.tiles.tile(job.tiles.whole + static_cast<int>(blockIdx.x) * job.tiles.parts);
  const int first = static_cast<int>(blockIdx.y) * kFoursOfAdder;
  float sums[4 * kFoursOfAdder];
  add_parts(job, tile, first, sums);
  store_sums<kInHalves<dtype>, kFoursOfAdder>(job, tile, first, sums);
}

// The operands of a unit's products, and of those of the unit that is decoded while they run.
using Operands = unsigned[2][4][4];

template <uint32_t dtype, int width>
__device__ inline void multiply_unit(float (&sums)[width / 2], const unsigned (&a)[4][4],
                                     uint64_t x) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    if constexpr (kInHalves<dtype>)
      wgmma_f16<width>(sums, a[s], operand_behind(x, 32 * s));
    else
      wgmma_bf16<width>(sums, a[s], operand_behind(x, 32 * s));
  }
}

// The warpgroup's part of a tile. a: the operands of the first unit; in the end, of the next
// tile's.
template <uint32_t dtype, int width, class Tiles>
__device__ inline void multiply_prompt_tile(const PromptJob<Tiles>& job, const PromptTile& tile,
                                            const PromptMemory<dtype>& memory,
                                            Ring<PromptMemory<dtype>::kStages>& ring,
                                            RowsOf<dtype, Tiles>& rows, Operands& a) {
  constexpr int kUnits = Chunk<dtype>::units * kPartsOfX<dtype>;
  const int lane = threadIdx.x % kWarp;
  const auto release = [&](int stage) {
    if (lane == 0) barrier_arrive(memory.empty + stage);
  };
  float sums[width / 2];
#pragma unroll
  for (int i = 0; i < width / 2; ++i) sums[i] = 0.0f;
  const uint64_t x = operand_at(memory.x);
  int before = -1;  // the stage of the unit before this one
  for (int c = 0; c < tile.chunks; ++c) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      barrier_wait(memory.full + ring.stage, ring.parity);
      hold(a[u % 2]);
      wgmma_begin();
      multiply_unit<dtype, width>(sums, a[u % 2], operand_behind(x, ring.stage * kPromptStage));
      wgmma_commit();
      wgmma_wait<1>();
      hold(a[(u + 1) % 2]);
      if (before >= 0) release(before);
      before = ring.stage;
      ring.advance();
      if (u + 1 == kUnits) rows.advance();
      rows.decode((u + 1) % kUnits, a[(u + 1) % 2]);
    }
  }
  wgmma_wait<0>();
  release(before);
  if constexpr (kInHalves<dtype>) {
#pragma unroll
    for (int i = 0; i < width / 2; ++i) sums[i] *= rows.factor(i / 2 % 2);
  }
  if constexpr (!Tiles::kChosen) {
    if (tile.parts > 1 && !leave_part<width>(job, tile, sums)) return;
  }
  store_sums<kInHalves<dtype>, width / 8>(job, tile, 0, sums);
}

// Grid: blocks that share out the tiles.
template <uint32_t dtype, class Tiles>
__global__ void __launch_bounds__(kPromptThreads, 1)
    multiply_prompt(const __grid_constant__ PromptJob<Tiles> job) {
  enter_grid();
  if (job.tiles.first() >= job.tiles.number()) return;
  const PromptMemory<dtype> memory;
  if (threadIdx.x == 0) {
    for (int i = 0; i < memory.kStages; ++i) {
      barrier_init(memory.full + i, 1);
      barrier_init(memory.empty + i, kPromptWarps);
    }
    barriers_made();
  }
  prepare_decoding<dtype>();
  __syncthreads();
  if (threadIdx.x >= kPromptWarps * kWarp) {
    keep_registers<24>();
    if (threadIdx.x == kPromptWarps * kWarp) copy_prompt<dtype>(job, memory);
  } else {
    take_registers<240>();
    Ring<PromptMemory<dtype>::kStages> ring;
    RowsOf<dtype, Tiles> rows(job, memory.w);
    Operands a;
    rows.decode(0, a[0]);
    for (int i = job.tiles.first(); i < job.tiles.number(); i = job.tiles.after(i)) {
      const PromptTile tile = job.tiles.tile(i);
      if (tile.width == 256)
        multiply_prompt_tile<dtype, 256>(job, tile, memory, ring, rows, a);
      else if (tile.width == 128)
        multiply_prompt_tile<dtype, 128>(job, tile, memory, ring, rows, a);
      else
        multiply_prompt_tile<dtype, 64>(job, tile, memory, ring, rows, a);
    }
  }
}

constexpr int64_t kFewestOfPrompt = 33;  // rows of x; fewer are left to others
// Rows of so many columns in slabs at the start of the workspace are this form of is_prepared and
// their length.
constexpr int kSlabForm = 32, kSplitSlabForm = 40, kHalfSlabForm = 48;

template <uint32_t dtype>
int64_t slab_columns(int64_t k) {
  return blocks_for(k, Chunk<dtype>::values) * Chunk<dtype>::values;
}

template <uint32_t dtype>
int prompt_chunks(int64_t k) {
  return static_cast<int>(slab_columns<dtype>(k) / Chunk<dtype>::values);
}

// Bytes of all slabs.
template <uint32_t dtype>
int64_t slab_bytes(int64_t n, int64_t k) {
  return prompt_slabs(n, slab_columns<dtype>(k) * kPartsOfX<dtype>).bytes;
}

// Bytes of slabs and of what rows of x are multiplied by.
template <uint32_t dtype>
int64_t prompt_workspace(int64_t n, int64_t k) {
  return slab_bytes<dtype>(n, k) + slab_rows(n) * 4;
}

// Writes n rows of x into the job's slabs.
template <uint32_t dtype, class Tiles>
void write_slabs(const rr_exec* exec, const float* x, int64_t x_row, int64_t n,
                 const PromptJob<Tiles>& job, SlabPlaces places) {
  auto* slabs = const_cast<uint8_t*>(job.x);
  const auto rows = static_cast<unsigned>(n);
  if constexpr (kInHalves<dtype>) {
    const bool vector = reinterpret_cast<uintptr_t>(x) % 16 == 0 && x_row % 4 == 0;
    launch_halving(exec, TensorSource{x, x_row, vector}, n, job.k, slabs, job.slab,
                   const_cast<float*>(job.x_factors), places);
  } else {
    const int64_t columns = slab_columns<dtype>(job.k);
    const auto across = static_cast<unsigned>(blocks_for(columns / 8, kMmaThreads));
    RR_LAUNCH(exec, round_slabs<kPartsOfX<dtype>>, dim3(rows, across), kMmaThreads, 0, x, x_row,
              static_cast<int64_t>(job.k), columns, slabs, job.slab, places);
  }
}

// Brings x into the workspace, unless it is there.
template <uint32_t dtype, class Tiles>
void prepare_slabs(const rr_exec* exec, const rr_tensor& x, const PromptJob<Tiles>& job) {
  constexpr int kForm = kInHalves<dtype> ? kHalfSlabForm
                        : kPlain<dtype>  ? kSplitSlabForm
                                         : kSlabForm;
  if (is_prepared(exec, x, kForm + static_cast<int>(slab_columns<dtype>(job.k)))) return;
  write_slabs<dtype>(exec, data<const float>(x), row_step(x), job.n, job, {nullptr, 1});
}

// A weight [.., M, K] of a job, and its place in rows of y.
template <uint32_t dtype>
PromptWeight prompt_weight(const rr_tensor& w, float* y, int64_t y_row) {
  const int64_t m = w.shape[w.rank - 2];
  const int64_t bytes = w.shape[w.rank - 1] / Block<dtype>::kValues * Block<dtype>::kBytes;
  const auto* from = data<const uint8_t>(w);
  const int64_t rows = w.layout == RR_LAYOUT_ROWS8 ? 8 * blocks_for(m, 8) : n_rows(w);
  const bool vector = m % 2 == 0 && y_row % 2 == 0 && reinterpret_cast<uintptr_t>(y) % 8 == 0;
  return {from, from + rows * bytes, y, static_cast<int>(m), vector};
}

// A job with w [.., M, K] and rows of y, of n rows of x in slabs at `slabs`.
template <uint32_t dtype, class Tiles>
PromptJob<Tiles> prompt_job(const rr_tensor& w, void* slabs, int64_t n, float* y, int64_t y_row) {
  const int64_t m = w.shape[w.rank - 2], k = w.shape[w.rank - 1];
  PromptJob<Tiles> job{};
  const bool packed = w.layout == RR_LAYOUT_ROWS8;
  const int64_t bytes = k / Block<dtype>::kValues * Block<dtype>::kBytes;
  job.weights[0] = prompt_weight<dtype>(w, y, y_row);
  job.w_eight = 8 * bytes;
  job.w_row = packed ? kBytesOf256<dtype> : bytes;
  job.w_skip = packed ? 7 * kBytesOf256<dtype> : 0;
  job.w_matrix = m * bytes;
  job.x = static_cast<uint8_t*>(slabs);
  job.slab = prompt_slabs(n, 0).slab;
  job.x_factors = reinterpret_cast<const float*>(job.x + slab_bytes<dtype>(n, k));
  job.y_row = y_row;
  job.n = static_cast<int>(n);
  job.k = static_cast<int>(k);
  return job;
}

template <uint32_t dtype, class Tiles>
void launch_prompt(const rr_exec* exec, const PromptJob<Tiles>& job, int blocks) {
  allow_shared(multiply_prompt<dtype, Tiles>, PromptMemory<dtype>::kBytes);
  RR_LAUNCH(exec, (multiply_prompt<dtype, Tiles>), blocks, kPromptThreads,
            PromptMemory<dtype>::kBytes, job);
}

// Bytes of sums of parts of tiles, of `takers` blocks at most if a block has a tile's parts.
inline int64_t piece_bytes(const PromptTiles& tiles, int64_t takers) {
  constexpr int64_t kOfColumn = kPromptRows * static_cast<int64_t>(sizeof(float));
  if (tiles.count == tiles.whole) return 0;
  if (tiles.gathered) return takers * tiles.split_width * kOfColumn;
  return (tiles.count - tiles.whole) * tiles.split_width * kOfColumn;
}

// Tiles of `down` times 128 rows of weights with n rows of k columns.
template <uint32_t dtype>
PromptTiles tiles_of(int64_t down, int64_t n, int64_t k, int64_t takers) {
  const int chunks = prompt_chunks<dtype>(k);
  const auto split = riverrun::split_prompt(down, chunks, 256 / Chunk<dtype>::values, takers);
  return cut_tiles(down, split, chunks, n, takers);
}

template <uint32_t dtype, class Tiles>
void launch_products(const rr_exec* exec, const riverrun::PromptProducts& of) {
  const int64_t n = n_rows(of.x), takers = cuda(exec).multiprocessors;
  auto job = prompt_job<dtype, Tiles>(*of.products[0].w, exec->workspace, n, nullptr, of.y_row);
  int begins[kMostPromptWeights] = {}, down = 0;
  for (int i = 0; i < of.count; ++i) {
    job.weights[i] = prompt_weight<dtype>(*of.products[i].w, of.products[i].y, of.y_row);
    begins[i] = down;
    down += static_cast<int>(blocks_for(job.weights[i].m, kPromptRows));
  }
  if (of.x.data) prepare_slabs<dtype>(exec, of.x, job);
  job.pieces = reinterpret_cast<float4*>(static_cast<uint8_t*>(exec->workspace) +
                                         prompt_workspace<dtype>(n, job.k));
  job.tiles = {tiles_of<dtype>(down, n, job.k, takers)};
  job.tiles.weights = of.count;
  memcpy(job.tiles.begins, begins, sizeof begins);
  launch_prompt<dtype>(exec, job, min(static_cast<int>(takers), job.tiles.count));
  const int apart = job.tiles.gathered ? 0 : job.tiles.count - job.tiles.whole;
  if (apart == 0) return;
  const dim3 grid(static_cast<unsigned>(apart / job.tiles.parts),
                  static_cast<unsigned>(job.tiles.split_width / 8 / kFoursOfAdder));
  RR_LAUNCH(exec, (add_prompt_parts<dtype, Tiles>), grid, kFoursApart, 0, job);
}

// y of several weights of a type with the same x, all of them packed by eight rows or none.
template <uint32_t dtype>
void launch_products(const rr_exec* exec, const riverrun::PromptProducts& of) {
  if constexpr (Rows8<dtype>::kInPieces)
    if (of.products[0].w->layout == RR_LAYOUT_ROWS8)
      return launch_products<dtype, PieceTiles>(exec, of);
  launch_products<dtype, PromptTiles>(exec, of);
}

template <uint32_t dtype>
void run_prompt(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  if (w.shape[0] == 0 || n_rows(x) == 0) return;
  launch_products<dtype>(exec, {x, {{&w, data<float>(y)}}, 1, row_step(y)});
}

template <uint32_t dtype>
int64_t workspace_products(int64_t n, int64_t k, int64_t down) {
  const int64_t takers = device_number(cudaDevAttrMultiProcessorCount);
  return prompt_workspace<dtype>(n, k) + piece_bytes(tiles_of<dtype>(down, n, k, takers), takers);
}

template <uint32_t dtype>
size_t workspace_prompt(const rr_node* node, int32_t) {
  const rr_tensor& w = node->inputs[1];
  return static_cast<size_t>(workspace_products<dtype>(n_rows(node->inputs[0]), w.shape[1],
                                                       blocks_for(w.shape[0], kPromptRows)));
}

// Weights as they are in the file, or packed by eight rows.
template <uint32_t dtype>
int supports_prompt(const rr_node* node, char* why, size_t size) {
  const bool packed = node->inputs[1].layout == RR_LAYOUT_ROWS8;
  if (!supports_tiles<dtype>(node, why, size, packed ? RR_LAYOUT_ROWS8 : RR_LAYOUT_PLAIN)) return 0;
  if (!serves_warpgroups()) return refuse(why, size, kWarpgroupRefusal);
  if (node->inputs[1].rank != 2) return refuse(why, size, "w needs to be a matrix");
  if (kPlain<dtype> && node->inputs[1].shape[1] % 16 != 0)
    return refuse(why, size, "w needs rows of a multiple of 16 values");
  if (n_rows(node->inputs[0]) < kFewestOfPrompt)
    return refuse(why, size, "fewer than 33 rows of x");
  return 1;
}

// How far sums may be off.
template <uint32_t dtype>
constexpr const char* kPromptBound =
    kInHalves<dtype> ? "products of f16: 1e-3 of a row's norm"
    : kPlain<dtype>  ? "x in two parts of bf16: 2e-5 of a row's norm"
                     : "products of bf16: 4e-3 of a row's norm";

}  // namespace

#define RR_PROMPT_PRODUCT(id, type)                                                      \
  RR_CUDA_KERNEL(id, riverrun::kPromptExact, "mul_mat", "wgmma", kPromptBound<type>, 20, \
                 supports_prompt<type>, workspace_prompt<type>, run_prompt<type>)        \
  namespace {                                                                            \
  riverrun::PromptKernels id##_kernels = {type,                                          \
                                          kInHalves<type>,                               \
                                          supports_prompt<type>,                         \
                                          workspace_products<type>,                      \
                                          launch_products<type>,                         \
                                          nullptr};                                      \
  [[maybe_unused]] const int id##_kernels_added = riverrun::add_kernels(id##_kernels);   \
  }
