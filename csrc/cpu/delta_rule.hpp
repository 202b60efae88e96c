// The gated delta rule for a few value rows of a head: a token's step, and what a log's entries
// make of the state, with the same roundings.
#pragma once

#include "activation.hpp"
#include "kernel.hpp"
#include "norm.hpp"
#include "ops/gated_delta_net.hpp"
#include "replay.hpp"

namespace {

// mix: of delta_mix, which makes keys, queries and gates out of what it is given; g is alpha then.
struct Task {
  const rr_tensor *q, *k, *v, *o, *g, *beta;
  Batch batch;
  Kept kept;
  Replay replay;
  int64_t key_heads, heads, size, room;  // room: size in whole vectors
  float scale;
  bool tiled, per_key, mix;
  const float *dt, *a;
  double eps;
};

bool mixes(const rr_node* node) {
  return strcmp(node->op, "delta_mix") == 0;
}

// The inputs from seq_offsets on.
const rr_tensor* memory_of(const rr_node* node) {
  return node->inputs + (mixes(node) ? kMixOperands : 5);
}

Task read_task(const rr_node* node) {
  const rr_tensor *in = node->inputs, *memory = memory_of(node);
  const bool mix = mixes(node);
  const int64_t size = in[2].shape[2];
  const double scale = attr_float(node, "scale", 0.0);
  return {&in[0],
          &in[1],
          &in[2],
          &node->outputs[0],
          &in[3],
          &in[4],
          read_batch(memory[0]),
          read_kept(memory[2], memory[1], memory[3], memory[4]),
          read_replay(memory + 5),
          in[0].shape[1],
          in[2].shape[1],
          size,
          padded(size),
          static_cast<float>(scale != 0.0 ? scale : 1.0 / sqrt(static_cast<double>(size))),
          attr_is(node, "heads", "tiled"),
          in[3].rank == 3,
          mix,
          mix ? static_cast<const float*>(in[5].data) : nullptr,
          mix ? static_cast<const float*>(in[6].data) : nullptr,
          attr_float(node, "eps", 0.0)};
}

float* head_ptr(const rr_tensor& t, int64_t row, int64_t head) {
  return reinterpret_cast<float*>(static_cast<char*>(t.data) + row * t.strides[0] +
                                  head * t.strides[1]);
}

int64_t key_head(const Task& task, int64_t head) {
  return task.tiled ? head % task.key_heads : head * task.key_heads / task.heads;
}

// Whether a value head is the first of those that read its key head.
bool leads_keys(const Task& task, int64_t head) {
  return task.tiled ? head < task.key_heads : head % (task.heads / task.key_heads) == 0;
}

// One token's operands over the key dimension, each of `room` floats.
struct Keys {
  float *decay, *decayed_k, *k, *q;
};

Keys keys_at(const Task& task, float* scratch, int64_t t) {
  float* at = scratch + t * 4 * task.room;
  return {at, at + task.room, at + 2 * task.room, at + 3 * task.room};
}

// One token of one head: its operands, and where the head's state lies before and after it, null
// for the working copy. wrote: where the head's d is logged, null for nowhere.
struct Token {
  Keys keys;
  const float *from, *v;
  float *to, *o, *wrote, beta;
};

// A token's way through some rows: known is what they say of its key unless it is the first, and
// then what they say of the next one's decayed key, if there is one.
struct Step {
  const Token& token;
  const float* next;
  float* known;
  bool first;
};

// One of a head's gates, as it is given.
const float* gate_ptr(const rr_tensor& t, int64_t row, int64_t head) {
  const int64_t each = t.rank == 3 ? t.shape[2] : 1;
  return reinterpret_cast<const float*>(static_cast<char*>(t.data) + row * t.strides[0]) +
         head * each;
}

float beta_at(const Task& task, int64_t row, int64_t head) {
  const float beta = *gate_ptr(*task.beta, row, head);
  return task.mix ? sigmoid_vec(vec_of(beta))[0] : beta;
}

// The logarithm of a head's one decay.
float log_decay(const Task& task, int64_t row, int64_t head) {
  const float g = *gate_ptr(*task.g, row, head);
  return task.mix ? softplus_vec(vec_of(g + task.dt[head]))[0] * task.a[head] : g;
}

// A head's key or query, whose rest to whole vectors is zero.
void load_head(const Task& task, const rr_tensor& of, int64_t row, int64_t head, float* to) {
  const float* from = head_ptr(of, row, head);
  widen(to, from, RR_F32, task.size);
  if (!task.mix) return;
  const double factor = l2_factor(from, task.size, task.eps, true);
  for (int64_t i = 0; i < task.size; ++i) to[i] = static_cast<float>(from[i] * factor);
}

// M k of the decayed state is M (exp(g) k), so that predicting reads the state as it lies.
void prepare(const Task& task, int64_t row, int64_t head, const Keys& to) {
  const int64_t of = key_head(task, head);
  load_head(task, *task.k, row, of, to.k);
  load_head(task, *task.q, row, of, to.q);
  if (task.per_key) {
    widen(to.decay, gate_ptr(*task.g, row, head), RR_F32, task.size);
    for (int64_t i = 0; i < task.room; i += 16) {
      const int64_t n = task.room - i < 16 ? task.room - i : 16;
      store_part(to.decay + i, normal_exp16(load_part(to.decay + i, n)), n);
    }
  } else {
    const float decay = normal_exp16(splat(log_decay(task, row, head)))[0];
    for (int64_t i = 0; i < task.room; ++i) to.decay[i] = decay;
  }
  for (int64_t i = 0; i < task.room; i += kLanes)
    store_vec(to.decayed_k + i, load_vec(to.decay + i) * load_vec(to.k + i));
}

// One by one, for compilers put arrays that are cleared at once into memory.
template <int R>
inline void clear(vec (&acc)[R]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) acc[r] = vec{};
}

