// Walking tensors of one shape together, whatever their strides, in runs along one axis.
#pragma once

#include "kernel.hpp"
#include "native_vec.hpp"
#include "ops/elementwise.hpp"

namespace {

constexpr int kWalkTensors = 3;

// Neighbouring axes are merged where every tensor allows it, so that dense tensors are one run.
struct Walk {
  int rank = 0;
  int64_t size = 1;
  int64_t shape[RR_MAX_RANK];
  int64_t strides[kWalkTensors][RR_MAX_RANK];
  char* base[kWalkTensors];
};

inline bool merges(const Walk& walk, int tensors, const int64_t* strides, int64_t extent) {
  if (walk.rank == 0) return false;
  for (int t = 0; t < tensors; ++t)
    if (walk.strides[t][walk.rank - 1] != strides[t] * extent) return false;
  return true;
}

// The first tensor gives the shape, of which `rows` are wanted along axis 0 when there are more
// axes; the others broadcast to it.
inline Walk make_walk(const rr_tensor* const* of, int tensors, int64_t rows) {
  Walk walk;
  const rr_tensor& first = *of[0];
  int64_t strides[kWalkTensors] = {};
  for (int t = 0; t < tensors; ++t) walk.base[t] = static_cast<char*>(of[t]->data);
  for (int axis = 0; axis < first.rank; ++axis) {
    int64_t extent = first.shape[axis];
    if (axis == 0 && first.rank > 1 && rows < extent) extent = rows;
    walk.size *= extent;
    if (extent == 1) continue;
    for (int t = 0; t < tensors; ++t) {
      const int own = axis - (first.rank - of[t]->rank);
      strides[t] = own < 0 || of[t]->shape[own] == 1 ? 0 : of[t]->strides[own];
    }
    if (merges(walk, tensors, strides, extent))
      walk.shape[walk.rank - 1] *= extent;
    else
      walk.shape[walk.rank++] = extent;
    for (int t = 0; t < tensors; ++t) walk.strides[t][walk.rank - 1] = strides[t];
  }
  if (walk.rank == 0) {
    walk.rank = 1;
    walk.shape[0] = 1;
    for (int t = 0; t < tensors; ++t) walk.strides[t][0] = 0;
  }
  return walk;
}

// Calls body(pointers, strides, n) for every run of n elements in `part` of the walk's elements.
template <int tensors, typename Body>
inline void each_run(const Walk& walk, Range part, const Body& body) {
  const int last = walk.rank - 1;
  int64_t index[RR_MAX_RANK], strides[tensors];
  for (int t = 0; t < tensors; ++t) strides[t] = walk.strides[t][last];
  if (part.begin >= part.end) return;
  int64_t rest = part.begin;
  for (int axis = last; axis >= 0; --axis) {
    index[axis] = rest % walk.shape[axis];
    rest /= walk.shape[axis];
  }
  for (int64_t at = part.begin; at < part.end;) {
    char* pointers[tensors];
    for (int t = 0; t < tensors; ++t) {
      pointers[t] = walk.base[t];
      for (int axis = 0; axis <= last; ++axis) pointers[t] += index[axis] * walk.strides[t][axis];
    }
    int64_t n = walk.shape[last] - index[last];
    if (n > part.end - at) n = part.end - at;
    body(pointers, strides, n);
    at += n;
    index[last] = 0;
    for (int axis = last - 1; axis >= 0 && ++index[axis] == walk.shape[axis]; --axis)
      index[axis] = 0;
  }
}

// Up to kLanes floats, `stride` bytes apart.
inline vec fetch(const char* p, int64_t stride, int64_t n) {
  if (stride == sizeof(float) && n == kLanes) return load_vec(p);
  float lanes[kLanes] = {};
  if (stride == 0) {
    for (float& lane : lanes) memcpy(&lane, p, sizeof lane);
    return load_vec(lanes);
  }
  for (int64_t i = 0; i < n; ++i) memcpy(&lanes[i], p + i * stride, sizeof(float));
  return load_vec(lanes);
}

inline void put(char* p, int64_t stride, vec v, int64_t n) {
  if (stride == sizeof(float) && n == kLanes) return store_vec(p, v);
  float lanes[kLanes];
  store_vec(lanes, v);
  for (int64_t i = 0; i < n; ++i) memcpy(p + i * stride, &lanes[i], sizeof(float));
}

// y = f(x) for this thread's part; the value of an element does not depend on where it lies.
template <typename F>
inline void map_unary(const rr_node* node, const rr_exec* exec, const F& f) {
  const rr_tensor* of[] = {&node->outputs[0], &node->inputs[0]};
  const Walk walk = make_walk(of, 2, node->rows);
  each_run<2>(walk, split(exec, walk.size, 64), [&](char** p, const int64_t* step, int64_t n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const int64_t lanes = n - i < kLanes ? n - i : kLanes;
      put(p[0] + i * step[0], step[0], f(fetch(p[1] + i * step[1], step[1], lanes)), lanes);
    }
  });
}

// y = f(a, b), b broadcast to a's shape.
template <typename F>
inline void map_binary(const rr_node* node, const rr_exec* exec, const F& f) {
  const rr_tensor* of[] = {&node->outputs[0], &node->inputs[0], &node->inputs[1]};
  const Walk walk = make_walk(of, 3, node->rows);
  each_run<3>(walk, split(exec, walk.size, 64), [&](char** p, const int64_t* step, int64_t n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const int64_t lanes = n - i < kLanes ? n - i : kLanes;
      const vec a = fetch(p[1] + i * step[1], step[1], lanes);
      const vec b = fetch(p[2] + i * step[2], step[2], lanes);
      put(p[0] + i * step[0], step[0], f(a, b), lanes);
    }
  });
}

// Small work is done sooner by one thread than by meeting the others.
inline int32_t elementwise_tasks(const rr_node* node) {
  return numel(node->outputs[0]) < 16384 ? 1 : INT32_MAX;
}

// The same of activations, of which an element takes a thread about a nanosecond.
[[maybe_unused]] inline int32_t activation_tasks(const rr_node* node) {
  return numel(node->outputs[0]) < 3072 ? 1 : INT32_MAX;
}

}  // namespace
