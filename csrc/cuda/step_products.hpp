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

// n rows of k values as step_x.cuh writes them.
struct StepInput {
  const unsigned char* x;
  int64_t n, k;
  // Whether sums of squares lie behind the rows, whose root mean square products are divided by,
  // and what is added to the mean.
  bool normed;
  double eps;
};

// One launch. products: up to kMostStepWeights, all with weights of k columns. Where the next node
// begins with rows made of these products alone, the launch makes them, too.
void launch_step_products(const rr_exec* exec, const StepProduct* products, int count,
                          const StepInput& x);

// What the last blocks of a launch with a single row of x make of its products, delta: 256 values
// of the next node's row, which is the norm of x + delta, as soon as all of them are there.
struct StepEnding {
  const float *x_row, *delta;
  float* sum;           // of both
  const float* weight;  // of the norm
  unsigned char* x;     // where the row goes, null where there is none
  int blocks;           // of 256 values in it
  unsigned* counters;
};

// What the next node lets a launch of these products end with; `x`: what they multiply.
StepEnding next_ending(const rr_exec* exec, const StepProduct* products, int count,
                       const StepInput& x);

// Rows that the launch before left for this node, or null.
const unsigned char* ended_for(const rr_exec* exec, const rr_node* node);

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
  const double* squares;  // sums of squares of blocks of rows, or null: products stay as they are
  double eps;
  int n, blocks;  // rows of x, blocks of 256 values of each
  // Bytes of rows of x in shared memory with their sums of squares, 0 where they stay where they
  // are, and of these sums alone.
  int own_x, own_squares;
  int stages, stage_blocks;  // of each warp; blocks of 256 values in one, at most
  StepEnding ending;
};

// For up to 4, 8, 16 and any number of rows of x; shares and shared memory are set here.
void launch_step_4(const rr_exec* exec, StepJob& job);
void launch_step_8(const rr_exec* exec, StepJob& job);
void launch_step_16(const rr_exec* exec, StepJob& job);
void launch_step_32(const rr_exec* exec, StepJob& job);

}  // namespace riverrun
