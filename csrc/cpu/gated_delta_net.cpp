// gated_delta_net, token by token. A few value rows of one head go through several tokens while
// they lie in the first-level cache; where the state after a token belongs (a kept plane, or the
// plane that the newest one gets in the end) is also where the next token reads it.

#include "kernel.hpp"
#include "native_vec.hpp"
#include "ragged.hpp"

namespace {

constexpr int kRows = kManyRegisters ? 8 : 4;  // value rows whose sums stay in registers
constexpr int64_t kPanel = 4 * kRows;          // value rows that stay in the first-level cache
constexpr int64_t kChunk = 8;                  // tokens whose prepared operands lie in scratch

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  for (int i = 0; i < 3; ++i)
    if (in[i].dtype != RR_F32 || in[i].rank != 3 || !dense_tail(in[i], 1))
      return refuse(why, size, "q, k and v need to be f32 of rank 3 and dense along the last axis");
  if (in[2].shape[2] != in[1].shape[2]) return refuse(why, size, "keys and values differ in size");
  for (int i = 3; i < 5; ++i)
    if (in[i].dtype != RR_F32 || !dense(in[i]))
      return refuse(why, size, "g and beta need to be dense f32");
  if (in[5].dtype != RR_I32 || !dense(in[5]))
    return refuse(why, size, "seq_offsets needs to be dense i32");
  const char* complaint = kept_complaint(in[7], in[6], in[8], in[9]);
  return *complaint ? refuse(why, size, complaint) : 1;
}

struct Task {
  const rr_tensor *q, *k, *v, *o;
  const float *g, *beta;
  Batch batch;
  Kept kept;
  int64_t key_heads, heads, size, room;  // room: size in whole vectors
  float scale;
  bool tiled, per_key;
};

Task read_task(const rr_node* node) {
  const rr_tensor* in = node->inputs;
  const int64_t size = in[2].shape[2];
  const double scale = attr_float(node, "scale", 0.0);
  return {&in[0],
          &in[1],
          &in[2],
          &node->outputs[0],
          static_cast<const float*>(in[3].data),
          static_cast<const float*>(in[4].data),
          read_batch(in[5]),
          read_kept(in[7], in[6], in[8], in[9]),
          in[0].shape[1],
          in[2].shape[1],
          size,
          padded(size),
          static_cast<float>(scale != 0.0 ? scale : 1.0 / sqrt(static_cast<double>(size))),
          attr_is(node, "heads", "tiled"),
          in[3].rank == 3};
}

float* head_ptr(const rr_tensor& t, int64_t row, int64_t head) {
  return reinterpret_cast<float*>(static_cast<char*>(t.data) + row * t.strides[0] +
                                  head * t.strides[1]);
}

int64_t key_head(const Task& task, int64_t head) {
  return task.tiled ? head % task.key_heads : head * task.key_heads / task.heads;
}

// One token's operands over the key dimension, each of `room` floats.
struct Keys {
  float *decay, *decayed_k, *k, *q;
};

Keys keys_at(const Task& task, float* scratch, int64_t t) {
  float* at = scratch + t * 4 * task.room;
  return {at, at + task.room, at + 2 * task.room, at + 3 * task.room};
}

// M k of the decayed state is M (exp(g) k), so that predicting reads the state as it lies.
void prepare(const Task& task, int64_t row, int64_t head, const Keys& to) {
  const int64_t of = key_head(task, head);
  const int64_t at = row * task.heads + head;
  widen(to.k, head_ptr(*task.k, row, of), RR_F32, task.size);
  widen(to.q, head_ptr(*task.q, row, of), RR_F32, task.size);
  if (task.per_key) {
    widen(to.decay, task.g + at * task.size, RR_F32, task.size);
    for (int64_t i = 0; i < task.room; i += 16) {
      const int64_t n = task.room - i < 16 ? task.room - i : 16;
      store_part(to.decay + i, normal_exp16(load_part(to.decay + i, n)), n);
    }
  } else {
    const float decay = normal_exp16(splat(task.g[at]))[0];
    for (int64_t i = 0; i < task.room; ++i) to.decay[i] = decay;
  }
  for (int64_t i = 0; i < task.room; i += kLanes)
    store_vec(to.decayed_k + i, load_vec(to.decay + i) * load_vec(to.k + i));
}

