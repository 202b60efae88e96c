// y = x w^T for prompts, with block-quantised weights, on the warpgroups of compute capability 9.0.
//
// x is rounded to bf16 once, into the workspace, in slabs of 64 values of k that hold all rows of
// x, so that a tile's part of a slab is one copy. Two warpgroups make the products of 64 rows of w
// each with a tile of rows of x: each warp decodes its own 16 rows into registers, the operand A,
// while the products of the unit before run; x is the operand B, which one more warp copies ahead.
// Blocks stay for all tiles. All of k is added in one order whatever the tile, so that a row of y
// is the same in any company.
#pragma once

#include "mul_mat_mma.cuh"
#include "prompt_tiles.cuh"
#include "wgmma.cuh"

namespace {

constexpr int kPromptWarps = 8, kPromptThreads = kPromptWarps * kWarp + kWarpgroup;
constexpr int kPromptRows = kPromptWarps * kRowsOfWarp;  // of w that a block takes
constexpr int kPromptStage = kWidest * kSlabBytes;
constexpr int kPromptShared = 227 * 1024;
constexpr int kTilesApart = 1024;  // what the address of a tile of x divides by

struct PromptJob {
  const uint8_t *w, *w_end;
  int64_t w_row;     // bytes
  const uint8_t* x;  // slabs of bf16
  int64_t slab;      // bytes
  float* y;
  int64_t y_row;  // values
  int n, m, k;
  int chunks;  // of k
  PromptTiles tiles;
  bool vector;  // y takes stores of 8 bytes
};

// Bytes of static shared memory that prepare() fills, at most.
template <class T>
constexpr auto grid_bytes(int) -> decltype(T::prepare(), 0) {
  return 4096;
}

template <class T>
constexpr int grid_bytes(long) {
  return 0;
}

// How many units of x shared memory holds beside two chunks of w for each warp.
template <uint32_t dtype>
struct PromptMemory {
  static constexpr int kW = 2 * kPromptWarps * Chunk<dtype>::warp_bytes;
  static constexpr int kBarriers = 128;
  static constexpr int kStages =
      (kPromptShared - kTilesApart - kBarriers - kW - grid_bytes<Codes<dtype>>(0)) / kPromptStage;
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

// Rounds rows of x into slabs. Grid: rows of x, columns.
__global__ void __launch_bounds__(kMmaThreads)
    round_slabs(const float* x, int64_t x_row, int64_t k, int64_t columns, uint8_t* out,
                int64_t slab) {
  enter_grid();
  const int64_t piece = static_cast<int64_t>(blockIdx.y) * kMmaThreads + threadIdx.x;
  if (8 * piece >= columns) return;
  const int row = static_cast<int>(blockIdx.x);
  uint8_t* to = out + piece / 8 * slab + static_cast<int64_t>(row / 8) * kTilesApart +
                swizzled(row % 8, static_cast<int>(piece % 8));
  round_eight(x + row * x_row, k, 8 * piece, to);
}

// Copies of x: one thread.
template <uint32_t dtype>
__device__ inline void copy_prompt(const PromptJob& job, const PromptMemory<dtype>& memory) {
  Ring<PromptMemory<dtype>::kStages> ring;
  const int units = job.chunks * Chunk<dtype>::units;
  for (int i = blockIdx.x; i < job.tiles.count; i += gridDim.x) {
    const PromptTile tile = job.tiles.tile(i);
    const unsigned bytes = tile.width * kSlabBytes;
    const uint8_t* from = job.x + static_cast<int64_t>(tile.token) * kSlabBytes;
    for (int unit = 0; unit < units; ++unit, from += job.slab, ring.advance()) {
      barrier_wait(memory.empty + ring.stage, ring.parity ^ 1);
      barrier_expect(memory.full + ring.stage, bytes);
      bulk_copy(memory.x + ring.stage * kPromptStage, from, bytes, memory.full + ring.stage);
    }
  }
}

// A warp's 16 rows of w, through all of its tiles.
template <uint32_t dtype>
class PromptRows {
  using C = Chunk<dtype>;

 public:
  __device__ PromptRows(const PromptJob& job, unsigned char* shared)
      : job_(job), next_(static_cast<int>(blockIdx.x)) {
    const int warp = threadIdx.x / kWarp;
    shared_ = shared + warp * 2 * C::warp_bytes + lane() / 4 * C::pitch;
    fetch(shared_ + C::warp_bytes);
    advance();
  }

  // The first of the lane's two neighbouring rows.
  __device__ int row(const PromptTile& tile) const {
    return tile.down * kPromptRows + static_cast<int>(threadIdx.x) / kWarp * kRowsOfWarp +
           lane() / 4 * 2;
  }

