#include "mul_mat_step.cuh"
#include "step_wide.hpp"

void riverrun::launch_step_32(const rr_exec* exec, StepJob& job) {
  if (launch_wide(exec, job)) return;
  launch_step_alone<8, RR_STEP_TYPES>(exec, job);
}