// The sums of R vectors, R being 1 or a multiple of 4.
template <int R>
void sum_rows(const vec (&acc)[R], float (&out)[R]) {
  if (R == 1) {
    out[0] = sums(acc[0], vec{}, vec{}, vec{})[0];
    return;
  }
  for (int r = 0; r + 4 <= R; r += 4) {
    const v4 four = sums(acc[r], acc[r + 1], acc[r + 2], acc[r + 3]);
    memcpy(out + r, &four, sizeof four);
  }
}

// One token for R rows of the state, from `from` to `to`, which may be the same place.
template <int R>
void step(const Task& task, const Keys& keys, const float* from, float* to, const float* v,
          float beta, float* o) {
  const int64_t size = task.size, whole = size / kLanes * kLanes, rest = size - whole;
  vec acc[R] = {};
  for (int64_t i = 0; i < whole; i += kLanes) {
    const vec k = load_vec(keys.decayed_k + i);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r] = fma_vec(load_vec(from + r * size + i), k, acc[r]);
  }
  if (rest > 0)
    for (int r = 0; r < R; ++r)
      acc[r] = fma_vec(load_vec(from + r * size + whole, rest), load_vec(keys.decayed_k + whole),
                       acc[r]);
  float d[R], out[R];
  sum_rows(acc, d);
  for (int r = 0; r < R; ++r) d[r] = beta * (v[r] - d[r]);

  for (int r = 0; r < R; ++r) acc[r] = vec{};
  for (int64_t i = 0; i < whole; i += kLanes) {
    const vec decay = load_vec(keys.decay + i), k = load_vec(keys.k + i), q = load_vec(keys.q + i);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const vec m = fma_vec(vec_of(d[r]), k, load_vec(from + r * size + i) * decay);
      store_vec(to + r * size + i, m);
      acc[r] = fma_vec(m, q, acc[r]);
    }
  }
  if (rest > 0)
    for (int r = 0; r < R; ++r) {
      const vec old = load_vec(from + r * size + whole, rest) * load_vec(keys.decay + whole);
      const vec m = fma_vec(vec_of(d[r]), load_vec(keys.k + whole), old);
      store_vec(to + r * size + whole, m, rest);
      acc[r] = fma_vec(m, load_vec(keys.q + whole), acc[r]);
    }
  sum_rows(acc, out);
  for (int r = 0; r < R; ++r) o[r] = out[r] * task.scale;
}

// Where the state of sequence b lies after its token t, and before it.
float* state_after(const Task& task, int64_t b, int64_t t) {
  const int64_t age = task.batch.length(b) - 1 - t;
  return task.kept.target(b, age < task.kept.planes ? age : 0);
}

const float* state_before(const Task& task, int64_t b, int64_t t) {
  return t == 0 ? task.kept.source(b) : state_after(task, b, t - 1);
}

// One token of one head: its operands, and where the head's state lies before and after it.
struct Token {
  Keys keys;
  const float *from, *v;
  float *to, *o, beta;
  bool first;  // of its pass: no token before has brought the state into the cache
};

Token token_at(const Task& task, int64_t b, int64_t head, int64_t t, const Keys& keys) {
  const int64_t row = task.batch.first(b) + t, at = head * task.size * task.size;
  return {keys,
          state_before(task, b, t) + at,
          head_ptr(*task.v, row, head),
          state_after(task, b, t) + at,
          head_ptr(*task.o, row, head),
          task.beta[row * task.heads + head],
          t == 0};
}

// Brings the state of a later group of rows nearer. A pass of one token takes a quarter (AVX-512)
// to a third (AVX2) less time so where the state comes from memory. Beyond the last row it does no
// harm. Always inline: compilers drop calls of a function that does nothing but prefetch.
inline __attribute__((always_inline)) void fetch_state(const Task& task, const Token& token,
                                                       int64_t j) {
  const float* at = token.from + (j + 2 * kRows) * task.size;
  for (int64_t i = 0; i < kRows * task.size; i += 16) __builtin_prefetch(at + i);
}

template <int R>
void step_at(const Task& task, const Token& token, int64_t j) {
  step<R>(task, token.keys, token.from + j * task.size, token.to + j * task.size, token.v + j,
          token.beta, token.o + j);
}

// Value rows begin .. end - 1. Groups of rows depend on one another only from token to token.
void step_rows(const Task& task, const Token& token, int64_t begin, int64_t end) {
  int64_t j = begin;
  for (; j + kRows <= end; j += kRows) {
    if (token.first) fetch_state(task, token, j);
    step_at<kRows>(task, token, j);
  }
  for (; j + 4 <= end; j += 4) step_at<4>(task, token, j);
  for (; j < end; ++j) step_at<1>(task, token, j);
}

