// ssm_scan. The steps and decays of all tokens come first, shared by the threads; then each takes
// value rows of a head through a sequence's pass, a few at a time. Tokens of a prompt go in chunks,
// whose keys and queries lie side by side in the first-level cache while a tile of the state stays
// in registers through all of them: nothing but the order of independent sums differs from token by
// token, so that the results are the same to the bit. Elsewhere, where the state after a token
// belongs is also where the next token reads it; tokens that are only logged go on in scratch.

#include "ops/ssm_scan.hpp"

#include "activation.hpp"
#include "kernel.hpp"
#include "native_vec.hpp"
#include "replay.hpp"

namespace {

constexpr int kRows = 4;                           // value rows whose sums stay in registers
constexpr int kTileRows = kManyRegisters ? 4 : 2;  // rows of a tile of the state in registers
constexpr int kTile = 4;                           // and its vectors of a row
constexpr int64_t kChunk = 16;  // tokens whose keys and queries stay in the first-level cache

struct Task {
  const rr_tensor *x, *b, *c, *y;
  const float *dt, *a;
  Batch batch;
  Kept kept;
  Replay replay;
  int64_t heads, values, groups, size;
  float *steps, *decays;  // [N, heads]
};

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

// Some tokens of a sequence, for one head: keys and queries [count, room], filled up with zeros.
struct Chunk {
  int64_t first, count, room;
  float *keys, *queries;
};

void gather(const Task& task, int64_t head, const Chunk& chunk) {
  const int64_t group = head / (task.heads / task.groups);
  for (int64_t t = 0; t < chunk.count; ++t) {
    widen(chunk.keys + t * chunk.room, head_ptr(*task.b, chunk.first + t, group), RR_F32,
          task.size);
    widen(chunk.queries + t * chunk.room, head_ptr(*task.c, chunk.first + t, group), RR_F32,
          task.size);
  }
}

// What a chunk's tokens write to kRows rows, how much of these stays, and sums so far.
struct Rows {
  float d[kChunk][kRows], decay[kChunk];
  vec sum[kChunk][kRows];
};

// V vectors of R rows of the state from row r and key i on, through the chunk; the last vector is n
// floats long. from and to may be the same place.
template <int R, int V>
inline __attribute__((always_inline)) void scan_tile(const Task& task, const Chunk& chunk,
                                                     Rows& rows, int64_t r, int64_t i, int64_t n,
                                                     const float* from, float* to) {
  const int64_t at = r * task.size + i;
  const auto load = [n](const float* p, int v) {
    p += v * kLanes;
    return v + 1 < V || n == kLanes ? load_vec(p) : load_vec(p, n);
  };
  vec m[V][R];
#pragma GCC unroll 8
  for (int j = 0; j < R; ++j)
    for (int v = 0; v < V; ++v) m[v][j] = load(from + at + j * task.size, v);
  for (int64_t t = 0; t < chunk.count; ++t) {
    const float *keys = chunk.keys + t * chunk.room + i,
                *queries = chunk.queries + t * chunk.room + i, *d = rows.d[t] + r;
    const vec fade = vec_of(rows.decay[t]);
    vec sum[R];
    for (int j = 0; j < R; ++j) sum[j] = rows.sum[t][r + j];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const vec k = load_vec(keys + v * kLanes), c = load_vec(queries + v * kLanes);
#pragma GCC unroll 8
      for (int j = 0; j < R; ++j) {
        m[v][j] = fma_vec(vec_of(d[j]), k, m[v][j] * fade);
        sum[j] = fma_vec(m[v][j], c, sum[j]);
      }
    }
    for (int j = 0; j < R; ++j) rows.sum[t][r + j] = sum[j];
  }
#pragma GCC unroll 8
  for (int j = 0; j < R; ++j)
    for (int v = 0; v < V; ++v) {
      float* p = to + at + j * task.size + v * kLanes;
      if (v + 1 < V || n == kLanes)
        store_vec(p, m[v][j]);
      else
        store_vec(p, m[v][j], n);
    }
}

template <int R>
void scan_tiles(const Task& task, const Chunk& chunk, Rows& rows, int64_t r, const float* from,
                float* to) {
  int64_t i = 0;
  for (; i + kTile * kLanes <= task.size; i += kTile * kLanes)
    scan_tile<R, kTile>(task, chunk, rows, r, i, kLanes, from, to);
  for (; i < task.size; i += kLanes)
    scan_tile<R, 1>(task, chunk, rows, r, i, task.size - i < kLanes ? task.size - i : kLanes, from,
                    to);
}

