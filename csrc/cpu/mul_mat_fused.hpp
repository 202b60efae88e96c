// Products with several weights and what makes their rows, in one node: each thread makes a part of
// the rows, as each type of weights reads them, the threads meet, and share out the groups of all
// weights together. Short rows each thread makes for itself, which takes no longer than to meet.
//
// Rows are what makes them: a class with
//   kWeights          the number of the first weight among the node's inputs
//   kOwn              values of rows up to which each thread makes them all for itself
//   Rows(node)
//   refusal(node)     what it does not take, or ""; static
//   unit()            blocks that are made together
//   make(r, blocks, room, keep)
//                     these blocks' values of row r; room: as many floats as a row has; keep:
//                     whether this thread is the one that writes what else the node gives of them
#pragma once

#include "kernel.hpp"
#include "products.hpp"

namespace {

using riverrun::find_product;
using riverrun::kProductBlock;
using riverrun::kProductGroup;
using riverrun::kProductRows;
using riverrun::PackedProduct;

constexpr uint32_t kMostWeights = 8;
constexpr int64_t kPiecesEach = 8;  // of weights, for each thread
// Bytes of weights and values of x below which one thread finishes before two could meet.
constexpr int64_t kSmallWeights = 1 << 16, kSmallRows = 1 << 15;

inline int64_t whole_lines(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// A weight of a node, and where its bytes and its products begin among those of all.
struct Weight {
  const PackedProduct* product;
  const void* data;
  int64_t rows, groups, group_bytes, before, column;
  int64_t prepared;  // where the rows of its type lie
  bool prepares;     // the first of its type
};

// All weights of a node, from input `first` on.
struct Weights {
  int64_t k = 0, bytes = 0, n_groups = 0;
  uint32_t n = 0;
  Weight each[kMostWeights];

  Weights(const rr_node* node, uint32_t first) : k(node->inputs[first].shape[1]) {
    int64_t column = 0;
    for (; first + n < node->n_inputs; ++n) {
      const rr_tensor& w = node->inputs[first + n];
      const int64_t rows = w.shape[0], groups = (rows + kProductGroup - 1) / kProductGroup;
      const PackedProduct* product = find_product(w.dtype, RR_PRIORITY);
      const int64_t group_bytes = product->weight_bytes(kProductGroup, k);
      each[n] = {product, w.data, rows, groups, group_bytes, bytes, column, 0, true};
      bytes += groups * group_bytes;
      n_groups += groups;
      column += rows;
    }
  }

  // Gives each type's rows a place; returns the bytes of n_rows rows.
  int64_t place(int64_t n_rows) {
    int64_t at = 0;
    for (uint32_t i = 0; i < n; ++i) {
      Weight& w = each[i];
      w.prepares = true;
      for (uint32_t j = 0; j < i && w.prepares; ++j)
        if (each[j].product == w.product) {
          w.prepares = false;
          w.prepared = each[j].prepared;
        }
      if (!w.prepares) continue;
      w.prepared = at;
      at += whole_lines(w.product->prepared_bytes(n_rows, k));
    }
    return at;
  }
};

// What a thread does of a node's rows [first, first + n).
template <class Rows>
struct Fused {
  const rr_node* node;
  const rr_exec* exec;
  const Weights& weights;
  int64_t first, n;
  bool own;  // each thread makes all rows
  char *room, *memory;

  riverrun::PreparedRows prepared(const Weight& w) const {
    return {memory + w.prepared, n, weights.k};
  }

  void prepare(const Rows& rows) const {
    const int64_t unit = rows.unit(), units = weights.k / kProductBlock / unit;
    const Range mine = own ? Range{0, n * units} : split(exec, n * units);
    const bool keep = !own || exec->thread == 0;
    for (int64_t u = mine.begin; u < mine.end;) {
      const int64_t c = u / units, begin = u % units, left = mine.end - c * units;
      const int64_t end = left < units ? left : units;
      const Range blocks = {begin * unit, end * unit};
      const float* values = rows.make(first + c, blocks, reinterpret_cast<float*>(room), keep);
      for (uint32_t i = 0; i < weights.n; ++i) {
        const Weight& w = weights.each[i];
        if (w.prepares) w.product->prepare(prepared(w), c, values, blocks.begin, blocks.end);
      }
      u += end - begin;
    }
  }

  // The groups that begin in these bytes of all weights.
  void multiply(Range bytes) const {
    const rr_tensor& y = node->outputs[0];
    float* out = reinterpret_cast<float*>(row_ptr(y, first));
    for (uint32_t i = 0; i < weights.n; ++i) {
      const Weight& w = weights.each[i];
      const int64_t begin = group_at(w, bytes.begin), end = group_at(w, bytes.end);
      if (begin < end)
        w.product->multiply(prepared(w), w.data, w.rows, {out + w.column, y.strides[0]}, begin,
                            end);
    }
  }

  static int64_t group_at(const Weight& w, int64_t byte) {
    if (byte <= w.before) return 0;
    const int64_t group = (byte - w.before + w.group_bytes - 1) / w.group_bytes;
    return group < w.groups ? group : w.groups;
  }
};

inline int64_t room_bytes(int64_t k) {
  return whole_lines(k * static_cast<int64_t>(sizeof(float)));
}

template <class Rows>
void run_fused(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  const int64_t n = node->rows < x.shape[0] ? node->rows : x.shape[0];
  const Rows rows(node);
  Weights weights(node, Rows::kWeights);
  const int64_t room = room_bytes(weights.k);
  char* workspace = static_cast<char*>(exec->workspace);
  const int64_t most = kPiecesEach * exec->n_threads;
  const int64_t shares = most < weights.n_groups ? most : weights.n_groups;
  for (int64_t first = 0; first < n; first += kProductRows) {
    const int64_t count = n - first < kProductRows ? n - first : kProductRows;
    const int64_t bytes = weights.place(count);
    const bool own = count * weights.k <= Rows::kOwn;
    const Fused<Rows> fused = {
        node,
        exec,
        weights,
        first,
        count,
        own,
        workspace + exec->thread * room,
        workspace + exec->n_threads * room + (own ? exec->thread * bytes : 0)};
    if (first > 0) exec->barrier(exec);
    fused.prepare(rows);
    if (!own) exec->barrier(exec);
    const Pieces pieces(exec, shares, kPiecesEach, first / kProductRows);
    for (Range piece; pieces.next(piece);)
      fused.multiply({weights.bytes * piece.begin / shares, weights.bytes * piece.end / shares});
  }
}

template <class Rows>
int supports_fused(const rr_node* node, char* why, size_t size) {
  const rr_tensor& y = node->outputs[0];
  if (node->n_inputs - Rows::kWeights > kMostWeights)
    return refuse(why, size, "it takes up to 8 weights");
  for (uint32_t i = 0; i < Rows::kWeights; ++i)
    if (node->inputs[i].dtype != RR_F32 || !dense_tail(node->inputs[i], 1))
      return refuse(why, size, "what rows are made of needs to be dense f32 rows");
  for (uint32_t i = Rows::kWeights; i < node->n_inputs; ++i) {
    const rr_tensor& w = node->inputs[i];
    if (w.layout != RR_LAYOUT_ROWS16 || find_product(w.dtype, RR_PRIORITY) == nullptr)
      return refuse(why, size, "weights need to be packed");
    if (w.shape[1] == 0 || w.shape[1] % kProductBlock != 0)
      return refuse(why, size, "K needs to be whole blocks of 32 values");
  }
  if (y.dtype != RR_F32 || !dense_tail(y, 1)) return refuse(why, size, "y needs dense f32 rows");
  const char* refusal = Rows::refusal(node);
  return *refusal ? refuse(why, size, refusal) : 1;
}

template <class Rows>
size_t workspace_fused(const rr_node* node, int32_t n_threads) {
  Weights weights(node, Rows::kWeights);
  const int64_t all = node->inputs[0].shape[0], n = all < kProductRows ? all : kProductRows;
  const int64_t fit = Rows::kOwn / weights.k, own = fit < n ? fit : n;
  const int64_t shared = weights.place(n), owned = n_threads * Weights(weights).place(own);
  return static_cast<size_t>(n_threads * room_bytes(weights.k) + (shared > owned ? shared : owned));
}

template <class Rows>
int32_t tasks_fused(const rr_node* node) {
  const Weights weights(node, Rows::kWeights);
  const bool small = node->inputs[0].shape[0] * weights.k < kSmallRows;
  return small && weights.bytes < kSmallWeights ? 1 : INT32_MAX;
}

}  // namespace

#define RR_FUSED_PRODUCTS(id, op, Rows)                                           \
  RR_KERNEL(id, RR_ROW_EXACT | riverrun::kReadsInParts, op, supports_fused<Rows>, \
            workspace_fused<Rows>, tasks_fused<Rows>, run_fused<Rows>)
