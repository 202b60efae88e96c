// Scores of many query vectors against a tile of keys. The keys lie across the lanes, so that no
// sum goes across lanes: a load of keys serves several queries, and the parts that a dot product
// has in each lane elsewhere are added here in the same order, so that the bits are the same.
#pragma once

#include "pool.hpp"

namespace {

constexpr int kKeyVecs = 2;                       // vectors of keys whose sums stay in registers
constexpr int64_t kWideKeys = kKeyVecs * kLanes;  // keys of a tile
constexpr int kWideQueries = kManyRegisters ? 8 : 4;  // times kKeyVecs: sums in registers

// Floats from what one lane adds up to what the next one does. Without a line more than they need
// lanes would lie in the same few sets of the cache.
inline int64_t lane_stride(int64_t room) {
  return room / kLanes * kWideKeys + 16;
}

// Keys of `room` floats, which are whole vectors, to [lane][vector of the key][key].
void turn_keys(const char* const* rows, int64_t room, float* turned) {
  const int64_t vecs = room / kLanes;
  for (int64_t key = 0; key < kWideKeys; key += kLanes)
    for (int64_t i = 0; i < vecs; ++i) {
      vec square[kLanes];
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) square[j] = FloatRow::at(rows[key + j], i * kLanes);
      transpose(square);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane)
        store_vec(turned + lane * lane_stride(room) + i * kWideKeys + key, square[lane]);
    }
}

// What Q dot products with each key add up to in one lane.
template <int Q>
inline __attribute__((always_inline)) void add_lane(const float* q, int64_t room,
                                                    const float* turned, int lane,
                                                    vec (&sum)[Q][kKeyVecs]) {
  const float* at = turned + lane * lane_stride(room);
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < kKeyVecs; ++c) sum[i][c] = vec{};
  for (int64_t d = lane; d < room; d += kLanes, at += kWideKeys) {
    vec keys[kKeyVecs];
    for (int c = 0; c < kKeyVecs; ++c) keys[c] = load_vec(at + c * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const vec x = vec_of(q[i * room + d]);
      for (int c = 0; c < kKeyVecs; ++c) sum[i][c] = fma_vec(x, keys[c], sum[i][c]);
    }
  }
}

// The same of the lanes LANE, LANE + STEP and so on, of which halves are added to one another.
template <int Q, int LANE, int STEP>
inline __attribute__((always_inline)) void add_lanes(const float* q, int64_t room,
                                                     const float* turned, vec (&sum)[Q][kKeyVecs]) {
  if constexpr (STEP == kLanes) {
    add_lane<Q>(q, room, turned, LANE, sum);
  } else {
    vec other[Q][kKeyVecs];
    add_lanes<Q, LANE, 2 * STEP>(q, room, turned, other);
    add_lanes<Q, LANE + STEP, 2 * STEP>(q, room, turned, sum);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i)
      for (int c = 0; c < kKeyVecs; ++c) sum[i][c] += other[i][c];
  }
}

// Scores of Q query vectors, `room` floats each, with the keys of a tile; rows of scores lie
// `stride` apart.
template <int Q>
void score_wide(const float* q, int64_t room, const float* turned, float scale, float* scores,
                int64_t stride) {
  vec sum[Q][kKeyVecs];
  add_lanes<Q, 0, 1>(q, room, turned, sum);
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < kKeyVecs; ++c)
      store_vec(scores + i * stride + c * kLanes, sum[i][c] * scale);
}

}  // namespace
