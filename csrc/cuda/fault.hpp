// What kernels and the executor share beside the node view.
#pragma once

#include <cuda_runtime.h>

namespace riverrun {

// Written by the first thread that finds bad data; lies in host memory that the device sees.
struct Fault {
  int set;
  int node;
  const char* message;  // a printf format for two long long; only the host reads it
  long long a, b;
};

// What exec->impl points to.
struct CudaExec {
  cudaStream_t stream;
  Fault* fault;
  int node;
  int multiprocessors;
  bool overlap;  // kernels may begin before those ahead of them have ended
};

}  // namespace riverrun
