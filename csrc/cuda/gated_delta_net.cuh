// gated_delta_net, token by token. A block takes some value rows of one head of a sequence through
// the pass with the state in registers: the state is read once, and written where a plane wants it.
// Entries of a log and tokens are steps of one line. Operands of later steps are on their way to
// shared memory meanwhile, and the sum of a token's output over lanes waits for the next token's
// prediction, so that the two sums take the time of one.
#pragma once

#include "delta_rule.cuh"
#include "ops/gated_delta_net.hpp"

namespace {

constexpr int64_t kMostKeys = 1024;

// Whether heads, which have as many keys as values, are not too large.
inline int supports_heads(const rr_tensor& v, char* why, size_t size) {
  return v.shape[2] <= kMostKeys
             ? 1
             : refuse(why, size, "heads of more than 1024 values do not fit into registers");
}

inline int supports_operands(const rr_tensor* in, const rr_tensor* memory, char* why, size_t size) {
  return supports_rule_operands(in, memory, why, size) ? supports_heads(in[2], why, size) : 0;
}

inline int supports_pass(const rr_node* node, char* why, size_t size) {
  return supports_rule(node, why, size) ? supports_heads(node->inputs[2], why, size) : 0;
}

struct Task {
  Heads q, k, v, o;
  const float *g, *beta;
  int64_t g_row, beta_row;  // floats from token to token
  int key_heads, heads, size;
  float scale;
  bool tiled;
  bool whole_state, whole_tokens, whole_log;  // rows of keys are aligned for quads
  int chunk;  // sequences of so many tokens that can go in chunks go elsewhere; 0: none does
  Sequences all;
};

__device__ inline int key_head(const Task& task, int head) {
  return task.tiled ? head % task.key_heads : head / (task.heads / task.key_heads);
}

// Whether a value head is the first of those that read its key head.
__device__ inline bool leads_keys(const Task& task, int head) {
  return task.tiled ? head < task.key_heads : head % (task.heads / task.key_heads) == 0;
}

// Whether a sequence's tokens go in chunks: there are enough, and all change the committed state.
// What it folds goes before them, entry by entry.
__device__ inline bool in_chunks(const Task& task, const Pass& pass) {
  return task.chunk > 0 && pass.tokens >= task.chunk && pass.direct == pass.tokens;
}

// What one block does: value rows `row` .. of a head in the pass of sequence b. Steps are the
// entries that are folded and held, then the tokens; after the first `settled` ones the state is
// the committed one.
struct Work {
  int b, head, key, row;
  Pass pass;
  int entries, steps, settled;
  int64_t first;  // the row of its first token
};

__device__ inline Work work_of(const Task& task, int b, int head, int row) {
  Work work = {b, head, key_head(task, head), row, {}, 0, 0, 0, 0};
  work.pass = task.all.replay.pass(task.all.batch, work.b);
  if (in_chunks(task, work.pass)) work.pass.tokens = work.pass.direct = 0;
  const Pass& pass = work.pass;
  work.entries = pass.folded + (pass.tokens > 0 ? pass.held : 0);
  work.steps = work.entries + pass.tokens;
  work.settled = pass.folded + pass.direct;
  work.first = task.all.batch.first(work.b);
  return work;
}

// Operands of some steps. v holds d for an entry.
template <typename S, bool kByKey>
struct __align__(16) Stage {
  float k[S::kSteps][S::kKeys], q[S::kSteps][S::kKeys];
  float by_key[kByKey ? S::kSteps : 1][S::kKeys];
  float v[S::kSteps][S::kBlockRows];
  float decay[S::kSteps], beta[S::kSteps];
};

constexpr int kStages = 2;  // one in use, one on its way

// Where a step's operands are in memory. q: null for an entry.
struct Source {
  const float *k, *q, *v, *decay, *beta;
  bool whole;
};

__device__ inline Source source_of(const Task& task, const Work& work, int step, bool by_key) {
  const int decays = by_key ? task.size : 1;
  if (step < work.entries) {
    const float* entry = task.all.replay.entry(task.all.kept, work.b, step);
    const float* d = entry + (task.key_heads + work.head) * task.size;
    const float* decay = entry + (task.key_heads + task.heads) * task.size + work.head * decays;
    return {entry + work.key * task.size, nullptr, d + work.row, decay, nullptr, task.whole_log};
  }
  const int64_t row = work.first + step - work.entries;
  return {task.k.at(row, work.key),
          task.q.at(row, work.key),
          task.v.at(row, work.head) + work.row,
          task.g + row * task.g_row + work.head * decays,
          task.beta + row * task.beta_row + work.head,
          task.whole_tokens};
}

__device__ inline void copy_quad(float* to, const float* from, int left, bool whole) {
  if (whole) {
    async_copy16(to, from);
  } else {
    for (int e = 0; e < left; ++e) to[e] = from[e];
  }
}

// A step's decay and beta, on the way from memory.
struct Scalars {
  float decay, beta;
};

// Starts to bring steps first .. first + kSteps - 1. What a thread copies here of `by_key`, and the
// scalars, it completes in arrive.
template <typename S, bool kByKey>
__device__ inline Scalars fetch(const Task& task, const Work& work, int first,
                                Stage<S, kByKey>& stage) {
  constexpr int kQuads = S::kKeys / 4, kRowQuads = S::kBlockRows / 4;
  const int n = min(S::kSteps, work.steps - first), thread = threadIdx.x;
  for (int i = thread; i < n * kQuads; i += S::kThreads) {
    const int step = i / kQuads, key = i % kQuads * 4, left = min(4, task.size - key);
    if (left <= 0) continue;
    const Source from = source_of(task, work, first + step, kByKey);
    copy_quad(&stage.k[step][key], from.k + key, left, from.whole);
    if (from.q) copy_quad(&stage.q[step][key], from.q + key, left, from.whole);
    if (kByKey) copy_quad(&stage.by_key[step][key], from.decay + key, left, from.whole);
  }
  for (int i = thread; i < n * kRowQuads; i += S::kThreads) {
    const int step = i / kRowQuads, row = i % kRowQuads * 4;
    const int left = min(4, task.size - work.row - row);
    if (left <= 0) continue;
    const Source from = source_of(task, work, first + step, kByKey);
    copy_quad(&stage.v[step][row], from.v + row, left, from.whole);
  }
  async_copy_commit();
  if (thread >= n) return {};
  const Source from = source_of(task, work, first + thread, kByKey);
  return {kByKey ? 0.0f : *from.decay, from.beta ? *from.beta : 0.0f};
}

// Waits for what this thread fetched, and makes exp(g) of the decays of tokens.
template <typename S, bool kByKey>
__device__ inline void arrive(const Task& task, const Work& work, int first, const Scalars& scalars,
                              Stage<S, kByKey>& stage) {
  constexpr int kQuads = S::kKeys / 4;
  const int n = min(S::kSteps, work.steps - first), thread = threadIdx.x;
  async_copy_wait<0>();
  if (kByKey) {
    for (int i = thread; i < n * kQuads; i += S::kThreads) {
      const int step = i / kQuads, key = i % kQuads * 4;
      if (first + step < work.entries) continue;
      for (int e = 0; e < min(4, task.size - key); ++e)
        stage.by_key[step][key + e] = expf(stage.by_key[step][key + e]);
    }
  }
  if (thread >= n) return;
  const bool token = first + thread >= work.entries;
  stage.decay[thread] = token && !kByKey ? expf(scalars.decay) : scalars.decay;
  stage.beta[thread] = scalars.beta;
}

// Logs k and decays of the staged tokens that are not committed. Of the blocks that share a head
// the first does it, and keys are logged by the first of the heads that read them.
template <typename S, bool kByKey>
__device__ inline void log_operands(const Task& task, const Work& work, int first,
                                    const Stage<S, kByKey>& stage) {
  if (work.row > 0) return;
  const bool keys = leads_keys(task, work.head);
  const int decays = kByKey ? task.size : 1, n = min(S::kSteps, work.steps - first);
  for (int i = 0; i < n; ++i) {
    const int token = first + i - work.entries;
    if (token < work.pass.direct) continue;
    float* entry = task.all.replay.place(task.all.kept, work.pass, work.b, token);
    float* decay = entry + (task.key_heads + task.heads) * task.size + work.head * decays;
    for (int key = threadIdx.x; keys && key < task.size; key += S::kThreads)
      entry[work.key * task.size + key] = stage.k[i][key];
    for (int key = threadIdx.x; key < decays; key += S::kThreads)
      decay[key] = kByKey ? stage.by_key[i][key] : stage.decay[i];
  }
}

// A thread's rows of the state, and the output of the token before, its lanes' parts not yet added.
template <typename S>
struct StateRows {
  int lane, first, left;  // lane: among those that share rows; left: rows from `first` to the last
  Part<S> m[S::kRows];
  float out[S::kRows];
  float *to, *next;  // where that output goes, null before the first token, and the one after it
};

// Lane r stores row r. A choice of values, not of addresses: the array stays in registers.
template <typename S>
__device__ inline void store_values(const StateRows<S>& rows, float* to,
                                    const float (&values)[S::kRows], float factor) {
  float own = values[0];
#pragma unroll
  for (int r = 1; r < S::kRows; ++r) own = rows.lane == r ? values[r] : own;
  if (rows.lane < min(S::kRows, rows.left)) to[rows.lane] = own * factor;
}

__device__ inline float* state_row(const Task& task, const Work& work, int plane, int row) {
  const int64_t at = int64_t{work.head} * task.size + row;
  return task.all.kept.plane(work.b, plane) + at * task.size;
}

// After a step, where a plane keeps its state.
template <typename S>
__device__ inline void keep_state(const Task& task, const Work& work, const StateRows<S>& rows,
                                  int step) {
  const int age = work.settled - 1 - step;
  if (age < 0 || age >= task.all.kept.planes) return;
  const int plane = task.all.kept.target(work.b, age);
#pragma unroll
  for (int r = 0; r < S::kRows; ++r)
    if (r < rows.left)
      store_keys<S>(state_row(task, work, plane, rows.first + r), rows.m[r], rows.lane, task.size,
                    task.whole_state);
}

template <typename S, bool kByKey>
__device__ inline auto decay_at(const Stage<S, kByKey>& stage, int i, int lane) {
  if constexpr (kByKey)
    return KeyDecay<S>{load_part<S>(stage.by_key[i], lane)};
  else
    return EvenDecay{stage.decay[i]};
}

// Staged steps begin .. end - 1, which are entries.
template <typename S, bool kByKey>
__device__ inline void run_entries(const Task& task, const Work& work, int first, int begin,
                                   int end, const Stage<S, kByKey>& stage, StateRows<S>& rows) {
  for (int i = begin; i < end; ++i) {
    const Part<S> k = load_part<S>(stage.k[i], rows.lane);
    const auto decay = decay_at<S, kByKey>(stage, i, rows.lane);
    const float* d = &stage.v[i][rows.first - work.row];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      decay_row<S>(rows.m[r], decay);
      add_row<S>(rows.m[r], d[r], k);
    }
    keep_state<S>(task, work, rows, first + i);
  }
}

