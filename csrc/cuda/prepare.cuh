// Formats that look codes up in a table have prepare(), which puts it into shared memory.
#pragma once

#include "device.cuh"

namespace {

// T::prepare(), of those that have it.
template <class T>
__device__ inline auto prepare(int) -> decltype(T::prepare()) {
  T::prepare();
}

template <class T>
__device__ inline void prepare(long) {}

}  // namespace