// The sums of R vectors times scale, R being 1 or a multiple of 4. They go where they belong by
// four: read again as a wider vector they would wait until all are in the cache.
template <int R>
void sum_rows(const vec (&acc)[R], float scale, float* out) {
  if (R == 1) {
    out[0] = sums(acc[0], vec{}, vec{}, vec{})[0] * scale;
    return;
  }
  for (int r = 0; r + 4 <= R; r += 4) {
    const v4 four = sums(acc[r], acc[r + 1], acc[r + 2], acc[r + 3]) * scale;
    memcpy(out + r, &four, sizeof four);
  }
}

// What R rows of the state say of a token's key: the sums of their products with its decayed key.
template <int R>
void predict(const Task& task, const Keys& keys, const float* from, float* known) {
  const int64_t size = task.size, whole = size / kLanes * kLanes, rest = size - whole;
  vec acc[R];
  clear(acc);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const vec k = load_vec(keys.decayed_k + i);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r] = fma_vec(load_vec(from + r * size + i), k, acc[r]);
  }
  if (rest > 0)
    for (int r = 0; r < R; ++r)
      acc[r] = fma_vec(load_vec(from + r * size + whole, rest), load_vec(keys.decayed_k + whole),
                       acc[r]);
  sum_rows(acc, 1.0f, known);
}

// A token that writes d to R rows of the state, from `from` to `to`, which may be the same place.
// With a next token, whose decayed key is `next`, also what it will predict, while the rows are in
// registers: it reads them for this alone otherwise.
template <int R, bool kNext>
void update(const Task& task, const Keys& keys, const float* next, const float* from, float* to,
            const float (&d)[R], float* o, float* known) {
  const int64_t size = task.size, whole = size / kLanes * kLanes, rest = size - whole;
  vec acc[R], ahead[R];
  clear(acc);
  clear(ahead);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const vec decay = load_vec(keys.decay + i), k = load_vec(keys.k + i), q = load_vec(keys.q + i);
    const vec n = kNext ? load_vec(next + i) : vec{};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const vec m = fma_vec(vec_of(d[r]), k, load_vec(from + r * size + i) * decay);
      store_vec(to + r * size + i, m);
      acc[r] = fma_vec(m, q, acc[r]);
      if (kNext) ahead[r] = fma_vec(m, n, ahead[r]);
    }
  }
  if (rest > 0)
    for (int r = 0; r < R; ++r) {
      const vec old = load_vec(from + r * size + whole, rest) * load_vec(keys.decay + whole);
      const vec m = fma_vec(vec_of(d[r]), load_vec(keys.k + whole), old);
      store_vec(to + r * size + whole, m, rest);
      acc[r] = fma_vec(m, load_vec(keys.q + whole), acc[r]);
      if (kNext) ahead[r] = fma_vec(m, load_vec(next + whole), ahead[r]);
    }
  sum_rows(acc, task.scale, o);
  if (kNext) sum_rows(ahead, 1.0f, known);
}

// Successive entries of a sequence's ring, for one head.
struct Entries {
  const float* ring;
  int64_t slot, count, size, width;  // size: of the ring; width: of an entry
  int64_t k, d, decay;               // where the head's parts lie in an entry
};

Entries entries_of(const Task& task, int64_t b, int64_t first, int64_t count, int64_t head) {
  const Replay& replay = task.replay;
  const int64_t values = task.key_heads * task.size, decays = values + task.heads * task.size;
  return {replay.log + task.kept.row_of[b] * replay.entries * replay.width,
          (replay.head[b] + first) % replay.entries,
          count,
          replay.entries,
          replay.width,
          key_head(task, head) * task.size,
          values + head * task.size,
          decays + head * (task.per_key ? task.size : 1)};
}

// V vectors of R rows of the state from row j and key i on, through all entries; the last vector is
// n floats long.
template <int R, int V>
inline __attribute__((always_inline)) void advance_part(const Task& task, const Entries& entries,
                                                        int64_t j, int64_t i, int64_t n,
                                                        const float* from, float* to) {
  const int64_t size = task.size;
  const auto load = [n](const float* at, int v) {
    at += v * kLanes;
    return v + 1 < V || n == kLanes ? load_vec(at) : load_vec(at, n);
  };
  vec m[V][R], k[V], decay[V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) m[v][r] = load(from + r * size + i, v);
  for (int64_t e = 0, slot = entries.slot; e < entries.count; ++e) {
    const float* entry = entries.ring + slot * entries.width;
    const float *d = entry + entries.d + j, *decays = entry + entries.decay;
    for (int v = 0; v < V; ++v) {
      k[v] = load(entry + entries.k + i, v);
      decay[v] = task.per_key ? load(decays + i, v) : vec_of(*decays);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) m[v][r] = fma_vec(vec_of(d[r]), k[v], m[v][r] * decay[v]);
    if (++slot == entries.size) slot = 0;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* at = to + r * size + i + v * kLanes;
      if (v + 1 < V || n == kLanes)
        store_vec(at, m[v][r]);
      else
        store_vec(at, m[v][r], n);
    }
}

// R rows from row j on, from `from` to `to`, which may be the same place.
template <int R>
void advance(const Task& task, const Entries& entries, int64_t j, const float* from, float* to) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= task.size; i += 2 * kLanes)
    advance_part<R, 2>(task, entries, j, i, kLanes, from, to);
  for (; i + kLanes <= task.size; i += kLanes)
    advance_part<R, 1>(task, entries, j, i, kLanes, from, to);
  if (i < task.size) advance_part<R, 1>(task, entries, j, i, task.size - i, from, to);
}

}  // namespace