// Staged steps begin .. end - 1, which are tokens.
template <typename S, bool kByKey>
__device__ inline void run_tokens(const Task& task, const Work& work, int first, int begin, int end,
                                  const Stage<S, kByKey>& stage, StateRows<S>& rows) {
  const float *k_at = stage.k[begin], *q_at = stage.q[begin];
  const float* v = &stage.v[begin][rows.first - work.row];
  Part<S> next = load_part<S>(k_at, rows.lane);
#pragma unroll 2
  for (int i = begin; i < end; ++i, q_at += S::kKeys, v += S::kBlockRows) {
    const Part<S> k = next;
    const auto decay = decay_at<S, kByKey>(stage, i, rows.lane);
    const float beta = stage.beta[i];
    if (i + 1 < end) k_at += S::kKeys;
    next = load_part<S>(k_at, rows.lane);
    float d[S::kRows];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      decay_row<S>(rows.m[r], decay);
      d[r] = dot_part(rows.m[r], k);
    }
    sum_rows<S>(d, rows.out);
    if (rows.to) store_values<S>(rows, rows.to, rows.out, task.scale);
    const Part<S> q = load_part<S>(q_at, rows.lane);
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      d[r] = beta * (v[r] - d[r]);
      add_row<S>(rows.m[r], d[r], k);
      rows.out[r] = dot_part(rows.m[r], q);
    }
    rows.to = rows.next;
    rows.next += task.o.row;
    const int token = first + i - work.entries;
    if (token >= work.pass.direct) {
      float* entry = task.all.replay.place(task.all.kept, work.pass, work.b, token);
      float* to = entry + (task.key_heads + work.head) * task.size + rows.first;
      store_values<S>(rows, to, d, 1.0f);
    }
    keep_state<S>(task, work, rows, first + i);
  }
}

