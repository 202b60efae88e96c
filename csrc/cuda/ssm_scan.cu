// ssm_scan, token by token. A few lanes take a value row of a head of a sequence through the pass
// with its state in registers: it is read once, and written where a plane wants it. Entries of a
// log and tokens are steps of one line.
#include "activation.cuh"
#include "delta_rule.cuh"
#include "ops/ssm_scan.hpp"

namespace {

constexpr int64_t kMostKeys = 1024;

int supports(const rr_node* node, char* why, size_t size) {
  if (!supports_scan(node, why, size)) return 0;
  return node->inputs[3].shape[2] <= kMostKeys
             ? 1
             : refuse(why, size, "states of more than 1024 elements do not fit into registers");
}

struct Task {
  Heads x, b, c, y;
  const float *dt, *a;
  int heads, values, groups, size;
  bool whole_state, whole_tokens, whole_log;  // rows of states are aligned for quads
  Sequences all;
};

// A value row in the pass of sequence b. Steps are the entries that are folded and held, then the
// tokens; after the first `settled` ones the state is the committed one.
struct Work {
  int b, head, group, row, lane;
  bool there;
  Pass pass;
  int entries, settled;
};

template <typename S>
__device__ inline Work work_of(const Task& task) {
  const int slices = (task.values + S::kBlockRows - 1) / S::kBlockRows;
  Work work = {};
  work.row = static_cast<int>(blockIdx.x % slices) * S::kBlockRows + threadIdx.x / S::kSpan;
  work.head = static_cast<int>(blockIdx.x / slices % task.heads);
  work.b = static_cast<int>(blockIdx.x / slices / task.heads);
  work.group = work.head / (task.heads / task.groups);
  work.lane = threadIdx.x % S::kSpan;
  work.there = work.row < task.values;
  work.pass = task.all.replay.pass(task.all.batch, work.b);
  work.entries = work.pass.folded + (work.pass.tokens > 0 ? work.pass.held : 0);
  work.settled = work.pass.folded + work.pass.direct;
  return work;
}

__device__ inline float* state_row(const Task& task, const Work& work, int plane) {
  const int64_t at = int64_t{work.head} * task.values + work.row;
  return task.all.kept.plane(work.b, plane) + at * task.size;
}

// After a step, where a plane keeps its state.
template <typename S>
__device__ inline void keep_state(const Task& task, const Work& work, const Part<S>& m, int step) {
  const int age = work.settled - 1 - step;
  if (!work.there || age < 0 || age >= task.all.kept.planes) return;
  float* to = state_row(task, work, task.all.kept.target(work.b, age));
  store_keys<S>(to, m, work.lane, task.size, task.whole_state);
}

template <typename S>
__device__ inline void advance(Part<S>& m, const Part<S>& k, float d, float decay) {
  decay_row<S>(m, EvenDecay{decay});
  add_row<S>(m, d, k);
}

template <typename S>
__device__ inline void run_entries(const Task& task, const Work& work, Part<S>& m) {
  const int keys = task.groups * task.size, values = task.heads * task.values;
  for (int e = 0; e < work.entries; ++e) {
    const float* entry = task.all.replay.entry(task.all.kept, work.b, e);
    const Part<S> k =
        load_keys<S>(entry + work.group * task.size, work.lane, task.size, task.whole_log);
    const float d = work.there ? entry[keys + work.head * task.values + work.row] : 0.0f;
    advance<S>(m, k, d, entry[keys + values + work.head]);
    keep_state<S>(task, work, m, e);
  }
}

// What the log gets of a token. Of the threads that share operands the first ones do it.
template <typename S>
__device__ inline void log_token(const Task& task, const Work& work, int t, const Part<S>& k,
                                 float d, float decay) {
  const int keys = task.groups * task.size, values = task.heads * task.values;
  float* entry = task.all.replay.place(task.all.kept, work.pass, work.b, t);
  if (work.there && work.lane == 0) entry[keys + work.head * task.values + work.row] = d;
  if (work.row > 0) return;
  if (work.lane == 0) entry[keys + values + work.head] = decay;
  if (work.head % (task.heads / task.groups) == 0)
    store_keys<S>(entry + work.group * task.size, k, work.lane, task.size, task.whole_log);
}

template <typename S>
__device__ inline void run_tokens(const Task& task, const Work& work, Part<S>& m) {
  const float rate = task.a[work.head];
  for (int t = 0; t < work.pass.tokens; ++t) {
    const int64_t row = task.all.batch.first(work.b) + t;
    const float step = softplus(task.dt[row * task.heads + work.head]), decay = expf(step * rate);
    const Part<S> k =
        load_keys<S>(task.b.at(row, work.group), work.lane, task.size, task.whole_tokens);
    const Part<S> c =
        load_keys<S>(task.c.at(row, work.group), work.lane, task.size, task.whole_tokens);
    const float d = work.there ? step * task.x.at(row, work.head)[work.row] : 0.0f;
    advance<S>(m, k, d, decay);
    float y = dot_part<S>(m, c);
#pragma unroll
    for (int to = S::kSpan / 2; to > 0; to /= 2) y += __shfl_xor_sync(kAllLanes, y, to);
    if (work.there && work.lane == 0) task.y.at(row, work.head)[work.row] = y;
    if (t >= work.pass.direct) log_token<S>(task, work, t, k, d, decay);
    keep_state<S>(task, work, m, work.entries + t);
  }
}

__device__ inline void clear_padding(const Task& task) {
  const Batch& batch = task.all.batch;
  const int64_t of_row = int64_t{task.heads} * task.values, step = int64_t{gridDim.x} * blockDim.x;
  const int64_t count = (batch.rows - batch.tokens()) * of_row;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int in_row = static_cast<int>(i % of_row);
    task.y.at(batch.tokens() + i / of_row, in_row / task.values)[in_row % task.values] = 0.0f;
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) scan(Task task) {
  enter_grid();
  if (!sequences_fit(task.all)) return;
  clear_padding(task);
  const Work work = work_of<S>(task);
  if (work.pass.idle()) return;
  Part<S> m = {};
  if (work.there)
    m = load_keys<S>(state_row(task, work, task.all.kept.source(work.b)), work.lane, task.size,
                     task.whole_state);
  run_entries<S>(task, work, m);
  run_tokens<S>(task, work, m);
}

template <typename S>
void launch(const rr_exec* exec, const Task& task) {
  const int64_t slices = blocks_for(task.values, S::kBlockRows);
  const dim3 grid(static_cast<unsigned>(task.all.batch.count * task.heads * slices));
  RR_LAUNCH(exec, scan<S>, grid, S::kThreads, 0, task);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor* in = node->inputs;
  Task task = {};
  task.x = heads_of(in[0]);
  task.b = heads_of(in[3]);
  task.c = heads_of(in[4]);
  task.y = heads_of(node->outputs[0]);
  task.dt = data<const float>(in[1]);
  task.a = data<const float>(in[2]);
  task.heads = static_cast<int>(in[0].shape[1]);
  task.values = static_cast<int>(in[0].shape[2]);
  task.groups = static_cast<int>(in[3].shape[1]);
  task.size = static_cast<int>(in[3].shape[2]);
  task.all = read_sequences(exec, in[5], in[0].shape[0], in[6], in[7], in[8], in[9], in + 10);
  const bool quads = task.size % 4 == 0;
  task.whole_state = quads && aligned(task.all.kept.data);
  task.whole_tokens = quads && aligned(task.b) && aligned(task.c);
  task.whole_log = quads && aligned(task.all.replay.log) && task.all.replay.width % 4 == 0;
  if (task.size <= 32)
    launch<Shape<8, 1, 1>>(exec, task);
  else if (task.size <= 64)
    launch<Shape<8, 2, 1>>(exec, task);
  else if (task.size <= 128)
    launch<Shape<8, 4, 1>>(exec, task);
  else if (task.size <= 256)
    launch<Shape<16, 4, 1>>(exec, task);
  else
    launch<Shape<32, 8, 1>>(exec, task);
}

}  // namespace

RR_CUDA_KERNEL(kernel, RR_ROW_EXACT, "ssm_scan", "cuda", "", 0, supports, nullptr, run)
