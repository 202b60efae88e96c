// Counters by which the blocks of a grid find out which of them is the last.
#pragma once

#include "fault.hpp"

namespace riverrun {

constexpr int64_t kCounters = 1024;

// Rows that a launch of the node before made for `node`, as step_x.cuh has them.
struct Ended {
  const rr_node* node;
  unsigned char* x;
};

// What exec->impl points to, too. counters: kCounters numbers in the card's memory, of the bound
// plan alone; they are 0 whenever a kernel begins, and a kernel that counts makes them 0 again.
// next: the node that runs behind this one, null where nothing of it may be done before.
struct CountingExec : CudaExec {
  unsigned* counters;
  const rr_node* next;
  Ended* ended;
};

}  // namespace riverrun
