// How a CPU kernel file registers itself. RR_ISA and RR_PRIORITY come from the build, which
// compiles each file of csrc/cpu once per instruction set.
#pragma once

#include "node.hpp"

#ifndef RR_ISA
#define RR_ISA "base"
#define RR_PRIORITY 0
#endif

// The table is constant data and the initialiser one call, so that loading the library runs no
// instruction that the processor may lack.
#define RR_KERNEL(id, flags, op, supports, workspace, tasks, run)             \
  namespace {                                                                 \
  const rr_kernel id = {sizeof(rr_kernel), flags,    op,        RR_ISA, "",   \
                        RR_PRIORITY,       supports, workspace, tasks,  run}; \
  [[maybe_unused]] const int id##_registered = (rr_register_kernel(&id), 0);  \
  }

// A riverrun::PackedProduct, of products.hpp.
#define RR_PRODUCT(id, dtype, weight_bytes, prepared_bytes, prepare, multiply)       \
  namespace {                                                                        \
  static_assert(dtype < riverrun::kProductTypes);                                    \
  const riverrun::PackedProduct id = {dtype,          RR_PRIORITY, weight_bytes,     \
                                      prepared_bytes, prepare,     multiply};        \
  [[maybe_unused]] const int id##_registered = (riverrun::register_product(&id), 0); \
  }

#define RR_PACKER(id, dtype, layout, bytes, pack)                            \
  namespace {                                                                \
  const rr_packer id = {sizeof(rr_packer), dtype, layout, bytes, pack};      \
  [[maybe_unused]] const int id##_registered = (rr_register_packer(&id), 0); \
  }
