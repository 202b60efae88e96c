// Where weights of prompts' products lie, and how a warp's 16 rows of a tile come to shared memory,
// a chunk at a time: from rows of the file's blocks, or from eights of rows in pieces (rows8.cuh).
#pragma once

#include "mul_mat_mma.cuh"
#include "prompt_tiles.cuh"
#include "rows8.cuh"

namespace {

constexpr int kPromptWarps = 8;
constexpr int kPromptRows = kPromptWarps * kRowsOfWarp;  // of w that a block takes

// A weight of a launch, the first of y's columns that its rows are, and whether these take stores
// of 8 bytes.
struct PromptWeight {
  const uint8_t *w, *end;
  float* y;
  int m;
  bool vector;
};

// Tiles: which products, PromptTiles or ChosenTiles. Where these are gated, rows of y are those of
// w by the activation of gate, and m counts the rows of both.
template <class Tiles>
struct PromptJob {
  PromptWeight weights[kMostPromptWeights];
  const uint8_t *gate, *gate_end;
  // Bytes: of eight rows, from one of them to the next, of a matrix; what to skip behind 256
  // values.
  int64_t w_eight, w_row, w_matrix;
  int w_skip;
  const uint8_t* x;        // slabs
  int64_t slab;            // bytes
  const float* x_factors;  // of rows in f16
  int64_t y_row;           // values
  int n, k;
  float4* pieces;  // sums of parts of tiles
  Tiles tiles;
};

__device__ inline int lane_of_warp() {
  return threadIdx.x % kWarp;
}

// Of a tile's rows of w, the first one of this warp.
__device__ inline int first_row(const PromptTile& tile) {
  return tile.down * kPromptRows + static_cast<int>(threadIdx.x) / kWarp * kRowsOfWarp;
}

// The first of the two neighbouring rows of w whose sums a lane has.
__device__ inline int row_of_lane(const PromptTile& tile) {
  return first_row(tile) + lane_of_warp() / 4 * 2;
}

// Row `row` of a tile's w; rows beyond the last are the last. Those of gate and w alternate.
template <class Tiles>
__device__ inline const uint8_t* row_of_w(const PromptJob<Tiles>& job, const PromptTile& tile,
                                          int row) {
  const PromptWeight& of = job.weights[tile.weight];
  const int last = Tiles::kGated ? of.m - 2 + row % 2 : of.m - 1, at = min(row, last);
  const uint8_t* w = Tiles::kGated && at % 2 == 0 ? job.gate : of.w;
  if constexpr (Tiles::kChosen) w += tile.expert * job.w_matrix;
  const int own = Tiles::kGated ? at / 2 : at;
  return w + own / 8 * job.w_eight + own % 8 * job.w_row;
}

// Bytes of a row, or of eight rows in pieces, before its chunk number `chunk`.
template <uint32_t dtype>
__device__ inline int64_t before_chunk(int chunk, int64_t bytes_of_256) {
  return static_cast<int64_t>(chunk) * Chunk<dtype>::values / 256 * bytes_of_256;
}

// Sources, of a warp's shared memory, which has two sides: `start` goes to a tile's rows and to its
// part of k, which begins at a multiple of 256 values; `fetch` asks for the next chunk of each,
// number `chunk` of the row, to a side that is to be read after the next `turn`. block: the chunk
// of the lane's row 2g + j.

// Blocks as they are in the file: four lanes bring their own two rows.
template <uint32_t dtype, class Tiles>
class BlockSource {
  using C = Chunk<dtype>;

 public:
  __device__ explicit BlockSource(unsigned char* shared)
      : shared_(shared + lane_of_warp() / 4 * C::pitch) {}

  __device__ void start(const PromptJob<Tiles>& job, const PromptTile& tile) {
    const int row = row_of_lane(tile);
#pragma unroll
    for (int j = 0; j < 2; ++j)
      w_[j] = row_of_w(job, tile, row + j) +
              before_chunk<dtype>(tile.first, kBytesOf256<dtype> + job.w_skip);
    end_ = job.weights[tile.weight].end;
  }