// Brings a later token's rows nearer. Tokens lie a page or more apart, where the hardware does not
// see them coming: passes of hundreds of tokens take a third less time so. Always inline: compilers
// drop calls of a function that does nothing but prefetch.
inline __attribute__((always_inline)) void fetch_token(const Task& task, int64_t row,
                                                       int64_t head) {
  const int64_t of = key_head(task, head);
  const float* const rows[] = {head_ptr(*task.q, row, of), head_ptr(*task.k, row, of),
                               head_ptr(*task.v, row, head), head_ptr(*task.o, row, head)};
  for (const float* at : rows)
    for (int64_t i = 0; i < task.size; i += 16) __builtin_prefetch(at + i);
}

// All tokens of sequence b for value rows begin .. end - 1 of a head.
void run_head(const Task& task, int64_t b, int64_t head, int64_t begin, int64_t end,
              float* scratch) {
  const int64_t length = task.batch.length(b);
  Token tokens[kChunk];
  for (int64_t t = 0; t < length; t += kChunk) {
    const int64_t n = length - t < kChunk ? length - t : kChunk;
    for (int64_t i = 0; i < n; ++i) {
      const Keys keys = keys_at(task, scratch, i);
      prepare(task, task.batch.first(b) + t + i, head, keys);
      tokens[i] = token_at(task, b, head, t + i, keys);
    }
    for (int64_t j = begin; j < end; j += kPanel)
      for (int64_t i = 0; i < n; ++i) {
        const int64_t ahead = t + i + kChunk;
        if (j == begin && ahead < length) fetch_token(task, task.batch.first(b) + ahead, head);
        step_rows(task, tokens[i], j, j + kPanel < end ? j + kPanel : end);
      }
  }
}

// Units are blocks of kRows value rows, in order of sequence, head and row, and cost as much as
// their sequence has tokens. A thread takes those that start in its part of the whole cost.
void run_own(const Task& task, const rr_exec* exec, float* scratch) {
  const int64_t per_head = (task.size + kRows - 1) / kRows, per_token = per_head * task.heads;
  const Range own = split(exec, task.batch.tokens() * per_token);
  int64_t cost = 0;
  for (int64_t b = 0; b < task.batch.count; ++b) {
    const int64_t length = task.batch.length(b);
    if (length == 0) continue;
    const auto unit_at = [&](int64_t at) {
      const int64_t unit = at <= cost ? 0 : (at - cost + length - 1) / length;
      return unit < per_token ? unit : per_token;
    };
    const int64_t last = unit_at(own.end);
    for (int64_t unit = unit_at(own.begin); unit < last;) {
      const int64_t head = unit / per_head, first = unit % per_head;
      const int64_t count = last - unit < per_head - first ? last - unit : per_head - first;
      const int64_t end = (first + count) * kRows;
      run_head(task, b, head, first * kRows, end < task.size ? end : task.size, scratch);
      unit += count;
    }
    cost += length * per_token;
  }
}

void clear_padding(const Task& task, const rr_exec* exec) {
  const int64_t first = task.batch.tokens();
  const Range rows = split(exec, task.o->shape[0] - first);
  for (int64_t i = first + rows.begin; i < first + rows.end; ++i)
    for (int64_t h = 0; h < task.heads; ++h)
      memset(head_ptr(*task.o, i, h), 0, static_cast<size_t>(task.size) * sizeof(float));
}

int64_t scratch_floats(const rr_node* node) {
  return (kChunk * 4 * padded(node->inputs[2].shape[2]) + 15) / 16 * 16;
}

void run(const rr_node* node, const rr_exec* exec) {
  const Task task = read_task(node);
  if (!check_batch(task.batch, task.v->shape[0], exec) || !check_kept(task.kept, task.batch, exec))
    return;
  run_own(task, exec, static_cast<float*>(exec->workspace) + exec->thread * scratch_floats(node));
  clear_padding(task, exec);
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  return static_cast<size_t>(n_threads * scratch_floats(node)) * sizeof(float);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& v = node->inputs[2];
  const int64_t size = v.shape[2], rows = v.shape[1] * size;
  return static_cast<int32_t>(v.shape[0] * rows * size < 32768 ? 1 : (rows + kRows - 1) / kRows);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "gated_delta_net", supports, workspace, tasks, run)
