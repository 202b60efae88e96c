// What the parts of the emulated runtime know of each other.
#pragma once

#include <functional>

#include "runtime.hpp"

namespace emulate {

// This thread's last error, where it is one; returned again, for `return set_error(...)`.
cudaError_t set_error(cudaError_t error);

// A kernel failed while it ran: the last error, and that of every wait until the error is taken.
void set_fault(cudaError_t error);
cudaError_t fault();

// Does the work now, or records it where the stream is capturing.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

// Called by what CUDA forbids while a stream captures: the error, after which the capture is
// invalid, or success.
cudaError_t forbid_capture();

// Bytes of dynamic shared memory that a kernel may be launched with.
size_t shared_limit(const void* function);

// Whether [memory, memory + size) leaves the allocation that it starts in.
bool leaves_allocation(const void* memory, size_t size);

int device_count();
int current_device();

}  // namespace emulate
