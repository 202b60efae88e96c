// What the blocks of a launch of step products may make of a single row of x first, each for itself
// in memory of its own: it saves a launch before them (step_prologue.cuh).
#pragma once

#include <stdint.h>

namespace riverrun {

enum class StepMakes { kNothing, kNorm, kSilu, kGelu, kSigmoid, kGatedNorm };

struct StepPrologue {
  StepMakes makes = StepMakes::kNothing;
  int64_t own_bytes = 0;  // from one block's memory to the next one's
  // kNorm: x and delta, or null. Others: heads of gate and up; kGatedNorm: of x and gate. Heads
  // have `width` values and lie `pitch` bytes apart.
  const float *first = nullptr, *second = nullptr;
  int first_width = 0, second_width = 0;
  int64_t first_pitch = 0, second_pitch = 0;
  const float* weight = nullptr;  // of a norm
  double eps = 0.0;
  float* sum = nullptr;  // where x + delta goes
};

// The most blocks of 256 values of x that a prologue makes: more would take longer than a launch.
constexpr int kMostOwnBlocks = 32;

}  // namespace riverrun
