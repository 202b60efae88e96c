// What a kernel that is not row-exact may promise of prompts, as a flag beside RR_ROW_EXACT.
#pragma once

#include <stdint.h>

namespace riverrun {

// In plans of kind "prefill": rows of a sequence have the same bits whatever other sequences are in
// the pass, however many rows it has, and wherever it ends, as long as it begins at an absolute
// multiple of kPromptGrid positions of the sequence. And what the kernel takes with kPromptGrid
// rows it takes with any number from there on.
constexpr uint32_t kPromptExact = 2;
constexpr int kPromptGrid = 64;

}  // namespace riverrun
