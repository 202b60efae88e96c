#include "mul_mat_step.cuh"

void riverrun::launch_step_16(const rr_exec* exec, StepJob& job) {
  launch_step_alone<4, RR_STEP_TYPES>(exec, job);
}