// The rows of a part through the chunk. from, to: where they lie in the state.
void scan_rows(const Task& task, const Part& part, const Chunk& chunk, const float* from,
               float* to) {
  Rows rows = {};
  for (int64_t t = 0; t < chunk.count; ++t) {
    const int64_t token = chunk.first + t, scalar = token * task.heads + part.head;
    const float* x = head_ptr(*task.x, token, part.head) + part.row;
    for (int64_t r = 0; r < part.count; ++r) rows.d[t][r] = task.steps[scalar] * x[r];
    rows.decay[t] = task.decays[scalar];
  }
  int64_t r = 0;
  for (; r + kTileRows <= part.count; r += kTileRows)
    scan_tiles<kTileRows>(task, chunk, rows, r, from, to);
  for (; r < part.count; ++r) scan_tiles<1>(task, chunk, rows, r, from, to);
  for (int64_t t = 0; t < chunk.count; ++t) {
    const vec* sum = rows.sum[t];
    const v4 total = sums(sum[0], sum[1], sum[2], sum[3]);
    float* y = head_ptr(*task.y, chunk.first + t, part.head) + part.row;
    for (int64_t j = 0; j < part.count; ++j) y[j] = total[j];
  }
}

// Folds into the state, where there is anything to fold.
void fold(const Task& task, const Part& part) {
  const int64_t at = (part.head * task.values + part.row) * task.size;
  if (part.pass.folded > 0)
    advance(task, part, 0, part.pass.folded, task.kept.source(part.b) + at,
            task.kept.target(part.b, 0) + at);
}

// The pass of a part from token `begin` on; those before it are in the state.
void run_part(const Task& task, const Part& part, int64_t begin) {
  const Pass& pass = part.pass;
  const int64_t at = (part.head * task.values + part.row) * task.size;
  const float* from = begin > 0 ? task.kept.target(part.b, 0) + at : task.kept.source(part.b) + at;
  for (int64_t t = begin; t < pass.tokens; ++t) {
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

// Unit `unit` of a head: kRows value rows, or what is left of them.
Part part_at(const Task& task, Part part, int64_t unit) {
  part.row = unit * kRows;
  part.count = task.values - part.row < kRows ? task.values - part.row : kRows;
  return part;
}

// How many tokens a pass begins with that go in chunks: direct ones whose states, the last of them
// aside, nobody keeps. A few are as quick one by one.
int64_t chunked(const Task& task, const Pass& pass) {
  const int64_t n = pass.direct - (task.kept.planes > 1 ? task.kept.planes : 0);
  return n < kRows ? 0 : n;
}

// Units begin .. end - 1 of the head that part names in the pass of a sequence.
void run_head(const Task& task, Part part, int64_t begin, int64_t end, Chunk chunk) {
  const int64_t n = chunked(task, part.pass), state = part.head * task.values * task.size;
  for (int64_t unit = begin; unit < end; ++unit) fold(task, part_at(task, part, unit));
  for (int64_t t = 0; t < n; t += kChunk) {
    chunk.first = task.batch.first(part.b) + t;
    chunk.count = n - t < kChunk ? n - t : kChunk;
    gather(task, part.head, chunk);
    const float* from = (t > 0 ? task.kept.target(part.b, 0) : task.kept.source(part.b)) + state;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t at = unit * kRows * task.size;
      scan_rows(task, part_at(task, part, unit), chunk, from + at,
                task.kept.target(part.b, 0) + state + at);
    }
  }
  for (int64_t unit = begin; unit < end; ++unit) run_part(task, part_at(task, part, unit), n);
}

// Units are kRows value rows of a head of a sequence.
void run_own(const Task& task, const rr_exec* exec, float* work, const Chunk& chunk) {
  const int64_t of_head = blocks(task), of_sequence = task.heads * of_head;
  for (int64_t b = 0; b < task.batch.count; ++b) {
    const Pass pass = task.replay.pass(task.batch, b);
    if (pass.idle()) continue;
    const Range own = split(exec, of_sequence);
    for (int64_t unit = own.begin; unit < own.end;) {
      const int64_t head = unit / of_head, first = unit % of_head, rest = own.end - unit;
      const int64_t last = rest < of_head - first ? first + rest : of_head;
      const int64_t group = head / (task.heads / task.groups);
      run_head(task, {b, head, 0, 0, group, pass, work}, first, last, chunk);
      unit += last - first;
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

// Floats of steps or decays, in whole cache lines.
int64_t lines(int64_t floats) {
  return (floats + 15) / 16 * 16;
}

// And of a thread's working copy of some rows, and of a chunk's keys and queries.
int64_t own_floats(int64_t size) {
  return lines(kRows * size) + 2 * lines(kChunk * padded(size));
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
  float* work = shared + 2 * each + exec->thread * own_floats(task.size);
  float* keys = work + lines(kRows * task.size);
  const int64_t room = padded(task.size);
  run_own(task, exec, work, {0, 0, room, keys, keys + lines(kChunk * room)});
  clear_padding(task, exec);
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  const rr_tensor& x = node->inputs[0];
  const int64_t each = lines(x.shape[0] * x.shape[1]);
  const int64_t own = own_floats(node->inputs[3].shape[2]);
  return static_cast<size_t>(2 * each + n_threads * own) * sizeof(float);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor &x = node->inputs[0], &b = node->inputs[3];
  const int64_t rows = x.shape[1] * x.shape[2];
  const int64_t folds = present(node->inputs[10]) ? node->inputs[6].shape[0] : 0;
  const int64_t work = (x.shape[0] + folds) * rows * b.shape[2];
  return static_cast<int32_t>(work < 32768 ? 1 : (rows + kRows - 1) / kRows);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "ssm_scan", supports_scan, workspace, tasks, run)