template <typename S>
__device__ inline StateRows<S> load_rows(const Task& task, const Work& work) {
  StateRows<S> rows = {};
  rows.lane = threadIdx.x % S::kSpan;
  rows.first = work.row + threadIdx.x / S::kSpan * S::kRows;
  rows.left = task.size - rows.first;
  rows.next = task.o.at(work.first, work.head) + rows.first;
  const int plane = task.all.kept.source(work.b);
#pragma unroll
  for (int r = 0; r < S::kRows; ++r)
    if (r < rows.left)
      rows.m[r] = load_keys<S>(state_row(task, work, plane, rows.first + r), rows.lane, task.size,
                               task.whole_state);
  return rows;
}

__device__ inline void clear_padding(const Task& task) {
  const Batch& batch = task.all.batch;
  const int64_t of_row = int64_t{task.heads} * task.size, step = int64_t{gridDim.x} * blockDim.x;
  const int64_t count = (batch.rows - batch.tokens()) * of_row;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int in_row = static_cast<int>(i % of_row);
    task.o.at(batch.tokens() + i / of_row, in_row / task.size)[in_row % task.size] = 0.0f;
  }
}

template <typename S, bool kByKey>
__device__ inline void clear(Stage<S, kByKey>& stage) {
  constexpr int kFloats = sizeof(Stage<S, kByKey>) / sizeof(float);
  float* at = reinterpret_cast<float*>(&stage);
  for (int i = threadIdx.x; i < kFloats; i += S::kThreads) at[i] = 0.0f;
}

