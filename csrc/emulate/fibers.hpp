// Running a grid: blocks in turn, the threads of a block as fibers that switch at barriers.
//
// RIVERRUN_EMULATE_ORDER=ascending|descending|shuffled: in which order the threads of a block go on
// after a barrier; results that depend on it show that a barrier is missing.
#pragma once

#include "language.hpp"
#include "runtime.hpp"

namespace emulate {

// Runs body once for every thread of the grid, or records it where the stream is capturing. What is
// wrong with the launch becomes the last error (cudaGetLastError), as in CUDA. name: for messages.
void launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::function<void()> body,
            const char* name = "kernel", const void* function = nullptr);

// kernel<<<grid, block, shared, stream>>>(arguments...): the arguments are evaluated now.
template <typename... Parameters, typename... Arguments>
void launch_kernel(const char* name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   void (*kernel)(Parameters...), Arguments&&... arguments) {
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  launch(
      grid, block, shared, stream, [kernel, values] { std::apply(kernel, values); }, name,
      reinterpret_cast<const void*>(kernel));
}

// The block's dynamic shared memory, 16-byte aligned; all bits set when a block starts.
unsigned char* dynamic_shared();

// This thread's lane in its warp.
int lane();

// Waits for all lanes of `mask`, which must call it with the same mask and `finish`. The last of
// them calls finish(what each lane gave as `mine`, mask), then all go on.
using Finish = void (*)(void* const* lanes, unsigned mask);
void collective(unsigned mask, void* mine, Finish finish);

// 16 bytes to be copied by the calling thread when it waits for the group that they are in; ends
// the group; waits until `left` groups are unfinished.
void async_copy(void* to, const void* from);
void async_copy_commit();
void async_copy_finish(int left);

// Ends the running block; the error surfaces as one of a kernel's run.
[[noreturn]] void fail_block(cudaError_t error, const char* message);

}  // namespace emulate

// All threads of the block that have not returned.
void __syncthreads();
