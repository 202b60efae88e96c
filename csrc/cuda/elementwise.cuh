// Walking tensors of one shape together, whatever their strides: 16 bytes of elements a thread
// where they lie densely along the last axis, else one element a thread.
#pragma once

#include "kernel.cuh"
#include "ops/elementwise.hpp"

namespace {

constexpr int kWalkThreads = 256;
constexpr int kWalkRank = 2 * RR_MAX_RANK;

// Neighbouring axes are merged where every tensor allows it, so that dense tensors are one axis.
template <int tensors>
struct Walk {
  int rank = 0;
  int64_t size = 1;
  int64_t shape[kWalkRank] = {};
  int64_t strides[tensors][kWalkRank] = {};
  char* base[tensors] = {};

  // One more axis inside those so far.
  void add(int64_t extent, const int64_t (&step)[tensors]) {
    size *= extent;
    if (extent == 1) return;
    bool merges = rank > 0;
    for (int t = 0; merges && t < tensors; ++t) merges = strides[t][rank - 1] == step[t] * extent;
    if (merges)
      shape[rank - 1] *= extent;
    else
      shape[rank++] = extent;
    for (int t = 0; t < tensors; ++t) strides[t][rank - 1] = step[t];
  }

  void finish() {
    if (rank == 0) shape[rank++] = 1;
  }

  // Whether units of `per` elements are aligned in every tensor and lie densely or, of an input,
  // are one element repeated.
  bool in_units(const int (&bytes)[tensors], int per) const {
    for (int t = 0; t < tensors; ++t) {
      const int64_t unit = per * bytes[t], step = strides[t][rank - 1];
      if (t > 0 && step == 0) continue;
      if (step != bytes[t] || reinterpret_cast<uintptr_t>(base[t]) % unit != 0) return false;
      for (int axis = 0; axis + 1 < rank; ++axis)
        if (strides[t][axis] % unit != 0) return false;
    }
    return true;
  }

  int64_t units(int per) const {
    const int64_t row = shape[rank - 1];
    return size == 0 ? 0 : size / row * ((row + per - 1) / per);
  }
};

// The first tensor gives the shape; the others broadcast to it.
template <int tensors>
inline Walk<tensors> make_walk(const rr_tensor* const (&of)[tensors]) {
  Walk<tensors> walk;
  const rr_tensor& first = *of[0];
  for (int t = 0; t < tensors; ++t) walk.base[t] = static_cast<char*>(of[t]->data);
  for (int axis = 0; axis < first.rank; ++axis) {
    int64_t step[tensors];
    for (int t = 0; t < tensors; ++t) {
      const int own = axis - (first.rank - of[t]->rank);
      step[t] = own < 0 || of[t]->shape[own] == 1 ? 0 : of[t]->strides[own];
    }
    walk.add(first.shape[axis], step);
  }
  walk.finish();
  return walk;
}

// a / b for a >= 0, b > 0: the division of 64 bits is slow.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<unsigned>(a) / static_cast<unsigned>(b);
  return a / b;
}

// Where unit u of up to `per` elements lies in each tensor; the number of its elements.
template <int per, int tensors>
__device__ inline int locate(const Walk<tensors>& walk, int64_t u, char* (&p)[tensors]) {
  const int last = walk.rank - 1;
  const int64_t row_units = (walk.shape[last] + per - 1) / per;
  int64_t rest = last > 0 ? quotient(u, row_units) : 0;
  const int64_t index = (u - rest * row_units) * per, left = walk.shape[last] - index;
#pragma unroll
  for (int t = 0; t < tensors; ++t) p[t] = walk.base[t] + index * walk.strides[t][last];
  for (int axis = last - 1; axis >= 0; --axis) {
    const int64_t next = axis > 0 ? quotient(rest, walk.shape[axis]) : 0;
    const int64_t at = rest - next * walk.shape[axis];
#pragma unroll
    for (int t = 0; t < tensors; ++t) p[t] += at * walk.strides[t][axis];
    rest = next;
  }
  return left < per ? static_cast<int>(left) : per;
}

// What one instruction moves.
template <typename T, int n>
struct alignas(sizeof(T) * n) Pack {
  T of[n];
};

// A whole unit: `per` elements that lie densely, or one repeated.
template <int per, typename T>
__device__ inline Pack<T, per> fetch(const char* p, int64_t step) {
  if (step != 0) return *reinterpret_cast<const Pack<T, per>*>(p);
  const T one = *reinterpret_cast<const T*>(p);
  Pack<T, per> all;
#pragma unroll
  for (int i = 0; i < per; ++i) all.of[i] = one;
  return all;
}

