// ssm_conv, ssm_conv_silu: channels are split over threads, and go in blocks whose taps and old
// tail are copied to scratch first: the planes that are written may be the one that is read.

#include "ops/ssm_conv.hpp"

#include "activation.hpp"
#include "kernel.hpp"
#include "replay.hpp"

namespace {

constexpr int64_t kBlock = 256;  // channels: rows of a block then share the first-level cache
constexpr int64_t kAhead = 4;    // rows from the one that is computed to those that are asked for

struct Task {
  const rr_tensor *x, *y;
  const float* w;
  Batch batch;
  Kept kept;
  Replay replay;
  int64_t channels, width;  // width: taps
  bool silu;                // of what is summed
};

// Channels first .. first + count - 1 of one thread, and its scratch.
struct Block {
  int64_t first, count;
  float *taps, *old;   // [width, kBlock] and [width - 1, kBlock]
  const float** rows;  // [width]
};

// Input number i of sequence b; negative ones come from the log, and before that the old tail.
const float* input(const Task& task, int64_t b, const Pass& pass, int64_t i, const Block& block) {
  const int64_t live = pass.folded + pass.held;
  if (i < -live) return block.old + (i + live + task.width - 1) * kBlock;
  if (i < 0) return task.replay.entry(task.kept, b, live + i) + block.first;
  const int64_t row = task.batch.first(b) + i;
  const char* x = static_cast<const char*>(task.x->data) + row * task.x->strides[0];
  return reinterpret_cast<const float*>(x) + block.first;
}

float* output(const Task& task, int64_t i, const Block& block) {
  char* y = static_cast<char*>(task.y->data) + i * task.y->strides[0];
  return reinterpret_cast<float*>(y) + block.first;
}

// From [channels, width] to [width, kBlock].
void load_taps(const Task& task, const Block& block) {
  const float* w = task.w + block.first * task.width;
  int64_t c = 0;
  for (; task.width == 4 && c + kLanes <= block.count; c += kLanes) {
    const float* at = w + c * 4;
    const vec a = load_vec(at), b = load_vec(at + kLanes), d = load_vec(at + 2 * kLanes),
              e = load_vec(at + 3 * kLanes);
    const vec low_even = even_lanes(a, b), high_even = even_lanes(d, e);
    const vec low_odd = odd_lanes(a, b), high_odd = odd_lanes(d, e);
    store_vec(block.taps + c, even_lanes(low_even, high_even));
    store_vec(block.taps + kBlock + c, even_lanes(low_odd, high_odd));
    store_vec(block.taps + 2 * kBlock + c, odd_lanes(low_even, high_even));
    store_vec(block.taps + 3 * kBlock + c, odd_lanes(low_odd, high_odd));
  }
  for (; c < block.count; ++c)
    for (int64_t t = 0; t < task.width; ++t) block.taps[t * kBlock + c] = w[c * task.width + t];
}

void load_old(const Task& task, int64_t b, const Block& block) {
  const float* tail = task.kept.source(b) + block.first;
  for (int64_t t = 0; t + 1 < task.width; ++t)
    memcpy(block.old + t * kBlock, tail + t * task.channels,
           static_cast<size_t>(block.count) * sizeof(float));
}

// One output row of a block; W is the number of taps, 0 where it is not known before; SILU: of the
// sums. later: a row of inputs that is asked for, with the outputs there: rows of a block lie
// apart, so that the hardware does not see the next ones coming.
template <int W, bool SILU>
void convolve(const Task& task, float* y, const float* later_x, const float* later_y,
              const Block& block) {
  const int64_t width = W ? W : task.width;
  const int64_t whole = block.count / kLanes * kLanes, rest = block.count - whole;
  for (int64_t c = 0; c < whole; c += kLanes) {
    if (c % 16 == 0) {
      __builtin_prefetch(later_x + c);
      __builtin_prefetch(later_y + c, 1);
    }
    vec sum = {};
    for (int64_t t = 0; t < width; ++t)
      sum = fma_vec(load_vec(block.taps + t * kBlock + c), load_vec(block.rows[t] + c), sum);
    store_vec(y + c, SILU ? silu_vec(sum) : sum);
  }
  if (rest == 0) return;
  vec sum = {};
  for (int64_t t = 0; t < width; ++t)
    sum = fma_vec(load_vec(block.taps + t * kBlock + whole), load_vec(block.rows[t] + whole, rest),
                  sum);
  store_vec(y + whole, SILU ? silu_vec(sum) : sum, rest);
}

template <bool SILU>
void convolve_all(const Task& task, int64_t b, const Pass& pass, const Block& block) {
  for (int64_t i = 0; i < pass.tokens; ++i) {
    for (int64_t t = 0; t < task.width; ++t)
      block.rows[t] = input(task, b, pass, i - task.width + 1 + t, block);
    float* y = output(task, task.batch.first(b) + i, block);
    const int64_t later = i + kAhead < pass.tokens ? i + kAhead : i;
    const float* later_x = input(task, b, pass, later, block);
    const float* later_y = output(task, task.batch.first(b) + later, block);
    if (task.width == 4)
      convolve<4, SILU>(task, y, later_x, later_y, block);
    else
      convolve<0, SILU>(task, y, later_x, later_y, block);
  }
}

void store_tails(const Task& task, int64_t b, const Pass& pass, const Block& block) {
  const int64_t settled = pass.direct - pass.held, states = pass.folded + pass.direct;
  for (int64_t age = 0; age < task.kept.planes && age < states; ++age) {
    float* tail = task.kept.target(b, age) + block.first;
    const int64_t oldest = settled - age - task.width + 1;
    for (int64_t t = 0; t + 1 < task.width; ++t)
      memcpy(tail + t * task.channels, input(task, b, pass, oldest + t, block),
             static_cast<size_t>(block.count) * sizeof(float));
  }
}

// The entries read here are others than those that are written.
void log_inputs(const Task& task, int64_t b, const Pass& pass, const Block& block) {
  for (int64_t t = pass.direct; t < pass.tokens; ++t)
    memcpy(task.replay.place(task.kept, pass, b, t) + block.first, input(task, b, pass, t, block),
           static_cast<size_t>(block.count) * sizeof(float));
}

void run_block(const Task& task, const Block& block) {
  load_taps(task, block);
  for (int64_t b = 0; b < task.batch.count; ++b) {
    const Pass pass = task.replay.pass(task.batch, b);
    if (pass.idle()) continue;
    load_old(task, b, block);
    if (task.silu)
      convolve_all<true>(task, b, pass, block);
    else
      convolve_all<false>(task, b, pass, block);
    store_tails(task, b, pass, block);
    log_inputs(task, b, pass, block);
  }
  for (int64_t i = task.batch.tokens(); i < task.y->shape[0]; ++i)
    memset(output(task, i, block), 0, static_cast<size_t>(block.count) * sizeof(float));
}

// Taps, old tail, and the row pointers, which take the room of two floats each.
int64_t scratch_floats(int64_t width) {
  return (2 * width - 1) * kBlock + (2 * width + 15) / 16 * 16;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor* in = node->inputs;
  const Task task = {&in[0],
                     &node->outputs[0],
                     static_cast<const float*>(in[1].data),
                     read_batch(in[2]),
                     read_kept(in[4], in[3], in[5], in[6]),
                     read_replay(in + 7),
                     in[1].shape[0],
                     in[1].shape[1],
                     strcmp(node->op, "ssm_conv_silu") == 0};
  if (!check_batch(task.batch, in[0].shape[0], exec) ||
      !check_replay(task.replay, task.batch, exec) ||
      !check_kept(task.kept, task.batch, exec, task.replay.folded))
    return;
  float* scratch = static_cast<float*>(exec->workspace) + exec->thread * scratch_floats(task.width);
  const Range own = split(exec, task.channels, 16);
  for (int64_t c = own.begin; c < own.end; c += kBlock) {
    const int64_t count = own.end - c < kBlock ? own.end - c : kBlock;
    float* old = scratch + task.width * kBlock;
    auto** rows = reinterpret_cast<const float**>(old + (task.width - 1) * kBlock);
    run_block(task, {c, count, scratch, old, rows});
  }
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  return static_cast<size_t>(n_threads * scratch_floats(node->inputs[1].shape[1])) * sizeof(float);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1];
  const int64_t folds = present(node->inputs[7]) ? node->inputs[9].shape[0] : 0;
  const int64_t work = (x.shape[0] + folds + w.shape[1]) * x.shape[1];
  return static_cast<int32_t>(work < 16384 ? 1 : (x.shape[1] + 63) / 64);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "ssm_conv", supports, workspace, tasks, run)
RR_KERNEL(kernel_silu, RR_ROW_EXACT, "ssm_conv_silu", supports, workspace, tasks, run)
