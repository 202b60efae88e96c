// A warp's 16 rows of w on their way through shared memory into operands of warpgroups' products,
// and rows of x in slabs.
#pragma once

#include "prompt_sources.cuh"
#include "wgmma.cuh"

namespace {

constexpr int kPromptThreads = kPromptWarps * kWarp + kWarpgroup;
constexpr int kPromptStage = kWidest * kSlabBytes;
constexpr int kPromptShared = 227 * 1024;
constexpr int kTilesApart = 1024;  // what the address of a tile of x divides by

// Which rows of slabs are row r of x: of, if that is null, r; else each of[copies r + i] from 0 on.
struct SlabPlaces {
  const int* of;
  int copies;

  __device__ int row(int r, int i) const { return of ? of[r * copies + i] : r; }
};

// What n rows of `columns` values of two bytes take: a slab, and all of them, behind which lies
// what rows are multiplied by. Whole tiles.
struct PromptSlabs {
  int64_t slab, bytes;
};

inline int64_t slab_rows(int64_t n) {
  return blocks_for(n, kWidest) * kWidest;
}

inline PromptSlabs prompt_slabs(int64_t n, int64_t columns) {
  return {slab_rows(n) * kSlabBytes, slab_rows(n) * columns * 2};
}

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

// Of what comes once a tile: code for it lies apart from that of each chunk, which is more than
// the nearest instruction cache holds as it is.
__device__ inline bool seldom(bool condition) {
  return __builtin_expect(condition, 0);
}

// A warp's 16 rows of w, through all of its tiles.
template <uint32_t dtype, class Tiles>
class PromptRows {
 protected:
  using C = Chunk<dtype>;

 public:
  __device__ PromptRows(const PromptJob<Tiles>& job, unsigned char* shared)
      : job_(job),
        next_(job.tiles.first()),
        source_(shared + threadIdx.x / kWarp * 2 * C::warp_bytes) {
    fetch(1);
    advance();
  }

  // Goes on to the next chunk, and asks for the one after it.
  __device__ void advance() {
    async_copy_wait<0>();
    __syncwarp();
    source_.turn();
    side_ ^= 1;
    decoded_ = fetched_;
    fetch(side_ ^ 1);
  }

 protected:
  // Whether rows have the 16 values number `step` of the chunk. Those of 256 values a block do, and
  // those in eights.
  __device__ bool has(int step) const {
    return C::values == 256 || Tiles::kInPieces || decoded_ * C::values + 16 * step < job_.k;
  }

  // The chunk of the lane's row number j, and which of the row's it is.
  __device__ const unsigned char* block(int j) const { return source_.block(side_, j); }
  __device__ int chunk() const { return decoded_; }

  const PromptJob<Tiles>& job_;

 private:
  using Source =
      std::conditional_t<Tiles::kInPieces, PieceSource<dtype>, BlockSource<dtype, Tiles>>;

  __device__ void fetch(int side) {
    if (next_ < job_.tiles.number()) {
      if (seldom(left_ == 0)) {
        const PromptTile tile = job_.tiles.tile(next_);
        source_.start(job_, tile);
        fetched_ = tile.first - 1;
        left_ = tile.chunks;
      }
      source_.fetch(job_, ++fetched_, side);
      if (--left_ == 0) next_ = job_.tiles.after(next_);
    }
    async_copy_commit();
  }

  int next_, left_ = 0;  // the tile that is fetched next, or of which chunks are left
  int fetched_ = 0, decoded_ = 0;
  int side_ = 0;
  Source source_;
};

// As Codes, of a row's pieces as they come to shared memory.
template <uint32_t dtype>
struct PieceCodes;

template <>
struct PieceCodes<RR_Q8_0> {
  __device__ static void take(const uint8_t* pieces, int chunk, int u, int t, Unit& unit) {
    const uint8_t* steps = pieces + 16 * PieceChunk<RR_Q8_0>::kCodes + chunk % 2 * 8 + 4 * u;
    const unsigned d = aligned32(steps);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      unit.codes[s] = aligned32(pieces + 64 * u + 16 * s + 4 * t) ^ 0x80808080u;
    set_scale<true>(unit, 0, low_half(d), 128.0f, 0.0f);
    set_scale<true>(unit, 2, high_half(d), 128.0f, 0.0f);
  }
};

// Decoded to bf16, with x in bf16: of any type.
template <uint32_t dtype, class Tiles>
struct Bf16Rows : PromptRows<dtype, Tiles> {
  using PromptRows<dtype, Tiles>::PromptRows;

  // Operands of unit u of the chunk.
  __device__ void decode(int u, unsigned (&a)[4][4]) const {
    Unit taken[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if constexpr (Tiles::kInPieces)
        PieceCodes<dtype>::take(this->block(j), this->chunk(), u, threadIdx.x % 4, taken[j]);
      else
        Codes<dtype>::take(this->block(j), u, threadIdx.x % 4, taken[j]);
    }
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
};

// Weights of bf16, with x in two parts, whose sum is nearly exact: each unit is multiplied twice.
// Rows are multiples of 16 values long, so that they begin at multiples of 32 bytes, as tensors do.
template <class Tiles>
struct PlainRows : PromptRows<RR_BF16, Tiles> {
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
};

}  // namespace
