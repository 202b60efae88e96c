// Step products of more than 16 rows of x on warpgroups (step_wide.cuh).
#pragma once

#include "step_products.hpp"

namespace riverrun {

// Whether they are launched: not where the card does not have them, nor for weights of other types
// or of several, nor for weights so small that multiply_step is faster.
bool launch_wide(const rr_exec* exec, StepJob& job);

}  // namespace riverrun
