// How the products of a prompt are cut into tiles: wide ones first, and narrower ones for what does
// not fill all blocks of a card any more; at last those whose k is added up in parts.
#pragma once

#include <stdint.h>

#include "device.cuh"
#include "prompt_split.hpp"

namespace {

using riverrun::kMostPromptWeights;

constexpr int kWidest = 256;  // rows of x of a tile

// weight: which of several; down: number of the tile's rows of it; token, end: its first row of x,
// and behind its last, which may be before token + width; expert: the number of w where one weight
// has several; first, chunks: what it takes of k; parts, part, split: where k is added up in parts,
// in how many, which of them this is, and the number of the tile among such tiles.
struct PromptTile {
  int weight, down, token, width, end, expert;
  int first, chunks;
  int parts, part, split;
};

// The first `wide` tiles are of the widest kind, `across` for the same rows of w; the rest up to
// `whole` are `width` wide. Those of rows of w from tile `downs` on are `split_width` wide, and
// have their k in `parts`, each a tile of its own: `gathered`, one after another for a block, or
// shared out like the others.
struct PromptTiles {
  static constexpr bool kChosen = false, kGated = false, kInPieces = false;

  int wide, across, width, narrow_across, whole;
  int downs, split_width, split_across;
  int parts, part_chunks;
  bool gathered;
  int chunks;  // of k
  int count, end;
  int weights, begins[kMostPromptWeights];  // the first tile of each weight, downwards

  __device__ int number() const { return count; }

  // The block's first tile, and the one after tile i.
  __device__ int first() const { return at_turn(static_cast<int>(blockIdx.x)); }

  __device__ int after(int i) const {
    const int part = i - whole;
    if (!gathered || part < 0) return at_turn(i + static_cast<int>(gridDim.x));
    if (part % parts < parts - 1) return i + 1;
    return at_turn(whole + part / parts + static_cast<int>(gridDim.x));
  }

  __device__ PromptTile tile(int i) const {
    if (i < wide) return of(i / across, i % across * kWidest, kWidest);
    if (i < whole) {
      const int j = i - wide;
      return of(wide / across + j / narrow_across, j % narrow_across * width, width);
    }
    const int j = (i - whole) / parts;
    PromptTile tile = of(downs + j / split_across, j % split_across * split_width, split_width);
    tile.parts = parts;
    tile.part = (i - whole) % parts;
    tile.split = j;
    tile.first = tile.part * part_chunks;
    tile.chunks = min(part_chunks, chunks - tile.first);
    return tile;
  }

  // The row of y of row `at` of x.
  __device__ int row_of_y(int at) const { return at; }

 private:
  // Where tile i is if the parts of a tile that are gathered count as one.
  __device__ int at_turn(int i) const {
    return gathered && i > whole ? whole + (i - whole) * parts : i;
  }

  __device__ PromptTile of(int down, int token, int of_width) const {
    int weight = 0;
    while (weight + 1 < weights && down >= begins[weight + 1]) ++weight;
    return {weight, down - begins[weight], token, of_width, end, 0, 0, chunks, 1, 0, 0};
  }
};

// The same with weights whose rows lie in pieces (rows8.cuh).
struct PieceTiles : PromptTiles {
  static constexpr bool kInPieces = true;
};

// What of a tile's products takes how long, in thousandths of a chunk of the widest: a chunk, a
// part of its own beside its products, and a further part of those that are gathered. Measured with
// q4_k, of which a chunk of 256 values takes 3.3 microseconds.
struct TileCost {
  int64_t chunk, apart, further;
};

inline TileCost cost_of(int width) {
  if (width == 256) return {1000, 1000, 1300};
  if (width == 128) return {740, 800, 900};
  return {630, 600, 700};
}

constexpr int64_t kCostOfAdding = 1500;  // of the launch that adds up parts

// What the busiest of `takers` takes for the tiles, which they take in turn.
inline int64_t longest(const PromptTiles& tiles, int64_t takers) {
  const auto mine = [&](int64_t from, int64_t to, int64_t taker) {
    const auto before = [&](int64_t end) { return (end - taker + takers - 1) / takers; };
    return before(to) - before(from);
  };
  const TileCost split = cost_of(tiles.split_width);
  const int64_t last = tiles.gathered ? (tiles.count - tiles.whole) / tiles.parts
                                      : tiles.count - tiles.whole,
                of_last = tiles.gathered
                              ? tiles.chunks * split.chunk + (tiles.parts - 1) * split.further
                              : tiles.part_chunks * split.chunk + split.apart;
  int64_t most = 0;
  for (const int64_t taker : {int64_t{0}, tiles.wide % takers, tiles.whole % takers}) {
    const int64_t wide = mine(0, tiles.wide, taker) * cost_of(kWidest).chunk,
                  narrow = mine(tiles.wide, tiles.whole, taker) * cost_of(tiles.width).chunk,
                  rest = mine(tiles.whole, tiles.whole + last, taker) * of_last;
    const int64_t cost = (wide + narrow) * tiles.chunks + rest;
    most = cost > most ? cost : most;
  }
  return most;
}

// The quickest way to cut `down` tiles of rows of w, whose k is added up as `split` says, times n
// rows of x.
inline PromptTiles cut_tiles(int64_t down, const riverrun::PromptSplit& split, int64_t chunks,
                             int64_t n, int64_t takers) {
  PromptTiles best{};
  int64_t least = INT64_MAX;
  const auto tiles_across = [&](int width) { return static_cast<int>((n + width - 1) / width); };
  const auto try_tiles = [&](int64_t rows, int width, int split_width, bool gathered) {
    PromptTiles tiles{};
    tiles.across = tiles_across(kWidest);
    tiles.wide = static_cast<int>(rows) * tiles.across;
    tiles.width = width;
    tiles.narrow_across = tiles_across(width);
    tiles.whole = tiles.wide + static_cast<int>(split.downs - rows) * tiles.narrow_across;
    tiles.downs = split.downs;
    tiles.split_width = split_width;
    tiles.split_across = tiles_across(split_width);
    tiles.parts = split.parts;
    tiles.part_chunks = split.part_chunks;
    tiles.gathered = gathered;
    tiles.chunks = static_cast<int>(chunks);
    const int64_t parts = (down - split.downs) * tiles.split_across * split.parts;
    if (!gathered && parts > riverrun::kMostParts) return;
    tiles.count = tiles.whole + static_cast<int>(parts);
    tiles.end = static_cast<int>(n);
    const bool adds = !gathered && parts > 0;
    const int64_t cost = longest(tiles, takers) + (adds ? kCostOfAdding : 0);
    if (cost >= least) return;
    least = cost;
    best = tiles;
  };
  for (const int width : {256, 128, 64})
    for (const bool gathered : {false, true}) try_tiles(0, width, width, gathered);
  const PromptTiles narrow = best;
  for (const int width : {256, 128, 64})
    for (int64_t rows = 0; rows <= (width == kWidest ? 0 : split.downs); ++rows)
      try_tiles(rows, width, narrow.split_width, narrow.gathered);
  return best;
}

}  // namespace
