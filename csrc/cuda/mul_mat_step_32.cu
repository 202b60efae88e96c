#include "mul_mat_step.cuh"
#include "step_wide.hpp"

namespace {

void launch_alike(const rr_exec* exec, riverrun::StepJob& job) {
  if (riverrun::launch_wide(exec, job)) return;
  launch_step_alone<8, RR_STEP_TYPES>(exec, job);
}

}  // namespace

// A launch for each type: code for several is slower by more than a launch takes.
void riverrun::launch_step_32(const rr_exec* exec, StepJob& job) {
  bool launched[kMostStepWeights] = {};
  for (int first = 0; first < job.count; ++first) {
    if (launched[first]) continue;
    StepJob alike = job;
    alike.count = 0;
    for (int i = first; i < job.count; ++i) {
      if (job.weights[i].dtype != job.weights[first].dtype) continue;
      launched[i] = true;
      alike.weights[alike.count++] = job.weights[i];
    }
    launch_alike(exec, alike);
  }
}
