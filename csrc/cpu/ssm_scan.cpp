// ssm_scan, token by token. The steps and decays of all tokens come first, shared by the threads;
// then each takes value rows of a head through a sequence's pass, a few at a time while they lie in
// the first-level cache. Where the state after a token belongs is also where the next token reads
// it; tokens that are only logged go on in scratch.

#include "activation.hpp"
#include "kernel.hpp"
#include "replay.hpp"

namespace {

constexpr int kRows = 4;  // value rows whose sums stay in registers

struct Task {
  const rr_tensor *x, *b, *c, *y;
  const float *dt, *a;
  Batch batch;
  Kept kept;
  Replay replay;
  int64_t heads, values, groups, size;
  float *steps, *decays;  // [N, heads]
};

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  const rr_tensor *const rows[] = {&in[0], &in[3], &in[4]}, *const plain[] = {&in[1], &in[2]};
  for (const rr_tensor* t : rows)
    if (t->dtype != RR_F32 || t->rank != 3 || !dense_tail(*t, 1))
      return refuse(why, size, "x, b and c need to be f32 of rank 3 and dense along the last axis");
  for (const rr_tensor* t : plain)
    if (t->dtype != RR_F32 || !dense(*t)) return refuse(why, size, "dt and a need to be dense f32");
  if (in[5].dtype != RR_I32 || !dense(in[5]))
    return refuse(why, size, "seq_offsets needs to be dense i32");
  const char* complaint = kept_complaint(in[7], in[6], in[8], in[9]);
  if (*complaint) return refuse(why, size, complaint);
  const int64_t heads = in[0].shape[1];
  const int64_t entry = in[3].shape[1] * in[3].shape[2] + heads * in[0].shape[2] + heads;
  complaint = replay_complaint(in + 10, in[7], entry);
  return *complaint ? refuse(why, size, complaint) : 1;
}

float* head_ptr(const rr_tensor& t, int64_t row, int64_t head) {
  return reinterpret_cast<float*>(static_cast<char*>(t.data) + row * t.strides[0] +
                                  head * t.strides[1]);
}

// softplus(dt), and its product with a as an exponential, of some tokens' heads.
void prepare(const Task& task, Range tokens) {
  const int64_t last = tokens.end * task.heads;
  for (int64_t i = tokens.begin * task.heads; i < last; i += kLanes) {
    const int64_t n = last - i < kLanes ? last - i : kLanes;
    float rates[kLanes] = {};
    for (int64_t k = 0; k < n; ++k) rates[k] = task.a[(i + k) % task.heads];
    const vec step = softplus_vec(load_vec(task.dt + i, n));
    const vec decay = exp_vec(step * load_vec(rates));
    store_vec(task.steps + i, step, n);
    store_vec(task.decays + i, decay < 0x1p-126f ? vec{} : decay, n);
  }
}

// Rows `row` .. row + count - 1 of a head in the pass of sequence b; work: their working copy.
struct Part {
  int64_t b, head, row, count, group;
  Pass pass;
  float* work;
};

// R value rows, from `from` to `to`, which may be the same place: m <- m * decay + d k. Returns
// nothing where c is null, and otherwise writes m c.
template <int R>
void step_rows(const Task& task, const float* k, const float* d, float decay, const float* from,
               float* to, const float* c, float* y) {
  const int64_t size = task.size;
  const vec fade = vec_of(decay);
  vec sum[4] = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = size - i < kLanes ? size - i : kLanes;
    const bool whole = n == kLanes;
    const vec key = whole ? load_vec(k + i) : load_vec(k + i, n);
    const vec query = !c ? vec{} : whole ? load_vec(c + i) : load_vec(c + i, n);
    for (int r = 0; r < R; ++r) {
      const float* at = from + r * size + i;
      const vec old = whole ? load_vec(at) : load_vec(at, n);
      const vec m = fma_vec(vec_of(d[r]), key, old * fade);
      if (whole)
        store_vec(to + r * size + i, m);
      else
        store_vec(to + r * size + i, m, n);
      sum[r] = fma_vec(m, query, sum[r]);
    }
  }
  if (!c) return;
  const v4 total = sums(sum[0], sum[1], sum[2], sum[3]);
  for (int r = 0; r < R; ++r) y[r] = total[r];
}

void step(const Task& task, const Part& part, const float* k, const float* d, float decay,
          const float* from, float* to, const float* c, float* y) {
  if (part.count == kRows) return step_rows<kRows>(task, k, d, decay, from, to, c, y);
  for (int64_t r = 0; r < part.count; ++r)
    step_rows<1>(task, k, d + r, decay, from + r * task.size, to + r * task.size, c,
                 c ? y + r : nullptr);
}

// Entries first .. first + n - 1 of the log, from `from` to `to`.
void advance(const Task& task, const Part& part, int64_t first, int64_t n, const float* from,
             float* to) {
  const int64_t keys = task.groups * task.size, values = task.heads * task.values;
  for (int64_t e = first; e < first + n; ++e) {
    const float* entry = task.replay.entry(task.kept, part.b, e);
    const float* d = entry + keys + part.head * task.values + part.row;
    step(task, part, entry + part.group * task.size, d, entry[keys + values + part.head], from, to,
         nullptr, nullptr);
    from = to;
  }
}

