// rope: angles, their sines and cosines in f64 once a token; then all heads are rotated in f32.

#include "ops/rope.hpp"

#include "kernel.hpp"
#include "native_vec.hpp"
#include "trig.hpp"

namespace {

constexpr double kPi = 3.14159265358979323846;

constexpr int kWide = kLanes / 2;
typedef double dvec __attribute__((vector_size(8 * kWide)));
typedef int64_t lvec __attribute__((vector_size(8 * kWide)));

// What all tokens share: the frequency of each pair, and which of a token's positions it takes.
struct Frequencies {
  int pairs = 0;
  double magnitude = 1.0;
  alignas(64) double of_pair[kMaxPairs] = {};
  uint8_t stream[kMaxPairs] = {};
};

// One token's table. neox: cosine and sine per pair. norm: both twice, for the elements of a pair,
// the sine of the first one negated.
struct Turn {
  alignas(64) float cosine[2 * kMaxPairs];
  alignas(64) float sine[2 * kMaxPairs];
};

// YaRN: the pair that turns `times` times within the original context.
double pair_turning(const rr_node* node, double times) {
  const double context = static_cast<double>(attr_int(node, "n_ctx_orig", 0));
  const double n_rot = static_cast<double>(attr_int(node, "n_rot", 0));
  return n_rot * log(context / (times * 2 * kPi)) / (2 * log(attr_float(node, "base", 1e4)));
}

// YaRN: between pairs that turn often, which keep their frequency, and ones that hardly turn,
// which are scaled, the frequency goes over from one to the other.
void blend(const rr_node* node, double freq_scale, double ext_factor, Frequencies& f) {
  const double last = static_cast<double>(attr_int(node, "n_rot", 0) - 1);
  const double low = fmax(0, floor(pair_turning(node, attr_float(node, "beta_fast", 32.0))));
  const double high = fmin(last, ceil(pair_turning(node, attr_float(node, "beta_slow", 1.0))));
  for (int i = 0; i < f.pairs; ++i) {
    const double along = (i - low) / fmax(0.001, high - low);
    const double keep = (1 - fmin(fmax(along, 0), 1)) * ext_factor;
    f.of_pair[i] *= freq_scale * (1 - keep) + keep;
  }
  f.magnitude *= 1 + 0.1 * log(1 / freq_scale);
}

void choose_streams(const rr_attr* sections, Frequencies& f) {
  const int64_t sum = sum_of_sections(sections);
  for (int i = 0; i < f.pairs; ++i) {
    const int64_t j = i % sum, kind = j % 3;
    f.stream[i] = static_cast<uint8_t>(j < 3 * sections->ints[kind] ? kind : 3);
  }
}

void fill(const rr_node* node, Frequencies& f) {
  f.pairs = static_cast<int>(attr_int(node, "n_rot", 0) / 2);
  f.magnitude = attr_float(node, "attn_factor", 1.0);
  const double ratio = pow(attr_float(node, "base", 1e4), -1.0 / f.pairs);
  const rr_tensor& factors = node->inputs[2];
  double freq = 1.0;
  for (int i = 0; i < f.pairs; ++i, freq *= ratio) {
    float factor = 1.0f;
    if (present(factors))
      memcpy(&factor, static_cast<const char*>(factors.data) + 4 * i, sizeof factor);
    f.of_pair[i] = freq / factor;
  }
  const double freq_scale = attr_float(node, "freq_scale", 1.0);
  const double ext_factor = attr_float(node, "ext_factor", 0.0);
  if (ext_factor != 0)
    blend(node, freq_scale, ext_factor, f);
  else
    for (int i = 0; i < f.pairs; ++i) f.of_pair[i] *= freq_scale;
  if (attr_is(node, "style", "imrope")) choose_streams(find_attr(node, "sections"), f);
}

void turn_of(const Frequencies& f, const double* position, bool twice, Turn& turn) {
  for (int i = 0; i < f.pairs; i += kWide) {
    dvec angle = {}, sine, cosine;
    for (int j = 0; j < kWide && i + j < f.pairs; ++j)
      angle[j] = position[f.stream[i + j]] * f.of_pair[i + j];
    sine_cosine<dvec, lvec>(angle, sine, cosine);
    sine *= f.magnitude;
    cosine *= f.magnitude;
    for (int j = 0; j < kWide; ++j) {
      const float s = static_cast<float>(sine[j]), c = static_cast<float>(cosine[j]);
      if (twice) {
        const int at = 2 * (i + j);
        turn.cosine[at] = turn.cosine[at + 1] = c;
        turn.sine[at] = -s;
        turn.sine[at + 1] = s;
      } else {
        turn.cosine[i + j] = c;
        turn.sine[i + j] = s;
      }
    }
  }
}

// Pairs (i, i + half).
void rotate_halves(const float* x, float* y, int half, const Turn& turn) {
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i < kLanes ? half - i : kLanes;
    const vec c = load_vec(turn.cosine + i), s = load_vec(turn.sine + i);
    const vec a = n == kLanes ? load_vec(x + i) : load_vec(x + i, n);
    const vec b = n == kLanes ? load_vec(x + half + i) : load_vec(x + half + i, n);
    const vec low = a * c - b * s, high = a * s + b * c;
    if (n == kLanes) {
      store_vec(y + i, low);
      store_vec(y + half + i, high);
    } else {
      store_vec(y + i, low, n);
      store_vec(y + half + i, high, n);
    }
  }
}