template <typename Y, typename X, int per, typename F>
__global__ void map_unary(Walk<2> walk, int64_t units, F f) {
  enter_grid();
  const int64_t u = static_cast<int64_t>(blockIdx.x) * kWalkThreads + threadIdx.x;
  if (u >= units) return;
  char* p[2];
  const int n = locate<per>(walk, u, p);
  const int64_t y_step = walk.strides[0][walk.rank - 1], x_step = walk.strides[1][walk.rank - 1];
  if (per > 1 && n == per) {
    const Pack<X, per> x = fetch<per, X>(p[1], x_step);
    Pack<Y, per> y;
#pragma unroll
    for (int i = 0; i < per; ++i) y.of[i] = f(x.of[i]);
    *reinterpret_cast<Pack<Y, per>*>(p[0]) = y;
    return;
  }
  for (int i = 0; i < n; ++i)
    *reinterpret_cast<Y*>(p[0] + i * y_step) = f(*reinterpret_cast<const X*>(p[1] + i * x_step));
}

template <int per, typename F>
__global__ void map_binary(Walk<3> walk, int64_t units, F f) {
  enter_grid();
  const int64_t u = static_cast<int64_t>(blockIdx.x) * kWalkThreads + threadIdx.x;
  if (u >= units) return;
  char* p[3];
  const int n = locate<per>(walk, u, p), last = walk.rank - 1;
  const int64_t step[3] = {walk.strides[0][last], walk.strides[1][last], walk.strides[2][last]};
  if (per > 1 && n == per) {
    const Pack<float, per> a = fetch<per, float>(p[1], step[1]);
    const Pack<float, per> b = fetch<per, float>(p[2], step[2]);
    Pack<float, per> y;
#pragma unroll
    for (int i = 0; i < per; ++i) y.of[i] = f(a.of[i], b.of[i]);
    *reinterpret_cast<Pack<float, per>*>(p[0]) = y;
    return;
  }
  for (int i = 0; i < n; ++i) {
    const float a = *reinterpret_cast<const float*>(p[1] + i * step[1]);
    const float b = *reinterpret_cast<const float*>(p[2] + i * step[2]);
    *reinterpret_cast<float*>(p[0] + i * step[0]) = f(a, b);
  }
}

// y = f(x) for elements of types Y and X; the value of an element does not depend on where it
// lies.
template <typename Y, typename X, typename F>
inline void map(const rr_exec* exec, const Walk<2>& walk, const F& f) {
  constexpr int y_bytes = sizeof(Y), x_bytes = sizeof(X);
  constexpr int per = 16 / (y_bytes > x_bytes ? y_bytes : x_bytes);
  const bool whole = walk.in_units({y_bytes, x_bytes}, per);
  const int64_t units = walk.units(whole ? per : 1);
  if (units == 0) return;
  const dim3 grid(static_cast<unsigned>(blocks_for(units, kWalkThreads)));
  if (whole)
    RR_LAUNCH(exec, (map_unary<Y, X, per, F>), grid, kWalkThreads, 0, walk, units, f);
  else
    RR_LAUNCH(exec, (map_unary<Y, X, 1, F>), grid, kWalkThreads, 0, walk, units, f);
}

// y = f(x), all f32.
template <typename F>
inline void map_node(const rr_node* node, const rr_exec* exec, const F& f) {
  map<float, float>(exec, make_walk<2>({&node->outputs[0], &node->inputs[0]}), f);
}

// y = f(a, b), b broadcast to a's shape, all f32.
template <typename F>
inline void map_pair(const rr_node* node, const rr_exec* exec, const F& f) {
  const Walk<3> walk = make_walk<3>({&node->outputs[0], &node->inputs[0], &node->inputs[1]});
  const bool whole = walk.in_units({4, 4, 4}, 4);
  const int64_t units = walk.units(whole ? 4 : 1);
  if (units == 0) return;
  const dim3 grid(static_cast<unsigned>(blocks_for(units, kWalkThreads)));
  if (whole)
    RR_LAUNCH(exec, (map_binary<4, F>), grid, kWalkThreads, 0, walk, units, f);
  else
    RR_LAUNCH(exec, (map_binary<1, F>), grid, kWalkThreads, 0, walk, units, f);
}

}  // namespace
