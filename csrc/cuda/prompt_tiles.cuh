// How the products of a prompt are cut into tiles: wide ones first, narrower ones for what does not
// fill all blocks of a card any more, and at last those whose k is shared out, too.
#pragma once

#include <stdint.h>

#include "device.cuh"
#include "prompt_split.hpp"

namespace {

using riverrun::kMostPromptWeights;

constexpr int kWidest = 256;  // rows of x of a tile

// weight: which of several; down: number of the tile's rows of it; token, end: its first row of x,
// and behind its last, which may be before token + width; expert: the number of w where one weight
// has several; first, chunks: what it takes of k; split, parts, part: of those tiles whose k is
// shared out, its number, in how many parts, and which of them.
struct PromptTile {
  int weight, down, token, width, end, expert;
  int first, chunks;
  int split, parts, part;
};

// The first `wide` tiles are of the widest kind, `across` for the same rows of w; the rest up to
// `whole` are `width` wide. Those of rows of w from tile `downs` on are `split_width` wide, and
// each has its k in `parts`.
struct PromptTiles {
  static constexpr bool kChosen = false, kGated = false, kInPieces = false;

  int wide, across, width, narrow_across, whole;
  int downs, split_width, split_across;
  int parts, part_chunks;
  int chunks;  // of k
  int count;
  int token, end;                           // rows of x: the first, and behind the last
  int weights, begins[kMostPromptWeights];  // the first tile of each weight, downwards

  __device__ int number() const { return count; }

  __device__ PromptTile tile(int i) const {
    if (i < wide) return of(i / across, i % across * kWidest, kWidest);
    if (i < whole) {
      const int j = i - wide;
      return of(wide / across + j / narrow_across, j % narrow_across * width, width);
    }
    const int j = (i - whole) / parts;
    PromptTile tile = of(downs + j / split_across, j % split_across * split_width, split_width);
    tile.split = j;
    tile.parts = parts;
    tile.part = (i - whole) % parts;
    tile.first = tile.part * part_chunks;
    tile.chunks = min(part_chunks, chunks - tile.first);
    return tile;
  }

  // The row of y of row `at` of x.
  __device__ int row_of_y(int at) const { return at; }

  // Moves what was cut from row 0 on.
  void begin_at(int row) {
    token = row;
    end += row;
  }

 private:
  __device__ PromptTile of(int down, int behind, int of_width) const {
    int weight = 0;
    while (weight + 1 < weights && down >= begins[weight + 1]) ++weight;
    return {weight, down - begins[weight], token + behind, of_width, end, 0, 0, chunks, 0, 1, 0};
  }
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
  const auto mine = [&](int64_t from, int64_t to, int64_t taker) {
    const auto before = [&](int64_t end) { return (end - taker + takers - 1) / takers; };
    return before(to) - before(from);
  };
  int64_t most = 0;
  for (const int64_t taker : {int64_t{0}, tiles.wide % takers, tiles.whole % takers}) {
    const int64_t cost =
        mine(0, tiles.wide, taker) * cost_of(kWidest) +
        mine(tiles.wide, tiles.whole, taker) * cost_of(tiles.width) +
        mine(tiles.whole, tiles.count, taker) * cost_of(tiles.split_width) / tiles.parts;
    most = cost > most ? cost : most;
  }
  return most;
}

// The quickest way to cut `down` tiles of rows of w, whose k is shared out as `split` says, times n
// rows of x.
inline PromptTiles cut_tiles(int64_t down, const riverrun::PromptSplit& split, int64_t chunks,
                             int64_t n, int64_t takers) {
  PromptTiles best{};
  int64_t least = INT64_MAX;
  const auto try_tiles = [&](int64_t rows, int width, int split_width) {
    PromptTiles tiles{};
    tiles.across = static_cast<int>((n + kWidest - 1) / kWidest);
    tiles.wide = static_cast<int>(rows) * tiles.across;
    tiles.width = width;
    tiles.narrow_across = static_cast<int>((n + width - 1) / width);
    tiles.whole = tiles.wide + static_cast<int>(split.downs - rows) * tiles.narrow_across;
    tiles.downs = split.downs;
    tiles.split_width = split_width;
    tiles.split_across = static_cast<int>((n + split_width - 1) / split_width);
    tiles.parts = split.parts;
    tiles.part_chunks = split.part_chunks;
    tiles.chunks = static_cast<int>(chunks);
    tiles.count =
        tiles.whole + static_cast<int>(down - split.downs) * tiles.split_across * split.parts;
    tiles.end = static_cast<int>(n);
    const int64_t cost = longest(tiles, takers);
    if (cost >= least) return;
    least = cost;
    best = tiles;
  };
  for (const int width : {256, 128, 64}) try_tiles(0, width, width);
  const int split_width = best.split_width;
  for (const int width : {256, 128, 64})
    for (int64_t rows = 0; rows <= (width == kWidest ? 0 : split.downs); ++rows)
      try_tiles(rows, width, split_width);
  return best;
}

}  // namespace
