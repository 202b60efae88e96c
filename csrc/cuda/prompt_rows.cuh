// A warp's 16 rows of w on their way through shared memory into operands of warpgroups' products,
// and rows of x in slabs.
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
  int64_t w_row;           // bytes
  const uint8_t* x;        // slabs
  int64_t slab;            // bytes
  const float* x_factors;  // of rows in f16
  float* y;
  int64_t y_row;  // values
  int n, m, k;
  int chunks;  // of k
  PromptTiles tiles;
  bool vector;  // y takes stores of 8 bytes
};

// Rounds rows of x into slabs, one for each of `parts`, of which the second holds what the first
// leaves. Grid: rows of x, columns.
template <int parts>
__global__ void __launch_bounds__(kMmaThreads)
    round_slabs(const float* x, int64_t x_row, int64_t k, int64_t columns, uint8_t* out,
                int64_t slab) {
  enter_grid();
  const int64_t piece = static_cast<int64_t>(blockIdx.y) * kMmaThreads + threadIdx.x;
  if (8 * piece >= columns) return;
  const int row = static_cast<int>(blockIdx.x);
  uint8_t* to = out + piece / 8 * parts * slab + static_cast<int64_t>(row / 8) * kTilesApart +
                swizzled(row % 8, static_cast<int>(piece % 8));
  round_eight(x + row * x_row, k, 8 * piece, to);
  if (parts == 1) return;
  const auto* rounded = reinterpret_cast<const uint16_t*>(to);
  unsigned left[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = 8 * piece + 2 * i;
    const int64_t from = at / 16 * 16 + operand_order(static_cast<int>(at % 16));
    if (from >= k) continue;
    const float* in = x + row * x_row + from;
    left[i] =
        pack_bf16(in[0] - bf16_to_float(rounded[2 * i]), in[1] - bf16_to_float(rounded[2 * i + 1]));
  }
  *reinterpret_cast<uint4*>(to + slab) = make_uint4(left[0], left[1], left[2], left[3]);
}

// A warp's 16 rows of w, through all of its tiles.
template <uint32_t dtype>
class PromptRows {
 protected:
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
    decoded_ = decoded_ + 1 == job_.chunks ? 0 : decoded_ + 1;
    fetch(shared_ + (side_ ^ 1) * C::warp_bytes);
  }

 protected:
  __device__ static int lane() { return threadIdx.x % kWarp; }

  // Whether rows have the 16 values number `step` of the chunk. Those of 256 values a block do.
  __device__ bool has(int step) const {
    return C::values == 256 || decoded_ * C::values + 16 * step < job_.k;
  }

  // The chunk of the lane's row number j.
  __device__ const unsigned char* block(int j) const {
    return shared_ + side_ * C::warp_bytes + 8 * j * C::pitch + at_[j];
  }

  const PromptJob& job_;

 private:
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

  unsigned char* shared_;
  const uint8_t* w_[2];
  int next_, chunk_ = 0;  // what is fetched next
  int decoded_ = -1;      // the chunk that is decoded
  int side_ = 0, at_[2], next_at_[2] = {};
};

// Decoded to bf16, with x in bf16: of any type.
template <uint32_t dtype>
struct Bf16Rows : PromptRows<dtype> {
  static constexpr bool kHalves = false;  // what is multiplied is f16
  static constexpr int kParts = 1;        // of x

  using PromptRows<dtype>::PromptRows;

  // Operands of unit u of the chunk.
  __device__ void decode(int u, unsigned (&a)[4][4]) const {
    Unit taken[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) Codes<dtype>::take(this->block(j), u, threadIdx.x % 4, taken[j]);
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        unsigned b[2];
        decode_step<Codes<dtype>::wide>(taken[j], s, b);
        const bool there = this->has(4 * u + s);
        a[s][j] = there ? b[0] : 0;
        a[s][j + 2] = there ? b[1] : 0;
      }
  }

  __device__ float factor(int) const { return 1.0f; }
};

// Weights of bf16, with x in two parts, whose sum is nearly exact: each unit is multiplied twice.
// Rows are multiples of 16 values long, so that they begin at multiples of 32 bytes, as tensors do.
struct PlainRows : PromptRows<RR_BF16> {
  static constexpr bool kHalves = false;
  static constexpr int kParts = 2;

  using PromptRows<RR_BF16>::PromptRows;

  __device__ void decode(int unit, unsigned (&a)[4][4]) const {
    const int u = unit / kParts;
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint2 four = *reinterpret_cast<const uint2*>(block(j) + 2 * kUnit * u + 32 * s +
                                                           8 * (threadIdx.x % 4));
        const bool there = has(4 * u + s);
        a[s][j] = there ? four.x : 0;
        a[s][j + 2] = there ? four.y : 0;
      }
  }

  __device__ float factor(int) const { return 1.0f; }
};

}  // namespace
