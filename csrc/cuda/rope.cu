// rope: a block turns a few heads of one token. Its threads first form the sines and cosines of all
// pairs, from angles that are reduced to one turn in f64; then a warp at a time takes a head.
#include "ops/rope.hpp"
#include "rope.cuh"
#include "rows.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int64_t kHeads = kThreads / kWarp;  // to a block

struct Task {
  Rows x, y;
  int64_t heads, head_size, groups;  // groups of heads, a block each
  Turning turning;
};

__global__ void __launch_bounds__(kThreads) rotate(Task task) {
  enter_grid();
  __shared__ float2 turns[kMaxPairs];
  const Turning& t = task.turning;
  const int64_t token = blockIdx.x / task.groups;
  const int64_t head = blockIdx.x % task.groups * kHeads + threadIdx.x / kWarp;
  for (int i = threadIdx.x; i < t.pairs; i += kThreads)
    turns[i] = turned(t, token, i, turns_each(t, i));
  __syncthreads();
  if (head >= task.heads) return;
  const float* in = row_at(task.x, token * task.heads + head);
  float* out = row_at(task.y, token * task.heads + head);
  const int lane = threadIdx.x % kWarp;
#pragma unroll 2
  for (int i = lane; i < t.pairs; i += kWarp) {
    const int first = t.first(i), second = t.second(i);
    const float a = in[first], b = in[second], c = turns[i].x, s = turns[i].y;
    out[first] = a * c - b * s;
    out[second] = a * s + b * c;
  }
  if (out == in) return;
  for (int64_t i = 2 * t.pairs + lane; i < task.head_size; i += kWarp) out[i] = in[i];
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  if (numel(x) == 0) return;
  const int64_t groups = blocks_for(x.shape[1], kHeads);
  const Task task = {rows_of(x), rows_of(node->outputs[0]),
                     x.shape[1], x.shape[2],
                     groups,     read_turning(node, node->inputs[1], node->inputs[2])};
  const dim3 grid(static_cast<unsigned>(x.shape[0] * groups));
  RR_LAUNCH(exec, rotate, grid, kThreads, 0, task);
}

}  // namespace

RR_CUDA_KERNEL(rope, RR_ROW_EXACT, "rope", "cuda", "", 0, supports_rope, nullptr, run)
