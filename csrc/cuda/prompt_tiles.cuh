// How the products of a prompt are cut into tiles: wide ones first, and narrower ones for what does
// not fill all blocks of a card any more.
#pragma once

#include <stdint.h>

#include "device.cuh"

namespace {

constexpr int kWidest = 256;  // rows of x of a tile

// down: number of the tile's rows of w; token, end: its first row of x, and behind its last, which
// may be before token + width; expert: the number of w where there are several.
struct PromptTile {
  int down, token, width, end, expert;
};

// The first `wide` tiles are of the widest kind, `across` for the same rows of w; the rest are
// `width` wide.
struct PromptTiles {
  static constexpr bool kChosen = false, kGated = false, kInPieces = false;

  int wide, across, width, narrow_across, count, rows;

  __device__ int number() const { return count; }

  __device__ PromptTile tile(int i) const {
    if (i < wide) return {i / across, i % across * kWidest, kWidest, rows, 0};
    const int j = i - wide;
    return {wide / across + j / narrow_across, j % narrow_across * width, width, rows, 0};
  }

  // The row of y of row `at` of x.
  __device__ int row_of_y(int at) const { return at; }
};

// The same with weights whose rows lie in pieces (rows8.cuh).
struct PieceTiles : PromptTiles {
  static constexpr bool kInPieces = true;
};

// What a tile takes, in thousandths of what one of the widest does.
inline int64_t cost_of(int width) {
  return width == 256 ? 1000 : width == 128 ? 740 : 630;
}

// What the busiest of `takers` takes for the tiles, which they take in turn.
inline int64_t longest(const PromptTiles& tiles, int64_t takers) {
  int64_t most = 0;
  for (const int64_t taker : {int64_t{0}, tiles.wide % takers}) {
    const int64_t all = (tiles.count - taker + takers - 1) / takers;
    const int64_t wide = (tiles.wide - taker + takers - 1) / takers;
    const int64_t cost = wide * cost_of(kWidest) + (all - wide) * cost_of(tiles.width);
    most = cost > most ? cost : most;
  }
  return most;
}

// The quickest way to cut `down` times n rows of x.
inline PromptTiles cut_tiles(int64_t down, int64_t n, int64_t takers) {
  PromptTiles best{};
  int64_t least = INT64_MAX;
  for (const int width : {256, 128, 64}) {
    const int64_t across = (n + kWidest - 1) / kWidest, narrow_across = (n + width - 1) / width;
    for (int64_t rows = 0; rows <= (width == kWidest ? 0 : down); ++rows) {
      PromptTiles tiles{static_cast<int>(rows * across),
                        static_cast<int>(across),
                        width,
                        static_cast<int>(narrow_across),
                        0,
                        static_cast<int>(n)};
      tiles.count = tiles.wide + static_cast<int>((down - rows) * narrow_across);
      const int64_t cost = longest(tiles, takers);
      if (cost >= least) continue;
      least = cost;
      best = tiles;
    }
  }
  return best;
}

}  // namespace