// What the log gets of token t. Of the parts that share operands the first one does it.
void log_token(const Task& task, const Part& part, int64_t t, const float* k, const float* d,
               float decay) {
  float* entry = task.replay.place(task.kept, part.pass, part.b, t);
  const int64_t keys = task.groups * task.size, values = task.heads * task.values;
  const size_t bytes = sizeof(float);
  memcpy(entry + keys + part.head * task.values + part.row, d,
         static_cast<size_t>(part.count) * bytes);
  if (part.row > 0) return;
  entry[keys + values + part.head] = decay;
  if (part.head % (task.heads / task.groups) == 0)
    memcpy(entry + part.group * task.size, k, static_cast<size_t>(task.size) * bytes);
}

void run_part(const Task& task, const Part& part) {
  const Pass& pass = part.pass;
  const int64_t at = (part.head * task.values + part.row) * task.size;
  const float* from = task.kept.source(part.b) + at;
  if (pass.folded > 0) advance(task, part, 0, pass.folded, from, task.kept.target(part.b, 0) + at);
  for (int64_t t = 0; t < pass.tokens; ++t) {
    const bool direct = t < pass.direct;
    if (t == pass.direct && pass.held > 0) {
      advance(task, part, pass.folded, pass.held, from, part.work);
      from = part.work;
    }
    const int64_t age = pass.direct - 1 - t, row = task.batch.first(part.b) + t;
    float* to =
        direct ? task.kept.target(part.b, age < task.kept.planes ? age : 0) + at : part.work;
    const int64_t scalar = row * task.heads + part.head;
    const float *x = head_ptr(*task.x, row, part.head) + part.row,
                *k = head_ptr(*task.b, row, part.group), *c = head_ptr(*task.c, row, part.group);
    float d[kRows];
    for (int64_t r = 0; r < part.count; ++r) d[r] = task.steps[scalar] * x[r];
    step(task, part, k, d, task.decays[scalar], from, to, c,
         head_ptr(*task.y, row, part.head) + part.row);
    if (!direct) log_token(task, part, t, k, d, task.decays[scalar]);
    from = to;
  }
}

int64_t blocks(const Task& task) {
  return (task.values + kRows - 1) / kRows;
}

// Units are kRows value rows of a head of a sequence.
void run_own(const Task& task, const rr_exec* exec, float* work) {
  const int64_t of_head = blocks(task), of_sequence = task.heads * of_head;
  for (int64_t b = 0; b < task.batch.count; ++b) {
    const Pass pass = task.replay.pass(task.batch, b);
    if (pass.idle()) continue;
    const Range own = split(exec, of_sequence);
    for (int64_t unit = own.begin; unit < own.end; ++unit) {
      const int64_t head = unit / of_head, row = unit % of_head * kRows;
      const int64_t count = task.values - row < kRows ? task.values - row : kRows;
      run_part(task, {b, head, row, count, head / (task.heads / task.groups), pass, work});
    }
  }
}

void clear_padding(const Task& task, const rr_exec* exec) {
  const int64_t first = task.batch.tokens();
  const Range rows = split(exec, task.y->shape[0] - first);
  for (int64_t i = first + rows.begin; i < first + rows.end; ++i)
    for (int64_t h = 0; h < task.heads; ++h)
      memset(head_ptr(*task.y, i, h), 0, static_cast<size_t>(task.values) * sizeof(float));
}

// Floats of steps or decays, and of a thread's working copy, in whole cache lines.
int64_t lines(int64_t floats) {
  return (floats + 15) / 16 * 16;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor* in = node->inputs;
  const int64_t heads = in[0].shape[1], each = lines(in[0].shape[0] * heads);
  auto* shared = static_cast<float*>(exec->workspace);
  const Task task = {&in[0],
                     &in[3],
                     &in[4],
                     &node->outputs[0],
                     static_cast<const float*>(in[1].data),
                     static_cast<const float*>(in[2].data),
                     read_batch(in[5]),
                     read_kept(in[7], in[6], in[8], in[9]),
                     read_replay(in + 10),
                     heads,
                     in[0].shape[2],
                     in[3].shape[1],
                     in[3].shape[2],
                     shared,
                     shared + each};
  if (!check_batch(task.batch, in[0].shape[0], exec) ||
      !check_replay(task.replay, task.batch, exec) ||
      !check_kept(task.kept, task.batch, exec, task.replay.folded))
    return;
  prepare(task, split(exec, task.batch.tokens()));
  exec->barrier(exec);
  run_own(task, exec, shared + 2 * each + exec->thread * lines(kRows * task.size));
  clear_padding(task, exec);
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  const rr_tensor& x = node->inputs[0];
  const int64_t each = lines(x.shape[0] * x.shape[1]);
  const int64_t work = lines(kRows * node->inputs[3].shape[2]);
  return static_cast<size_t>(2 * each + n_threads * work) * sizeof(float);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor &x = node->inputs[0], &b = node->inputs[3];
  const int64_t rows = x.shape[1] * x.shape[2];
  const int64_t folds = present(node->inputs[10]) ? node->inputs[6].shape[0] : 0;
  const int64_t work = (x.shape[0] + folds) * rows * b.shape[2];
  return static_cast<int32_t>(work < 32768 ? 1 : (rows + kRows - 1) / kRows);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "ssm_scan", supports, workspace, tasks, run)
