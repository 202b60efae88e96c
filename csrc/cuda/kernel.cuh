// How a CUDA kernel file registers itself, launches, and reports what is wrong with its data.
//
// rr_kernel::run is called once, on the host, and launches on the plan's stream. It may be recorded
// into a CUDA graph: whatever differs between runs is read from device memory by the kernels.
// node->rows is not looked at: all rows of a bucket are computed, and padding holds finite values.
#pragma once

#include "device.cuh"
#include "fault.hpp"
#include "node.hpp"

namespace {

using riverrun::Fault;

inline const riverrun::CudaExec& cuda(const rr_exec* exec) {
  return *static_cast<const riverrun::CudaExec*>(exec->impl);
}

// Whether the workspace holds x in a form already, thanks to an earlier node; if not, the caller
// now puts it there. Forms: numbers above 0, one for every layout at the start of the workspace.
[[maybe_unused]] inline bool is_prepared(const rr_exec* exec, const rr_tensor& x, int form) {
  riverrun::Prepared& p = *cuda(exec).prepared;
  const bool same = p.form == form && memcmp(&p.source, &x, sizeof x) == 0;
  p.source = x;
  p.form = form;
  p.used = true;
  return same;
}

// What a kernel needs to report one kind of bad data; passed to it by value.
struct Check {
  Fault* fault;
  const char* message;
  int node;
};

// message: a string literal with two %lld.
[[maybe_unused]] inline Check check(const rr_exec* exec, const char* message) {
  return {cuda(exec).fault, message, cuda(exec).node};
}

// Called by device code, which then goes on without touching what the bad value names.
[[maybe_unused]] __device__ inline void report(const Check& check, long long a, long long b) {
  if (atomicCAS(&check.fault->set, 0, 1) != 0) return;
  check.fault->node = check.node;
  check.fault->message = check.message;
  check.fault->a = a;
  check.fault->b = b;
  __threadfence_system();
}

// A tensor as kernels see it.
struct View {
  char* data;
  int64_t shape[RR_MAX_RANK], strides[RR_MAX_RANK];
  int rank;
  uint32_t dtype;
};

[[maybe_unused]] inline View view(const rr_tensor& t) {
  View v{static_cast<char*>(t.data), {}, {}, t.rank, t.dtype};
  for (int i = 0; i < RR_MAX_RANK; ++i) {
    v.shape[i] = i < t.rank ? t.shape[i] : 1;
    v.strides[i] = i < t.rank ? t.strides[i] : 0;
  }
  return v;
}

// Start of row r of a tensor seen as a matrix of its last axis.
[[maybe_unused]] __device__ inline char* view_row(const View& v, int64_t r) {
  char* p = v.data;
  for (int i = v.rank - 2; i >= 0; --i) {
    p += (r % v.shape[i]) * v.strides[i];
    r /= v.shape[i];
  }
  return p;
}

template <typename T>
inline T* data(const rr_tensor& t) {
  return static_cast<T*>(t.data);
}

[[maybe_unused]] inline int64_t blocks_for(int64_t n, int64_t per_block) {
  return (n + per_block - 1) / per_block;
}

// Reports a launch that CUDA refused.
[[maybe_unused]] inline void launched(const rr_exec* exec) {
  const cudaError_t error = cudaPeekAtLastError();
  if (error != cudaSuccess) exec->fail(exec, cudaGetErrorString(error));
}

}  // namespace

// Launches kernel<<<grid, block, shared>>>(arguments...). The kernel begins with enter_grid().
// grid, block: dim3 or int, never 0; shared: bytes of dynamic shared memory (over 48 KiB only after
// allow_shared). Parenthesise the name of a template with commas.
#define RR_LAUNCH(exec, kernel, grid, block, shared, ...)                              \
  do {                                                                                 \
    RR_LAUNCH_CALL(kernel, grid, block, shared, cuda(exec).stream, cuda(exec).overlap, \
                   __VA_ARGS__);                                                       \
    launched(exec);                                                                    \
  } while (0)

namespace {

// Lets a kernel have so many bytes of dynamic shared memory. The 48 KiB that it may have unasked
// hold its static shared memory, too.
template <typename Kernel>
inline void allow_shared(Kernel kernel, int bytes) {
  if (bytes > 16 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace

// flags: RR_ROW_EXACT or 0. bound: where rows are not exact, by how much they may differ, else "".
// priority: the highest that takes a node wins; kernels that are not row-exact only where that is
// not asked for. workspace: bytes of device memory, as in riverrun.h, or nullptr.
#define RR_CUDA_KERNEL(id, flags, op, variant, bound, priority, supports, workspace, run) \
  namespace {                                                                             \
  const rr_kernel id = {sizeof(rr_kernel), flags,    op,        variant, bound,           \
                        priority,          supports, workspace, nullptr, run};            \
  [[maybe_unused]] const int id##_registered = (rr_register_kernel(&id), 0);              \
  }
