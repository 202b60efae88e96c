// Products with weights chosen per row: pairs of a token and one of its experts are sorted by
// expert, and each expert's weight meets the rows of x that chose it as in mul_mat.
#pragma once

#include "node.hpp"
#include "ops/mul_mat_id.hpp"

namespace {

constexpr int64_t kSegmentColumns = 256;  // rows of x that one product takes
constexpr int64_t kWeightCost = 4;        // reading a weight, counted in rows of x

// Rows of x from `first` on, in sorted order, that one expert's weight is multiplied with.
struct Segment {
  int64_t expert, first, n;
};

struct Routing {
  int64_t pairs;          // that have an expert
  const int32_t* starts;  // [experts + 1], in sorted order
  const int32_t* order;   // the number of each pair, as ids lie in memory

  template <class Body>
  void each_segment(Range part, const Body& body) const {
    int64_t expert = 0;
    for (int64_t c = part.begin; c < part.end;) {
      while (starts[expert + 1] <= c) ++expert;
      int64_t end = starts[expert + 1] < part.end ? starts[expert + 1] : part.end;
      if (end > c + kSegmentColumns) end = c + kSegmentColumns;
      body(Segment{expert, c, end - c});
      c = end;
    }
  }

  // Calls body(segment, groups of weight rows) until the pairs of `part` have met all groups;
  // threads take equal shares of the work as they come free. Rounds count as those of Pieces.
  template <class Body>
  void share(const rr_exec* exec, Range part, int64_t groups, int64_t round,
             const Body& body) const {
    int64_t total = 0;
    each_segment(part, [&](Segment s) { total += (s.n + kWeightCost) * groups; });
    const int64_t shares = 8 * exec->n_threads;
    const Pieces pieces(exec, shares, 8, round);
    for (Range piece; pieces.next(piece);) {
      const int64_t begin = total * piece.begin / shares, end = total * piece.end / shares;
      int64_t at = 0;
      each_segment(part, [&](Segment s) {
        const int64_t cost = s.n + kWeightCost;
        const Range mine = {groups_before(begin - at, cost, groups),
                            groups_before(end - at, cost, groups)};
        if (mine.begin < mine.end) body(s, mine);
        at += cost * groups;
      });
    }
  }

 private:
  static int64_t groups_before(int64_t work, int64_t cost, int64_t groups) {
    if (work <= 0) return 0;
    const int64_t count = (work + cost - 1) / cost;
    return count < groups ? count : groups;
  }
};

inline int64_t real_pairs(const rr_node* node) {
  const rr_tensor& ids = node->inputs[2];
  return (node->rows < ids.shape[0] ? node->rows : ids.shape[0]) * ids.shape[1];
}

// Bytes of one thread's routing, in whole cache lines.
inline size_t routing_bytes(const rr_node* node) {
  const int64_t count = node->inputs[1].shape[0] + 2 + numel(node->inputs[2]);
  return static_cast<size_t>((count + 15) / 16 * 64);
}

// Sorts the real pairs into `memory`. False, after reporting it, if an id is out of range: all
// threads find the same, before any of them writes.
inline bool route(const rr_node* node, const rr_exec* exec, void* memory, Routing* routing) {
  const rr_tensor& ids = node->inputs[2];
  const auto* id = static_cast<const int32_t*>(ids.data);
  const int64_t experts = node->inputs[1].shape[0], pairs = real_pairs(node);
  for (int64_t p = 0; p < pairs; ++p) {
    if (id[p] < experts) continue;
    char message[160];
    snprintf(message, sizeof message,
             "'ids' should be below %lld, the number of experts, got %d at [%lld, %lld]",
             static_cast<long long>(experts), id[p], static_cast<long long>(p / ids.shape[1]),
             static_cast<long long>(p % ids.shape[1]));
    exec->fail(exec, message);
    return false;
  }
  // starts[e + 1] is where the next pair of expert e goes; in the end that is where e + 1 starts.
  auto* starts = static_cast<int32_t*>(memory);
  int32_t* order = starts + experts + 2;
  memset(starts, 0, static_cast<size_t>(experts + 2) * sizeof(int32_t));
  for (int64_t p = 0; p < pairs; ++p)
    if (id[p] >= 0) ++starts[id[p] + 2];
  for (int64_t e = 0; e < experts; ++e) starts[e + 2] += starts[e + 1];
  for (int64_t p = 0; p < pairs; ++p)
    if (id[p] >= 0) order[starts[id[p] + 1]++] = static_cast<int32_t>(p);
  *routing = {starts[experts], starts, order};
  return true;
}

// This thread's part of the rows of y that have no expert: zeros.
inline void clear_unrouted(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& y = node->outputs[0];
  const auto* id = static_cast<const int32_t*>(node->inputs[2].data);
  const Range pairs = split(exec, real_pairs(node));
  for (int64_t p = pairs.begin; p < pairs.end; ++p)
    if (id[p] < 0) memset(row_ptr(y, p), 0, static_cast<size_t>(y.shape[2]) * sizeof(float));
}

// x as [N, U, K], where all experts of a token may share a row.
inline rr_tensor rows_of_pairs(const rr_node* node) {
  rr_tensor x = node->inputs[0];
  if (x.rank == 3) return x;
  x.rank = 3;
  x.shape[2] = x.shape[1];
  x.shape[1] = node->inputs[2].shape[1];
  x.strides[2] = x.strides[1];
  x.strides[1] = 0;
  return x;
}

// Experts that a node can meet at most.
inline int64_t most_experts(const rr_node* node) {
  const int64_t pairs = numel(node->inputs[2]), experts = node->inputs[1].shape[0];
  return pairs < experts ? pairs : experts;
}

}  // namespace
