#include "step_wide.cuh"

bool riverrun::launch_wide(const rr_exec* exec, StepJob& job) {
  return launch_wide_of_any<RR_Q4_K, RR_Q6_K>(exec, job);
}
