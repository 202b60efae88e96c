// How heads turn by their tokens' positions: angles of pairs, from attributes that several ops
// have.
#pragma once

#include "kernel.cuh"
#include "ops/rope.hpp"

namespace {

constexpr double kPi = 3.14159265358979323846, kTurnsOfRadian = 0.5 / kPi;

// What all tokens share.
struct Turning {
  const char* positions;
  int64_t token_step, stream_step;  // bytes
  const float* factors;             // or null
  int pairs;
  bool neighbours;     // pairs (2i, 2i + 1), else (i, i + pairs)
  bool streams;        // pairs take one of four positions
  bool text;           // of which there is only the one of text, (p, p, p, 0)
  double octaves;      // by which the frequency falls from pair to pair
  double turns_scale;  // freq_scale, in turns
  double keep;         // YaRN: the share of the first pairs that is not scaled
  double low, span;    // between which pairs that share falls to 0
  float magnitude;
  int section_ends[3], sections;

  __device__ int first(int pair) const { return neighbours ? 2 * pair : pair; }
  __device__ int second(int pair) const { return neighbours ? 2 * pair + 1 : pair + pairs; }
};

// The turns that a pair makes from one position to the next.
__device__ inline double turns_each(const Turning& t, int pair) {
  double frequency = exp2(-t.octaves * pair);
  if (t.factors) frequency /= static_cast<double>(t.factors[pair]);
  if (t.keep == 0) return frequency * t.turns_scale;
  const double along = (pair - t.low) / t.span;
  const double keep = t.keep * (1.0 - fmin(fmax(along, 0.0), 1.0));
  return frequency * (t.turns_scale * (1.0 - keep) + kTurnsOfRadian * keep);
}

__device__ inline int32_t position_of(const Turning& t, int64_t token, int pair) {
  const char* p = t.positions + token * t.token_step;
  if (!t.streams) return *reinterpret_cast<const int32_t*>(p);
  const int j = pair % t.sections, kind = j % 3;
  const int end = kind == 0 ? t.section_ends[0] : kind == 1 ? t.section_ends[1] : t.section_ends[2];
  const int stream = j < end ? kind : 3;
  if (t.text) return stream == 3 ? 0 : *reinterpret_cast<const int32_t*>(p);
  return *reinterpret_cast<const int32_t*>(p + stream * t.stream_step);
}

// Cosine and sine of a pair that makes so many turns from one position to the next, both times the
// magnitude.
__device__ inline float2 turned(const Turning& t, int64_t token, int pair, double each) {
  double turns = position_of(t, token, pair) * each;
  turns -= rint(turns);
  const float angle = static_cast<float>(turns * (2 * kPi));
  return make_float2(cosf(angle) * t.magnitude, sinf(angle) * t.magnitude);
}

// Only pairs are told apart by it, of which there are fewer.
inline int clipped(int64_t pairs) {
  return static_cast<int>(pairs < 4 * kMaxPairs ? pairs : 4 * kMaxPairs);
}

// YaRN: the pair that turns `times` times within the original context.
inline double pair_turning(const rr_node* node, double times) {
  const double context = static_cast<double>(attr_int(node, "n_ctx_orig", 0));
  const double n_rot = static_cast<double>(attr_int(node, "n_rot", 0));
  return n_rot * log(context / (times * 2 * kPi)) / (2 * log(attr_float(node, "base", 1e4)));
}

// YaRN: between pairs that turn often, which keep their frequency, and ones that hardly turn,
// which are scaled, the frequency goes over from one to the other.
inline void blend(const rr_node* node, Turning& t) {
  const double last = static_cast<double>(attr_int(node, "n_rot", 0) - 1);
  const double high = fmin(last, ceil(pair_turning(node, attr_float(node, "beta_slow", 1.0))));
  t.low = fmax(0, floor(pair_turning(node, attr_float(node, "beta_fast", 32.0))));
  t.span = fmax(0.001, high - t.low);
  t.magnitude *= static_cast<float>(1 + 0.1 * log(1 / attr_float(node, "freq_scale", 1.0)));
}

inline Turning read_turning(const rr_node* node, const rr_tensor& positions,
                            const rr_tensor& factors) {
  Turning t = {};
  t.positions = data<const char>(positions);
  t.token_step = positions.strides[0];
  t.text = positions.rank == 1;
  t.stream_step = t.text ? 0 : positions.strides[1];
  t.factors = present(factors) ? data<const float>(factors) : nullptr;
  t.pairs = static_cast<int>(attr_int(node, "n_rot", 0) / 2);
  t.neighbours = attr_is(node, "style", "norm");
  t.streams = attr_is(node, "style", "imrope");
  t.octaves = log2(attr_float(node, "base", 1e4)) / t.pairs;
  t.turns_scale = attr_float(node, "freq_scale", 1.0) * kTurnsOfRadian;
  t.keep = attr_float(node, "ext_factor", 0.0);
  t.span = 1.0;
  t.magnitude = static_cast<float>(attr_float(node, "attn_factor", 1.0));
  if (t.keep != 0) blend(node, t);
  if (t.streams) {
    const rr_attr* sections = find_attr(node, "sections");
    for (int i = 0; i < 3; ++i) t.section_ends[i] = clipped(3 * sections->ints[i]);
    t.sections = clipped(sum_of_sections(sections));
  }
  return t;
}

}  // namespace
