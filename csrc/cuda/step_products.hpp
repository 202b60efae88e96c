// Products of few rows of x with one or several weights in one launch (mul_mat_step.cuh).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "riverrun.h"

namespace riverrun {

constexpr int kMostStepWeights = 8;

// y[n, m] = x[n, k] w[m, k]^T, rows of y `y_row` values apart.
struct StepProduct {
  const rr_tensor* w;
  float* y;
  int64_t y_row;
};

// Whether a launch takes this weight, a matrix, on the current device; why not, if not.
bool step_takes(const rr_tensor& w, char* why, size_t size);

// One launch. products: up to kMostStepWeights, all with weights of k columns. x: n rows of k
// values as step_x.cuh writes them, step_x_bytes(n, k) bytes.
void launch_step_products(const rr_exec* exec, const StepProduct* products, int count,
                          const void* x, int64_t n, int64_t k);

// A weight as the kernel sees it.
struct StepWeight {
  const unsigned char* data;
  float* y;
  int64_t y_row;  // values
  int rows;
  uint32_t dtype;
  int first, grid;  // blocks of the kernel that share it
  int each, more;   // eights of rows that each of them takes; how many take one more
};

struct StepJob {
  StepWeight weights[kMostStepWeights];
  int count;
  bool constant;  // no kernel writes a weight
  const unsigned char* x;
  int n, blocks;  // rows of x, blocks of 256 values of each
  int own_x;      // bytes of rows of x in shared memory, 0 where they stay where they are
  int stages, stage_blocks;  // of each warp; blocks of 256 values in one, at most
};

// For up to 4, 8, 16 and any number of rows of x; shares and shared memory are set here.
void launch_step_4(const rr_exec* exec, StepJob& job);
void launch_step_8(const rr_exec* exec, StepJob& job);
void launch_step_16(const rr_exec* exec, StepJob& job);
void launch_step_32(const rr_exec* exec, StepJob& job);

}  // namespace riverrun
