// How fast the processor can be: what measured kernels are compared with.
#pragma once

#include "thread_pool.hpp"

namespace riverrun {

// f32 operations a second of all threads in fused multiply-adds (two operations each; a product
// and a sum where there are none) on registers alone, at the highest instruction set in use.
double fma_rate(ThreadPool& pool);

}  // namespace riverrun
