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

// Tiles: which products, PromptTiles or ChosenTiles. Where these are gated, rows of y are those of
// w by the activation of gate, and m counts the rows of both.
template <class Tiles>
struct PromptJob {
  const uint8_t *w, *w_end;
  const uint8_t *gate, *gate_end;
  // Bytes: of eight rows, from one of them to the next, of a matrix; what to skip behind 256
  // values.
  int64_t w_eight, w_row, w_matrix;
  int w_skip;
  const uint8_t* x;        // slabs
  int64_t slab;            // bytes
  const float* x_factors;  // of rows in f16
  float* y;
  int64_t y_row;  // values
  int n, m, k;
  int chunks;  // of k
  Tiles tiles;
  bool vector;  // y takes stores of 8 bytes
};

// Which rows of slabs are row r of x: of, if that is null, r; else each of[copies r + i] from 0 on.
struct SlabPlaces {
  const int* of;
  int copies;

  __device__ int row(int r, int i) const { return of ? of[r * copies + i] : r; }
};

// Where piece `piece` of 16 bytes of row `row` of a slab lies.
__device__ inline int64_t piece_of_slab(int row, int piece) {
  return static_cast<int64_t>(row / 8) * kTilesApart + swizzled(row % 8, piece);
}

// What eight values of a row of x are beyond their rounded ones.
__device__ inline void left_of_eight(const float* in, int64_t k, int64_t at, const uint4& rounded,
                                     uint4* out) {
  const unsigned pairs[4] = {rounded.x, rounded.y, rounded.z, rounded.w};
  unsigned left[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t from = at / 16 * 16 + operand_order(static_cast<int>(at % 16) + 2 * i);
    if (from >= k) continue;
    left[i] = pack_bf16(in[from] - bf16_to_float(static_cast<uint16_t>(pairs[i])),
                        in[from + 1] - bf16_to_float(static_cast<uint16_t>(pairs[i] >> 16)));
  }
  *out = make_uint4(left[0], left[1], left[2], left[3]);
}

// Rounds rows of x into slabs, one for each of `parts`, of which the second holds what the first
// leaves. Grid: rows of x, columns.
template <int parts>
__global__ void __launch_bounds__(kMmaThreads)
    round_slabs(const float* x, int64_t x_row, int64_t k, int64_t columns, uint8_t* out,
                int64_t slab, SlabPlaces places) {
  enter_grid();
  const int64_t piece = static_cast<int64_t>(blockIdx.y) * kMmaThreads + threadIdx.x;
  if (8 * piece >= columns) return;
  const int row = static_cast<int>(blockIdx.x);
  const float* in = x + row * x_row;
  uint4 both[parts];
  round_eight(in, k, 8 * piece, both);
  if (parts > 1) left_of_eight(in, k, 8 * piece, both[0], both + parts - 1);
  for (int i = 0; i < places.copies; ++i) {
    const int at = places.row(row, i);
    if (at < 0) continue;
    uint8_t* to = out + piece / 8 * parts * slab + piece_of_slab(at, static_cast<int>(piece % 8));
    for (int part = 0; part < parts; ++part)
      *reinterpret_cast<uint4*>(to + part * slab) = both[part];
  }
}
// A warp's 16 rows of w, through all of its tiles.
template <uint32_t dtype, class Tiles>
class PromptRows {
 protected:
  using C = Chunk<dtype>;

 public:
  __device__ PromptRows(const PromptJob<Tiles>& job, unsigned char* shared)
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

  // Row `row` of a tile's w; rows beyond the last are the last. Those of gate and w alternate.
  __device__ const uint8_t* row_of_w(const PromptTile& tile, int row) const {
    const int last = Tiles::kGated ? job_.m - 2 + row % 2 : job_.m - 1, at = min(row, last);
    const uint8_t* w = Tiles::kGated && at % 2 == 0 ? job_.gate : job_.w;
    if constexpr (Tiles::kChosen) w += tile.expert * job_.w_matrix;
    const int own = Tiles::kGated ? at / 2 : at;
    return w + own / 8 * job_.w_eight + own % 8 * job_.w_row;
  }

  // The chunk of the lane's row number j.
  __device__ const unsigned char* block(int j) const {
    return shared_ + side_ * C::warp_bytes + 8 * j * C::pitch + at_[j];
  }

  const PromptJob<Tiles>& job_;

 private:
  __device__ void fetch(unsigned char* to) {
    if (next_ < job_.tiles.number()) {
      if (chunk_ == 0) start();
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        next_at_[j] = C::grain == 16 ? 0 : misalignment(w_[j]);
        fetch_w<dtype>(w_[j], Tiles::kGated && j == 0 ? job_.gate_end : job_.w_end,
                       to + 8 * j * C::pitch, lane() % 4);
        w_[j] += C::bytes;
        if ((chunk_ + 1) * C::values % 256 == 0) w_[j] += job_.w_skip;
      }
      if (++chunk_ == job_.chunks) {
        chunk_ = 0;
        next_ += static_cast<int>(gridDim.x);
      }
    }
    async_copy_commit();
  }

  __device__ void start() {
    const PromptTile tile = job_.tiles.tile(next_);
#pragma unroll
    for (int j = 0; j < 2; ++j) w_[j] = row_of_w(tile, row(tile) + j);
  }

  unsigned char* shared_;
  const uint8_t* w_[2];
  int next_, chunk_ = 0;  // what is fetched next
  int decoded_ = -1;      // the chunk that is decoded
  int side_ = 0, at_[2], next_at_[2] = {};
};

// Decoded to bf16, with x in bf16: of any type.
template <uint32_t dtype, class Tiles>
struct Bf16Rows : PromptRows<dtype, Tiles> {
  static constexpr bool kHalves = false;  // what is multiplied is f16
  static constexpr int kParts = 1;        // of x

  using PromptRows<dtype, Tiles>::PromptRows;

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
template <class Tiles>
struct PlainRows : PromptRows<RR_BF16, Tiles> {
  static constexpr bool kHalves = false;
  static constexpr int kParts = 2;

  using PromptRows<RR_BF16, Tiles>::PromptRows;

  __device__ void decode(int unit, unsigned (&a)[4][4]) const {
    const int u = unit / kParts;
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint2 four = *reinterpret_cast<const uint2*>(this->block(j) + 2 * kUnit * u + 32 * s +
                                                           8 * (threadIdx.x % 4));
        const bool there = this->has(4 * u + s);
        a[s][j] = there ? four.x : 0;
        a[s][j + 2] = there ? four.y : 0;
      }
  }

  __device__ float factor(int) const { return 1.0f; }
};

}  // namespace
