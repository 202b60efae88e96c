// How fast the processor can be: what measured kernels are compared with.
#pragma once

#include <stdint.h>

#include "thread_pool.hpp"

namespace riverrun {

// f32 operations a second of all threads in fused multiply-adds (two operations each; a product
// and a sum where there are none) on registers alone, at the highest instruction set in use.
double fma_rate(ThreadPool& pool);

// Bytes a second that all threads read of memory, which starts at a multiple of 64: the fastest of
// several runs over all of it with each of several distances at which it is fetched ahead.
double read_rate(ThreadPool& pool, const uint8_t* memory, int64_t bytes, int repetitions);

}  // namespace riverrun
