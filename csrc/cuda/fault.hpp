// What kernels and the executor share beside the node view.
#pragma once

#include <cuda_runtime.h>

#include "riverrun.h"

namespace riverrun {

// Written by the first thread that finds bad data; lies in host memory that the device sees.
struct Fault {
  int set;
  int node;
  const char* message;  // a printf format for two long long; only the host reads it
  long long a, b;
};

// An operand that the workspace holds in a form of its kernels', so that nodes in a row that read
// it need not bring it into that form again. form 0: none.
struct Prepared {
  rr_tensor source;
  int form;
  bool used;  // by the node that runs now
};

// Rows that a launch of the node before made for `node`, as step_x.cuh has them.
struct Ended {
  const rr_node* node;
  unsigned char* x;
};

// What exec->impl points to. next: the node that runs behind this one, null where nothing of it may
// be done before.
struct CudaExec {
  cudaStream_t stream;
  Fault* fault;
  int node;
  int multiprocessors;
  Prepared* prepared;
  bool overlap;  // kernels may begin before those ahead of them have ended
  const rr_node* next;
  Ended* ended;
};

}  // namespace riverrun
