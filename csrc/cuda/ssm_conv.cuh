// The inputs of a convolution over sequences, and what is kept of them.
#pragma once

#include "kept_state.cuh"

namespace {

// One float, or four, which may begin anywhere.
template <typename V>
__device__ inline V get(const float* from) {
  return *from;
}

template <>
__device__ inline float4 get<float4>(const float* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0)
    return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], from[1], from[2], from[3]);
}

template <typename V>
__device__ inline void put(float* to, const V& values) {
  *reinterpret_cast<V*>(to) = values;
}

// Neighbouring channels, one or four as V has it, c the first, of a sequence's inputs; they are
// numbered from the pass's first token, and negative ones come from the log, and before that from
// the old tail. x, tail and log begin with channel c.
template <typename V>
struct Line {
  const float *x, *tail, *log;  // log: of the sequence
  int64_t x_stride, channels;
  int b, live, taps, head, entries;
  int64_t c;

  __device__ V operator()(int i) const {
    if (i >= 0) return token(i);
    if (i < -live) return get<V>(tail + (i + live + taps - 1) * channels);
    const int64_t at = int64_t{head} + live + i;
    return get<V>(log + (at < entries ? at : at - entries) * channels);
  }
  __device__ V token(int i) const { return get<V>(x + i * x_stride); }
};

// x: the row of the sequence's first token.
template <typename V>
__device__ inline Line<V> line_from(const float* x, int64_t x_stride, int64_t channels,
                                    const Kept& kept, const Replay& replay, const Pass& pass, int b,
                                    int taps, int64_t c) {
  Line<V> line = {x + c, kept.plane(b, kept.source(b)) + c, nullptr, x_stride, channels,
                  b,     pass.folded + pass.held,           taps,    0,        0,
                  c};
  if (replay.log) {
    line.log = replay.log + int64_t{kept.row_of[b]} * replay.entries * channels + c;
    line.head = replay.head[b];
    line.entries = replay.entries;
  }
  return line;
}

// All are read before one is written, where their number is known.
template <int kTaps, typename V>
__device__ inline void store_tail(const Line<V>& line, float* to, int oldest) {
  if constexpr (kTaps == 0) {
    for (int t = 0; t + 1 < line.taps; ++t) put(to + t * line.channels, line(oldest + t));
  } else {
    V inputs[kTaps - 1];
#pragma unroll
    for (int t = 0; t + 1 < kTaps; ++t) inputs[t] = line(oldest + t);
#pragma unroll
    for (int t = 0; t + 1 < kTaps; ++t) put(to + t * line.channels, inputs[t]);
  }
}

// The plane that was read comes last: until then it is the old tail. In itself it moves down, so
// that nothing is overwritten before it is read.
template <int kTaps, typename V>
__device__ inline void store_tails(const Kept& kept, const Line<V>& line, const Pass& pass) {
  const int settled = pass.direct - pass.held, states = pass.folded + pass.direct;
  const int source = kept.source(line.b);
  int in_place = -1;
  for (int age = 0; age < kept.planes && age < states; ++age) {
    const int target = kept.target(line.b, age);
    if (target == source)
      in_place = age;
    else
      store_tail<kTaps>(line, kept.plane(line.b, target) + line.c, settled - age - line.taps + 1);
  }
  if (in_place >= 0)
    store_tail<kTaps>(line, kept.plane(line.b, source) + line.c,
                      settled - in_place - line.taps + 1);
}

}  // namespace
