// Counters by which the blocks of a grid find out which of them is the last.
#pragma once

#include "fault.hpp"

namespace riverrun {

constexpr int64_t kCounters = 1024;

// What exec->impl points to, too. counters: kCounters numbers in the card's memory, of the bound
// plan alone; they are 0 whenever a kernel begins, and a kernel that counts makes them 0 again.
struct CountingExec : CudaExec {
  unsigned* counters;
};

}  // namespace riverrun
