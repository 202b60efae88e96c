// Element types that casts read and write.
#pragma once

#include "node.hpp"

namespace {

[[maybe_unused]] inline bool castable(uint32_t dtype) {
  return dtype == RR_F32 || dtype == RR_F16 || dtype == RR_BF16 || dtype == RR_I32;
}

}  // namespace
