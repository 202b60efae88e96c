#include "mul_mat_step.cuh"

void riverrun::launch_step_32(const rr_exec* exec, StepJob& job) {
  launch_step_alone<8, RR_STEP_TYPES>(exec, job);
}
