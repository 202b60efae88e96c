// Least-squares fits of sixteen sub-blocks side by side, one in each lane. Nothing is summed across
// lanes and no operation is fused, so that the codes are the same on every instruction set.
#pragma once

#include "native_vec.hpp"

namespace {

constexpr int kSub = 16;  // sub-blocks in a group

// Value i of sub-block j is x[i][j]; w: the weights of squared errors.
template <int W>
struct Lanes {
  alignas(64) float x[W][kSub];
  alignas(64) float w[W][kSub];
};

// What is found for each sub-block.
struct Found {
  alignas(64) float step[kSub], offset[kSub];
  alignas(64) float weight[kSub];  // sums of w
};

inline vec vec_min(vec a, vec b) {
  return a < b ? a : b;
}

inline vec vec_max(vec a, vec b) {
  return a > b ? a : b;
}

// The sum of n squares, in an order that does not depend on the width of vectors.
inline float dot_in_order(const float* x, int n) {
  float sums[16] = {}, sum = 0.0f;
  for (int i = 0; i < n; i += 16)
    for (int j = 0; j < 16; ++j) sums[j] += x[i + j] * x[i + j];
  for (int j = 0; j < 16; ++j) sum += sums[j];
  return sum;
}

// To the nearest whole number, halves to even; magnitudes below 2^22.
inline vec vec_round(vec x) {
  return (x + vec_of(12582912.0f)) - vec_of(12582912.0f);
}

inline vec vec_clamp(vec x, float low, float high) {
  return vec_max(vec_min(x, vec_of(high)), vec_of(low));
}

// 1 / x, and 0 where that is out of range.
inline vec vec_inverse(vec x) {
  const vec y = vec_of(1.0f) / x;
  const vec size = y < vec{} ? -y : y;
  return size < vec_of(INFINITY) ? y : vec{};
}

// y = step * q + offset with q in 0 .. top. tries: ranges to begin with, (top + from + i * by) /
// top steps wide each. negative: offsets are at most 0.
struct AffineSearch {
  int top;
  float from, by;
  int tries, rounds;
  bool negative;
};

struct AffineSums {
  vec q = {}, qq = {}, xq = {};
};

template <int W>
inline AffineSums affine_sums(const Lanes<W>& g, int p, vec inverse, vec low, float top) {
  AffineSums s;
  for (int i = 0; i < W; ++i) {
    const vec x = load_vec(g.x[i] + p), w = load_vec(g.w[i] + p);
    const vec q = vec_clamp(vec_round(inverse * (x - low)), 0.0f, top), wq = w * q;
    s.q += wq;
    s.qq += wq * q;
    s.xq += wq * x;
  }
  return s;
}

// The best step and offset so far, and its error less the sum of w * x * x.
struct AffineBest {
  vec step, offset, error;
};

// Takes the least-squares line through codes where it is better.
inline void take_better(const AffineSums& s, vec sw, vec sx, bool negative, AffineBest& best) {
  const vec spread = sw * s.qq - s.q * s.q;
  vec step = (sw * s.xq - sx * s.q) / spread, offset = (s.qq * sx - s.q * s.xq) / spread;
  if (negative) {
    const ivec above = offset > vec{};
    step = above ? s.xq / s.qq : step;
    offset = above ? vec{} : offset;
  }
  const vec error = step * (step * s.qq - vec_of(2.0f) * s.xq) +
                    offset * (offset * sw + vec_of(2.0f) * (step * s.q - sx));
  const ivec better = (spread > vec{}) & (error < best.error);
  best.step = better ? step : best.step;
  best.offset = better ? offset : best.offset;
  best.error = better ? error : best.error;
}

template <int W>
inline void fit_affine(const Lanes<W>& g, const AffineSearch& search, Found& found) {
  const float top = static_cast<float>(search.top);
  for (int p = 0; p < kSub; p += kLanes) {
    vec low = load_vec(g.x[0] + p), high = low, sw = {}, sx = {};
    for (int i = 0; i < W; ++i) {
      const vec x = load_vec(g.x[i] + p), w = load_vec(g.w[i] + p);
      low = vec_min(low, x);
      high = vec_max(high, x);
      sw += w;
      sx += w * x;
    }
    if (search.negative) low = vec_min(low, vec{});
    const vec span = high - low, inverse = vec_inverse(span);
    AffineBest best = {span * vec_of(1.0f / top), low, vec_of(INFINITY)};
    for (int t = 0; t < search.tries; ++t) {
      const vec part = vec_of(top + search.from + search.by * static_cast<float>(t));
      take_better(affine_sums(g, p, part * inverse, low, top), sw, sx, search.negative, best);
    }
    for (int r = 0; r < search.rounds; ++r)
      take_better(affine_sums(g, p, vec_inverse(best.step), best.offset, top), sw, sx,
                  search.negative, best);
    store_vec(found.step + p, best.step);
    store_vec(found.offset + p, best.offset);
    store_vec(found.weight + p, sw);
  }
}

// The nearest of the whole numbers -levels .. levels - 1.
struct Whole {
  int levels;
  vec operator()(vec x) const {
    const float most = static_cast<float>(levels);
    return vec_clamp(vec_round(x), -most, most - 1.0f);
  }
};

// The nearest of sixteen ascending values.
struct Listed {
  const float* values;
  vec operator()(vec x) const {
    vec y = vec_of(values[0]);
    for (int i = 1; i < 16; ++i) {
      const vec higher = vec_of(values[i] - values[i - 1]);
      y += x > vec_of((values[i] + values[i - 1]) * 0.5f) ? higher : vec{};
    }
    return y;
  }
};

// y = step * value. The element of largest magnitude gets the value end + i * by, for i of
// -tries .. tries, and as many times one near other where that is not 0.
struct SignedSearch {
  float end, other, by;
  int tries, rounds;
};

template <int W>
inline vec signed_peak(const Lanes<W>& g, int p) {
  vec most = {}, peak = {};
  for (int i = 0; i < W; ++i) {
    const vec x = load_vec(g.x[i] + p), size = x < vec{} ? -x : x;
    const ivec larger = size > most;
    most = larger ? size : most;
    peak = larger ? x : peak;
  }
  return peak;
}

struct SignedBest {
  vec step, gain;
};

template <int W, class Values>
inline void try_step(const Lanes<W>& g, int p, const Values& values, vec inverse,
                     SignedBest& best) {
  vec xv = {}, vv = {};
  for (int i = 0; i < W; ++i) {
    const vec x = load_vec(g.x[i] + p), w = load_vec(g.w[i] + p);
    const vec v = values(inverse * x), wv = w * v;
    xv += wv * x;
    vv += wv * v;
  }
  const vec step = xv / vv, gain = step * xv;
  const ivec better = (vv > vec{}) & (gain > best.gain);
  best.step = better ? step : best.step;
  best.gain = better ? gain : best.gain;
}

template <int W, class Values>
inline void fit_signed(const Lanes<W>& g, const Values& values, const SignedSearch& search,
                       Found& found) {
  for (int p = 0; p < kSub; p += kLanes) {
    const vec inverse = vec_inverse(signed_peak(g, p));
    SignedBest best = {vec{}, vec{}};
    for (int t = -search.tries; t <= search.tries; ++t) {
      const float by = search.by * static_cast<float>(t);
      try_step(g, p, values, vec_of(search.end + by) * inverse, best);
      if (search.other != 0) try_step(g, p, values, vec_of(search.other + by) * inverse, best);
    }
    for (int r = 0; r < search.rounds; ++r) try_step(g, p, values, vec_inverse(best.step), best);
    vec sw = {};
    for (int i = 0; i < W; ++i) sw += load_vec(g.w[i] + p);
    store_vec(found.step + p, best.step);
    store_vec(found.weight + p, sw);
  }
}

// The codes of values, as whole numbers: q[i][j] of value i of sub-block j; and, for each
// sub-block, the weighted sums over them.
template <int W>
struct Codes {
  alignas(64) int32_t q[W][kSub];
  alignas(64) float xv[kSub], vv[kSub], v[kSub], xw[kSub];
};

// A value is code(x), plus `more` as it is stored.
template <int W, class Code>
inline void find_codes(const Lanes<W>& g, const float* step, const float* offset, float more,
                       const Code& code, Codes<W>& codes) {
  for (int p = 0; p < kSub; p += kLanes) {
    const vec inverse = vec_inverse(load_vec(step + p)), low = load_vec(offset + p);
    vec xv = {}, vv = {}, sv = {}, xw = {};
    for (int i = 0; i < W; ++i) {
      const vec x = load_vec(g.x[i] + p), w = load_vec(g.w[i] + p);
      const vec v = code(vec_clamp(inverse * (x - low), -4096.0f, 4096.0f)), wv = w * v;
      xv += wv * x;
      vv += wv * v;
      sv += wv;
      xw += w * x;
      const ivec whole = __builtin_convertvector(v + vec_of(more), ivec);
      memcpy(codes.q[i] + p, &whole, sizeof whole);
    }
    store_vec(codes.xv + p, xv);
    store_vec(codes.vv + p, vv);
    store_vec(codes.v + p, sv);
    store_vec(codes.xw + p, xw);
  }
}

// Whole numbers 0 .. top.
struct Counted {
  float top;
  vec operator()(vec x) const { return vec_clamp(vec_round(x), 0.0f, top); }
};

// The place of the nearest of sixteen ascending values.
struct Place {
  const float* values;
  vec operator()(vec x) const {
    vec y = {};
    for (int i = 1; i < 16; ++i)
      y += x > vec_of((values[i] + values[i - 1]) * 0.5f) ? vec_of(1.0f) : vec{};
    return y;
  }
};

// Sub-blocks of values and their weights as lanes; those beyond n values are zeros. The weight of a
// squared error is given(x, mean, importance), or plain(x, mean) without an importance, where mean
// is the mean square of the `block` values that x is one of.
template <int W, class Plain, class Given>
inline void load_lanes(const float* x, const float* importance, int64_t n, int block,
                       const Plain& plain, const Given& given, Lanes<W>& g) {
  alignas(64) float mean[kSub] = {};
  memset(&g, 0, sizeof g);
  for (int j = 0; j < kSub && j * W < n; ++j) {
    const float* from = x + j * W;
    for (int i = 0; i < W; ++i) g.x[i][j] = from[i];
    if (importance != nullptr)
      for (int i = 0; i < W; ++i) g.w[i][j] = importance[j * W + i];
    if (j * W % block == 0)
      mean[j] = dot_in_order(from, block) / static_cast<float>(block);
    else
      mean[j] = mean[j - 1];
  }
  for (int i = 0; i < W; ++i)
    for (int j = 0; j < kSub; ++j)
      g.w[i][j] =
          importance != nullptr ? given(g.x[i][j], mean[j], g.w[i][j]) : plain(g.x[i][j], mean[j]);
}

}  // namespace
