// Many tokens of the gated delta rule in a row. Value rows lie across the lanes, so that no sum
// goes across lanes: what a row sums in each of its lanes elsewhere is summed here for one lane
// after the other and added in the same order, so that the bits are the same.
#pragma once

#include "delta_rule.hpp"

namespace {

constexpr int64_t kStretch = 32;  // tokens for which the state is turned
constexpr int kRowVecs = 2;       // vectors of value rows that share a load of an operand

// A lane's place in the order in which lanes are summed, which folds halves first: its bits
// reversed. Turned rows lie in this order, for memory that goes up by powers of two keeps loads
// waiting for stores whose addresses end alike.
constexpr int place_of(int lane) {
  int place = 0;
  for (int bit = 1; bit < kLanes; bit *= 2) place = 2 * place + (lane & bit ? 1 : 0);
  return place;
}

// V vectors of value rows, to [lane's place][vector of the key][row]. Keys beyond the size are
// zero.
template <int V>
void turn_in(const Task& task, const float* from, float* turned) {
  const int64_t vecs = task.room / kLanes;
  for (int v = 0; v < V; ++v, from += kLanes * task.size, turned += kLanes)
    for (int64_t i = 0; i < vecs; ++i) {
      const int64_t n = task.size - i * kLanes;
      vec square[kLanes];
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) {
        const float* at = from + j * task.size + i * kLanes;
        square[j] = n < kLanes ? load_vec(at, n) : load_vec(at);
      }
      transpose(square);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane)
        store_vec(turned + (place_of(lane) * vecs + i) * V * kLanes, square[lane]);
    }
}

// And back.
template <int V>
void turn_out(const Task& task, const float* turned, float* to) {
  const int64_t vecs = task.room / kLanes;
  for (int v = 0; v < V; ++v, to += kLanes * task.size, turned += kLanes)
    for (int64_t i = 0; i < vecs; ++i) {
      const int64_t n = task.size - i * kLanes;
      vec square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane)
        square[lane] = load_vec(turned + (place_of(lane) * vecs + i) * V * kLanes);
      transpose(square);
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) {
        float* at = to + j * task.size + i * kLanes;
        if (n < kLanes)
          store_vec(at, square[j], n);
        else
          store_vec(at, square[j]);
      }
    }
}

// What V vectors of rows say of a token's key, as they lie in the state.
template <int V>
void predict_rows(const Task& task, const Keys& keys, const float* from, float* known) {
  for (int j = 0; j < V * kLanes; j += 4) predict<4>(task, keys, from + j * task.size, known + j);
}

// A token's way through V vectors of turned rows: d of each, and the next lane's rows.
template <int V>
struct Walk {
  const float *decay, *k, *q, *next;
  int64_t room;
  vec d[V];
  float* at;
};

template <int V>
struct RowSums {
  vec out[V], ahead[V];
};

// The update of the keys of one lane, and what they add to the sums.
template <int V>
inline __attribute__((always_inline)) void sum_lane(Walk<V>& walk, int lane, RowSums<V>& sum) {
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) sum.out[v] = sum.ahead[v] = vec{};
#pragma GCC unroll 2
  for (int64_t i = lane; i < walk.room; i += kLanes, walk.at += V * kLanes) {
    const vec decay = vec_of(walk.decay[i]), k = vec_of(walk.k[i]);
    const vec q = vec_of(walk.q[i]), n = vec_of(walk.next[i]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const vec m = fma_vec(walk.d[v], k, load_vec(walk.at + v * kLanes) * decay);
      store_vec(walk.at + v * kLanes, m);
      sum.out[v] = fma_vec(m, q, sum.out[v]);
      sum.ahead[v] = fma_vec(m, n, sum.ahead[v]);
    }
  }
}

// Of the lanes LANE, LANE + STEP and so on, of which halves are added to one another.
template <int LANE, int STEP, int V>
inline __attribute__((always_inline)) void sum_lanes(Walk<V>& walk, RowSums<V>& sum) {
  if constexpr (STEP == kLanes) {
    sum_lane(walk, LANE, sum);
  } else {
    RowSums<V> other;
    sum_lanes<LANE, 2 * STEP>(walk, sum);
    sum_lanes<LANE + STEP, 2 * STEP>(walk, other);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      sum.out[v] += other.out[v];
      sum.ahead[v] += other.ahead[v];
    }
  }
}

// One token for V vectors of turned rows from row j on. Known are what they say of its key, and
// then what they say of the next one's.
template <int V>
void stretch_at(const Task& task, const Step& step, int64_t j, float* turned) {
  const Token& token = step.token;
  const Keys& keys = token.keys;
  Walk<V> walk = {keys.decay, keys.k, keys.q, step.next, task.room, {}, turned};
  for (int v = 0; v < V; ++v) {
    const int64_t at = j + v * kLanes;
    walk.d[v] = vec_of(token.beta) * (load_vec(token.v + at) - load_vec(step.known + at));
  }
  RowSums<V> sum;
  sum_lanes<0, 1>(walk, sum);
  for (int v = 0; v < V; ++v) {
    const int64_t at = j + v * kLanes;
    store_vec(token.o + at, sum.out[v] * vec_of(task.scale));
    store_vec(step.known + at, sum.ahead[v]);
  }
}

}  // namespace