  // Goes on to the next chunk, and asks for the one after it.
  __device__ void advance() {
    async_copy_wait<0>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2; ++j) at_[j] = next_at_[j];
    side_ ^= 1;
    fetch(shared_ + (side_ ^ 1) * C::warp_bytes);
  }

  // Unit u of the chunk as operands of four products. steps: of 16 values that the rows have there.
  __device__ void decode(int u, int steps, unsigned (&a)[4][4]) const {
    Unit taken[2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
      Codes<dtype>::take(shared_ + side_ * C::warp_bytes + 8 * j * C::pitch + at_[j], u, lane() % 4,
                         taken[j]);
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        unsigned b[2];
        decode_step<Codes<dtype>::wide>(taken[j], s, b);
        const bool there = C::values == 256 || s < steps;
        a[s][j] = there ? b[0] : 0;
        a[s][j + 2] = there ? b[1] : 0;
      }
  }

 private:
  __device__ static int lane() { return threadIdx.x % kWarp; }

  __device__ void fetch(unsigned char* to) {
    if (next_ < job_.tiles.count) {
      if (chunk_ == 0) start();
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        next_at_[j] = C::grain == 16 ? 0 : misalignment(w_[j]);
        fetch_w<dtype>(w_[j], job_.w_end, to + 8 * j * C::pitch, lane() % 4);
        w_[j] += C::bytes;
      }
      if (++chunk_ == job_.chunks) {
        chunk_ = 0;
        next_ += static_cast<int>(gridDim.x);
      }
    }
    async_copy_commit();
  }

  // Rows beyond the last are the last.
  __device__ void start() {
    const int first = row(job_.tiles.tile(next_));
#pragma unroll
    for (int j = 0; j < 2; ++j) w_[j] = job_.w + min(first + j, job_.m - 1) * job_.w_row;
  }

  const PromptJob& job_;
  unsigned char* shared_;
  const uint8_t* w_[2];
  int next_, chunk_ = 0;  // what is fetched next
  int side_ = 0, at_[2], next_at_[2] = {};
};

// A lane's sums of two neighbouring rows of w, with two of x at a time.
template <int width>
__device__ inline void store_tile(const PromptJob& job, int row, int token,
                                  const float (&sums)[width / 2]) {
  if (row >= job.m) return;
#pragma unroll
  for (int i = 0; i < width / 8; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = token + 8 * i + j;
      if (at >= job.n) continue;
      float* to = job.y + at * job.y_row + row;
      if (job.vector) {
        *reinterpret_cast<float2*>(to) = make_float2(sums[4 * i + j], sums[4 * i + 2 + j]);
      } else {
        to[0] = sums[4 * i + j];
        if (row + 1 < job.m) to[1] = sums[4 * i + 2 + j];
      }
    }
}

// The warpgroup's part of a tile. a: the operands of the first unit; in the end, of the next
// tile's.
template <uint32_t dtype, int width>
__device__ inline void multiply_prompt_tile(const PromptJob& job, const PromptTile& tile,
                                            const PromptMemory<dtype>& memory,
                                            Ring<PromptMemory<dtype>::kStages>& ring,
                                            PromptRows<dtype>& rows, unsigned (&a)[2][4][4]) {
  using C = Chunk<dtype>;
  const int lane = threadIdx.x % kWarp;
  const auto release = [&](int stage) {
    if (lane == 0) barrier_arrive(memory.empty + stage);
  };
  float sums[width / 2];
#pragma unroll
  for (int i = 0; i < width / 2; ++i) sums[i] = 0.0f;
  int before = -1;
  for (int c = 0; c < job.chunks; ++c) {
#pragma unroll
    for (int u = 0; u < C::units; ++u) {
      const unsigned char* x = memory.x + ring.stage * kPromptStage;
      barrier_wait(memory.full + ring.stage, ring.parity);
      hold(a[u % 2]);
      wgmma_begin();
#pragma unroll
      for (int s = 0; s < 4; ++s) wgmma_bf16<width>(sums, a[u % 2][s], x + 32 * s);
      wgmma_commit();
      wgmma_wait<1>();
      hold(a[(u + 1) % 2]);
      if (before >= 0) release(before);
      before = ring.stage;
      ring.advance();
      const bool last = u + 1 == C::units;
      const int next = last ? 0 : u + 1, chunk = last && c + 1 < job.chunks ? c + 1 : last ? 0 : c;
      if (last) rows.advance();
      rows.decode(next, (job.k - chunk * C::values - next * kUnit) / 16, a[(u + 1) % 2]);
    }
  }
  wgmma_wait<0>();
  release(before);
  store_tile<width>(job, rows.row(tile), tile.token + lane % 4 * 2, sums);
}