vec swap_neighbours(vec v) {
#if defined(__AVX512F__)
  return RR_SHUFFLE(ivec, v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif defined(__AVX2__)
  return RR_SHUFFLE(ivec, v, v, 1, 0, 3, 2, 5, 4, 7, 6);
#else
  return RR_SHUFFLE(ivec, v, v, 1, 0, 3, 2);
#endif
}

// Pairs (2i, 2i + 1).
void rotate_neighbours(const float* x, float* y, int n_rot, const Turn& turn) {
  for (int i = 0; i < n_rot; i += kLanes) {
    const int n = n_rot - i < kLanes ? n_rot - i : kLanes;
    const vec v = n == kLanes ? load_vec(x + i) : load_vec(x + i, n);
    const vec turned = v * load_vec(turn.cosine + i) + swap_neighbours(v) * load_vec(turn.sine + i);
    if (n == kLanes)
      store_vec(y + i, turned);
    else
      store_vec(y + i, turned, n);
  }
}

// A token's positions as t, h, w, e; a single one stands for text.
void read_positions(const rr_tensor& positions, int64_t token, bool streams, double* out) {
  const char* p = static_cast<const char*>(positions.data) + token * positions.strides[0];
  for (int i = 0; i < 4; ++i) {
    int32_t value;
    memcpy(&value, positions.rank == 2 ? p + i * positions.strides[1] : p, sizeof value);
    out[i] = streams && positions.rank == 1 && i == 3 ? 0.0 : value;
  }
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const bool neighbours = attr_is(node, "style", "norm");
  const bool streams = attr_is(node, "style", "imrope");
  const Range tokens = split(exec, node->rows < x.shape[0] ? node->rows : x.shape[0]);
  if (tokens.begin >= tokens.end) return;
  Frequencies frequencies;
  fill(node, frequencies);
  Turn turn;
  const int pairs = frequencies.pairs;
  const size_t rest = static_cast<size_t>(x.shape[2] - 2 * pairs) * sizeof(float);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    double position[4];
    read_positions(node->inputs[1], t, streams, position);
    turn_of(frequencies, position, neighbours, turn);
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      const float* in = reinterpret_cast<const float*>(row_ptr(x, t * x.shape[1] + h));
      float* out = reinterpret_cast<float*>(row_ptr(y, t * x.shape[1] + h));
      if (neighbours)
        rotate_neighbours(in, out, 2 * pairs, turn);
      else
        rotate_halves(in, out, pairs, turn);
      if (out != in) memcpy(out + 2 * pairs, in + 2 * pairs, rest);
    }
  }
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& x = node->inputs[0];
  return static_cast<int32_t>(numel(x) < 16384 ? 1 : x.shape[0]);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "rope", supports_rope, nullptr, tasks, run)