  __device__ void fetch(const PromptJob<Tiles>& job, int chunk, int side) {
    unsigned char* to = shared_ + side * C::warp_bytes;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      next_at_[j] = C::grain == 16 ? 0 : misalignment(w_[j]);
      fetch_w<dtype>(w_[j], Tiles::kGated && j == 0 ? job.gate_end : end_, to + 8 * j * C::pitch,
                     lane_of_warp() % 4);
      w_[j] += C::bytes;
      if ((chunk + 1) * C::values % 256 == 0) w_[j] += job.w_skip;
    }
  }

  __device__ void turn() {
#pragma unroll
    for (int j = 0; j < 2; ++j) at_[j] = next_at_[j];
  }

  __device__ const unsigned char* block(int side, int j) const {
    return shared_ + side * C::warp_bytes + 8 * j * C::pitch + at_[j];
  }

 private:
  unsigned char* shared_;
  const uint8_t *w_[2], *end_;
  int at_[2], next_at_[2] = {};  // behind a multiple of 16
};

// Which pieces of 16 bytes a row's chunk has, and how many lie between two rows in shared memory,
// so that no two of the lanes that read at once meet in a bank more often than they must: `kCodes`
// of codes, then those of what else there is. at: the bytes in an eight of such a piece of a row.
template <uint32_t dtype>
struct PieceChunk;

template <>
struct PieceChunk<RR_Q8_0> {
  using Rows = Rows8<RR_Q8_0>;
  static constexpr int kCodes = 8, kPieces = 9, kPitch = 9;

  __device__ static int at(int chunk, int piece, int row) {
    const int of = piece < kCodes ? chunk % 2 * kCodes + piece : Rows::kSteps;
    return of * Rows::kPiece + row * Rows::kRow;
  }
};

// Scales as in the file's block, and what all eight rows have left behind them.
template <>
struct PieceChunk<RR_Q6_K> {
  using Rows = Rows8<RR_Q6_K>;
  static constexpr int kCodes = 12, kPieces = 14, kPitch = 14;

  __device__ static int at(int, int piece, int row) {
    return piece * Rows::kPiece + (piece < Rows::kWhole ? row * Rows::kRow : 0);
  }
};

// Eights of rows in pieces: each lane brings pieces of the same row of both.
template <uint32_t dtype>
class PieceSource {
  using C = Chunk<dtype>;
  using Of = PieceChunk<dtype>;
  static_assert(kRowsOfWarp * 16 * Of::kPitch <= C::warp_bytes, "no more than of blocks");

 public:
  __device__ explicit PieceSource(unsigned char* shared) : shared_(shared) {}

  template <class Job>
  __device__ void start(const Job& job, const PromptTile& tile) {
    const PromptWeight& of = job.weights[tile.weight];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      eight_[half] = of.w + min(first_row(tile) / 8 + half, (of.m - 1) / 8) * job.w_eight +
                     before_chunk<dtype>(tile.first, 8 * kBytesOf256<dtype>);
  }

  template <class Job>
  __device__ void fetch(const Job&, int chunk, int side) {
    unsigned char* to = shared_ + side * C::warp_bytes;
    const int row = lane_of_warp() % 8, first = lane_of_warp() / 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned char* own = to + 16 * Of::kPitch * (row % 2 * 8 + half * 4 + row / 2);
#pragma unroll
      for (int piece = 0; piece < Of::kPieces; piece += 4)
        if (piece + 4 <= Of::kPieces || first < Of::kPieces % 4)
          async_copy16(own + 16 * (piece + first),
                       eight_[half] + Of::at(chunk, piece + first, row));
      if ((chunk + 1) * C::values % 256 == 0) eight_[half] += 8 * kBytesOf256<dtype>;
    }
  }

  __device__ void turn() {}

  __device__ const unsigned char* block(int side, int j) const {
    return shared_ + side * C::warp_bytes + 16 * Of::kPitch * (lane_of_warp() / 4 + 8 * j);
  }

 private:
  unsigned char* shared_;
  const uint8_t* eight_[2];
};

}  // namespace