// Grid: blocks that share out the tiles.
template <uint32_t dtype>
__global__ void __launch_bounds__(kPromptThreads, 1) multiply_prompt(const PromptJob job) {
  enter_grid();
  const PromptMemory<dtype> memory;
  if (threadIdx.x == 0) {
    for (int i = 0; i < memory.kStages; ++i) {
      barrier_init(memory.full + i, 1);
      barrier_init(memory.empty + i, kPromptWarps);
    }
    barriers_made();
  }
  prepare<Codes<dtype>>(0);
  __syncthreads();
  if (threadIdx.x >= kPromptWarps * kWarp) {
    keep_registers<40>();
    if (threadIdx.x == kPromptWarps * kWarp) copy_prompt<dtype>(job, memory);
  } else {
    take_registers<232>();
    Ring<PromptMemory<dtype>::kStages> ring;
    PromptRows<dtype> rows(job, memory.w);
    unsigned a[2][4][4];
    rows.decode(0, job.k / 16, a[0]);
    for (int i = blockIdx.x; i < job.tiles.count; i += gridDim.x) {
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
constexpr int kSlabForm = 32;

// Rows of x that the workspace has room for: whole tiles.
inline int64_t slab_rows(int64_t n) {
  return blocks_for(n, kWidest) * kWidest;
}

template <uint32_t dtype>
int64_t slab_columns(int64_t k) {
  return blocks_for(k, Chunk<dtype>::values) * Chunk<dtype>::values;
}

template <uint32_t dtype>
void run_prompt(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  const int64_t n = n_rows(x), m = w.shape[0], k = w.shape[1];
  if (m == 0 || n == 0) return;
  const int64_t columns = slab_columns<dtype>(k);
  auto* slabs = static_cast<uint8_t*>(exec->workspace);

  PromptJob job{};
  job.w = data<const uint8_t>(w);
  job.w_row = k / Block<dtype>::values * Block<dtype>::bytes;
  job.w_end = job.w + m * job.w_row;
  job.x = slabs;
  job.slab = slab_rows(n) * kSlabBytes;
  job.y = data<float>(y);
  job.y_row = row_step(y);
  job.n = static_cast<int>(n);
  job.m = static_cast<int>(m);
  job.k = static_cast<int>(k);
  job.chunks = static_cast<int>(columns / Chunk<dtype>::values);
  job.vector = m % 2 == 0 && job.y_row % 2 == 0 && reinterpret_cast<uintptr_t>(job.y) % 8 == 0;
  const int takers = cuda(exec).multiprocessors;
  job.tiles = cut_tiles(blocks_for(m, kPromptRows), n, takers);

  const dim3 rows(static_cast<unsigned>(n),
                  static_cast<unsigned>(blocks_for(columns / 8, kMmaThreads)));
  if (!is_prepared(exec, x, kSlabForm + static_cast<int>(columns)))
    RR_LAUNCH(exec, round_slabs, rows, kMmaThreads, 0, data<const float>(x), row_step(x), k,
              columns, slabs, job.slab);
  const int blocks = min(takers, job.tiles.count);
  allow_shared(multiply_prompt<dtype>, PromptMemory<dtype>::kBytes);
  RR_LAUNCH(exec, multiply_prompt<dtype>, blocks, kPromptThreads, PromptMemory<dtype>::kBytes, job);
}

template <uint32_t dtype>
size_t workspace_prompt(const rr_node* node, int32_t) {
  return static_cast<size_t>(slab_rows(n_rows(node->inputs[0])) *
                             slab_columns<dtype>(node->inputs[1].shape[1]) * 2);
}

template <uint32_t dtype>
int supports_prompt(const rr_node* node, char* why, size_t size) {
  if (!supports_tiles<dtype>(node, why, size)) return 0;
  if (!serves_warpgroups()) return refuse(why, size, kWarpgroupRefusal);
  if (node->inputs[1].rank != 2) return refuse(why, size, "w needs to be a matrix");
  if (n_rows(node->inputs[0]) < kFewestOfPrompt)
    return refuse(why, size, "fewer than 33 rows of x");
  return 1;
}

}  // namespace

#define RR_PROMPT_PRODUCT(id, dtype)                                                      \
  RR_CUDA_KERNEL(id, 0, "mul_mat", "wgmma", "products of bf16: 4e-3 of a row's norm", 20, \
                 supports_prompt<dtype>, workspace_prompt<dtype>, run_prompt<dtype>)