template <typename S, bool kByKey>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) run_pass(Task task) {
  enter_grid();
  auto* stages = reinterpret_cast<Stage<S, kByKey>*>(dynamic_shared());
  if (!sequences_fit(task.all)) return;
  clear_padding(task);
  const unsigned slices = (task.size + S::kBlockRows - 1) / S::kBlockRows;
  const unsigned heads = blockIdx.x / slices;
  const Work work =
      work_of(task, heads / task.heads, heads % task.heads, blockIdx.x % slices * S::kBlockRows);
  if (work.pass.idle()) return;
  if (task.size < S::kKeys || task.size % S::kBlockRows != 0) {
    clear(stages[0]);
    clear(stages[1]);
    __syncthreads();
  }
  Scalars scalars = fetch(task, work, 0, stages[0]);
  StateRows<S> rows = load_rows<S>(task, work);
  for (int first = 0, turn = 0; first < work.steps; first += S::kSteps, turn ^= 1) {
    const Stage<S, kByKey>& stage = stages[turn];
    arrive(task, work, first, scalars, stages[turn]);
    __syncthreads();
    if (first + S::kSteps < work.steps)
      scalars = fetch(task, work, first + S::kSteps, stages[turn ^ 1]);
    log_operands(task, work, first, stage);
    const int n = min(S::kSteps, work.steps - first);
    const int entries = max(0, min(n, work.entries - first));
    run_entries<S, kByKey>(task, work, first, 0, entries, stage, rows);
    if (entries < n) run_tokens<S, kByKey>(task, work, first, entries, n, stage, rows);
  }
  float none[S::kRows] = {};
  sum_rows<S>(none, rows.out);
  if (rows.to) store_values<S>(rows, rows.to, rows.out, task.scale);
}

