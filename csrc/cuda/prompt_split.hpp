// Which products of a prompt have their k added up in parts, so that several blocks of a card can
// share it.
#pragma once

#include <stdint.h>

namespace riverrun {

constexpr int kMostPromptWeights = 8;  // of a launch

// Tiles of rows of w, downwards: of the first `downs` all of k is added in one sum, of the others
// in `parts` sums of `part_chunks` chunks each, which are added in the order of k. The bits of a
// row of y follow from this, so it depends on the weights and the card alone and not on x.
struct PromptSplit {
  int downs, parts, part_chunks;
};

// Sums of so many parts of tiles wait in the workspace at once, at most.
constexpr int64_t kMostParts = 512;

// For `down` tiles that `takers` blocks take in turn. chunks: of k, of which `grain` go together.
inline PromptSplit split_prompt(int64_t down, int64_t chunks, int64_t grain, int64_t takers) {
  // In tenths of a chunk, what a part of its own costs beside its products where x has few rows,
  // and what a further part costs where x has many; how much less than one block alone parts have
  // to take, in hundredths; and how many of them are tried.
  constexpr int64_t kBeside = 35, kFurther = 26, kEnough = 70, kMost = 8;
  const int64_t left = down % takers;
  PromptSplit best = {static_cast<int>(down), 1, static_cast<int>(chunks)};
  if (left == 0) return best;
  int64_t least = 10 * chunks * kEnough / 100;
  for (int64_t asked = 2; asked <= kMost; ++asked) {
    const int64_t each = (chunks + asked * grain - 1) / (asked * grain) * grain;
    const int64_t parts = (chunks + each - 1) / each, units = left * parts;
    if (parts < 2 || units > kMostParts) continue;
    const int64_t cost = (units + takers - 1) / takers * (10 * each + kBeside) +
                         (parts - 1) * kFurther * left / down;
    if (cost >= least) continue;
    least = cost;
    best = {static_cast<int>(down - left), static_cast<int>(parts), static_cast<int>(each)};
  }
  return best;
}

}  // namespace riverrun
