// Which products of a prompt have their k shared out among the blocks of a card.
#pragma once

#include <stdint.h>

namespace riverrun {

constexpr int kMostPromptWeights = 8;  // of a launch

// Tiles of rows of w, downwards: the first `downs` are multiplied with all of k at once, the others
// in `parts` of `part_chunks` chunks, whose sums are added in the order of k. The bits of a row of
// y follow from this, so it depends on the weights and the card alone and not on x.
struct PromptSplit {
  int downs, parts, part_chunks;
};

// Sums of so many parts of tiles wait in the workspace at once, at most.
constexpr int64_t kMostParts = 512;

// For `down` tiles that `takers` blocks take in turn. chunks: of k, of which `grain` go together.
inline PromptSplit split_prompt(int64_t down, int64_t chunks, int64_t grain, int64_t takers) {
  // What a part costs beside its products, in thousandths of a whole tile's, and what has to be
  // gained for sums to go through memory.
  constexpr int64_t kWhole = 1000, kBeside = 60, kGain = 100, kMostOfTile = 8;
  const int64_t left = down % takers;
  PromptSplit best = {static_cast<int>(down), 1, static_cast<int>(chunks)};
  if (left == 0) return best;
  int64_t least = kWhole + kBeside - kGain;
  for (int64_t asked = 2; asked <= kMostOfTile; ++asked) {
    const int64_t each = (chunks + asked * grain - 1) / (asked * grain) * grain;
    const int64_t parts = (chunks + each - 1) / each, units = left * parts;
    if (parts < 2 || units > kMostParts) continue;
    const int64_t cost = (units + takers - 1) / takers * (kWhole * each / chunks + kBeside);
    if (cost >= least) continue;
    least = cost;
    best = {static_cast<int>(down - left), static_cast<int>(parts), static_cast<int>(each)};
  }
  return best;
}

}  // namespace riverrun