// What a rule over n rows has whose operands come from elsewhere; kept: the inputs from seq_offsets
// on.
inline Task rule_task(const rr_node* node, const rr_exec* exec, const rr_tensor* kept, int64_t n) {
  const rr_tensor& o = node->outputs[0];
  const double scale = attr_float(node, "scale", 0.0), size = static_cast<double>(o.shape[2]);
  Task task = {};
  task.o = heads_of(o);
  task.heads = static_cast<int>(o.shape[1]);
  task.size = static_cast<int>(o.shape[2]);
  task.scale = static_cast<float>(scale != 0.0 ? scale : 1.0 / sqrt(size));
  task.tiled = attr_is(node, "heads", "tiled");
  task.all = read_sequences(exec, kept[0], n, kept[1], kept[2], kept[3], kept[4], kept + 5);
  const bool quads = task.size % 4 == 0;
  task.whole_state = quads && aligned(task.all.kept.data);
  task.whole_log = quads && aligned(task.all.replay.log) && task.all.replay.width % 4 == 0;
  return task;
}

inline void read_gates(const rr_tensor& g, const rr_tensor& beta, Task& task) {
  const int64_t bytes = sizeof(float);
  task.g = data<const float>(g);
  task.beta = data<const float>(beta);
  task.g_row = g.strides[0] / bytes;
  task.beta_row = beta.strides[0] / bytes;
}

// memory: the place of seq_offsets among the inputs; q, k, v, g and beta are the first.
inline Task read_task(const rr_node* node, const rr_exec* exec, int memory = 5) {
  const rr_tensor* in = node->inputs;
  Task task = rule_task(node, exec, in + memory, in[2].shape[0]);
  task.q = heads_of(in[0]);
  task.k = heads_of(in[1]);
  task.v = heads_of(in[2]);
  task.key_heads = static_cast<int>(in[0].shape[1]);
  read_gates(in[3], in[4], task);
  task.whole_tokens = task.size % 4 == 0 && aligned(task.q) && aligned(task.k) && aligned(task.v) &&
                      aligned(task.g);
  return task;
}

// Launches the pass in this shape; kByKey: a decay for every key.
template <typename S, bool kByKey>
void launch_pass(const rr_exec* exec, const Task& task) {
  const int64_t slices = blocks_for(task.size, S::kBlockRows);
  const dim3 grid(static_cast<unsigned>(task.all.batch.count * task.heads * slices));
  RR_LAUNCH(exec, (run_pass<S, kByKey>), grid, S::kThreads, (kStages * sizeof(Stage<S, kByKey>)),
            task);
}

// For heads of more than 64 values and up to 128.
template <bool kByKey>
void launch_pass_128(const rr_exec* exec, const Task& task) {
  using One = Shape<8, 4, 1>;
  const int64_t blocks =
      int64_t{task.all.batch.count} * task.heads * blocks_for(task.size, One::kBlockRows);
  if (blocks <= 2 * cuda(exec).multiprocessors)
    launch_pass<One, kByKey>(exec, task);
  else  // rows enough to fill the device; two in a thread share the operands
    launch_pass<Shape<8, 4, 2>, kByKey>(exec, task);
}

}  // namespace
