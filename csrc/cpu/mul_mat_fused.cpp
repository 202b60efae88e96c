// mul_mats, norm_mul_mats, add_norm_mul_mats, glu_mul_mat, gated_norm_mul_mat: what makes the rows
// of each, with the bits of the nodes that it stands for.

#include "mul_mat_fused.hpp"

#include "activation.hpp"
#include "norm.hpp"

namespace {

// Values of a short row are made in less time than threads take to meet; of activations, not.
constexpr int64_t kShortRows = 1024;

inline const float* values_at(const rr_tensor& t, int64_t r) {
  return reinterpret_cast<const float*>(row_ptr(t, r));
}

// Rows that are there already.
struct Given {
  static constexpr uint32_t kWeights = 1;
  static constexpr int64_t kOwn = kShortRows;
  const rr_tensor& x;

  explicit Given(const rr_node* node) : x(node->inputs[0]) {}
  static const char* refusal(const rr_node*) { return ""; }
  static int64_t unit() { return 1; }

  const float* make(int64_t r, Range blocks, float*, bool) const {
    return values_at(x, r) + blocks.begin * kProductBlock;
  }
};

// Normalises these blocks of a row, which may be in its place.
inline const float* normalised(const float* row, const float* weight, int64_t k, double eps,
                               Range blocks, float* out) {
  const float scale = rms_scale(row, k, eps);
  const int64_t begin = blocks.begin * kProductBlock, end = blocks.end * kProductBlock;
  for (int64_t i = begin; i < end; i += kLanes)
    store_vec(out + i, load_vec(row + i) * scale * load_vec(weight + i));
  return out + begin;
}

struct Normed {
  static constexpr uint32_t kWeights = 2;
  static constexpr int64_t kOwn = kShortRows;
  const rr_tensor &x, &weight;
  double eps;

  explicit Normed(const rr_node* node)
      : x(node->inputs[0]), weight(node->inputs[1]), eps(attr_float(node, "eps", 0.0)) {}
  static const char* refusal(const rr_node*) { return ""; }
  static int64_t unit() { return 1; }

  const float* make(int64_t r, Range blocks, float* room, bool) const {
    return normalised(values_at(x, r), values_at(weight, 0), x.shape[1], eps, blocks, room);
  }
};

struct SumNormed {
  static constexpr uint32_t kWeights = 3;
  static constexpr int64_t kOwn = kShortRows;
  const rr_tensor &x, &delta, &weight, &sum;
  double eps;

  explicit SumNormed(const rr_node* node)
      : x(node->inputs[0]),
        delta(node->inputs[1]),
        weight(node->inputs[2]),
        sum(node->outputs[1]),
        eps(attr_float(node, "eps", 0.0)) {}
  static const char* refusal(const rr_node* node) {
    const rr_tensor& sum = node->outputs[1];
    return sum.dtype == RR_F32 && dense_tail(sum, 1) ? "" : "the sum needs dense f32 rows";
  }
  static int64_t unit() { return 1; }

  // Every thread adds up whole rows, since a norm is of all of it.
  const float* make(int64_t r, Range blocks, float* room, bool keep) const {
    const float *a = values_at(x, r), *b = values_at(delta, r);
    const int64_t k = x.shape[1];
    for (int64_t i = 0; i < k; ++i) room[i] = a[i] + b[i];
    if (keep)
      memcpy(reinterpret_cast<float*>(row_ptr(sum, r)) + blocks.begin * kProductBlock,
             room + blocks.begin * kProductBlock,
             static_cast<size_t>((blocks.end - blocks.begin) * kProductBlock) * sizeof(float));
    return normalised(room, values_at(weight, 0), k, eps, blocks, room);
  }
};

// out[i] = f(a[i], b[i]), the last vector in part.
template <class F>
inline void map_values(const float* a, const float* b, float* out, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_vec(out + i, f(load_vec(a + i), load_vec(b + i)));
  if (i < n) store_vec(out + i, f(load_vec(a + i, n - i), load_vec(b + i, n - i)), n - i);
}

inline vec silu_times(vec gate, vec up) {
  return silu_vec(gate) * up;
}

struct Gated {
  static constexpr uint32_t kWeights = 2;
  static constexpr int64_t kOwn = 0;
  const rr_tensor &gate, &up;
  int64_t width, runs;  // of the last axis, and how many of these a row has
  bool gelu, sigmoid;

  explicit Gated(const rr_node* node)
      : gate(node->inputs[0]),
        up(node->inputs[1]),
        width(gate.shape[gate.rank - 1]),
        runs(node->inputs[2].shape[1] / width),
        gelu(attr_is(node, "act", "gelu")),
        sigmoid(attr_is(node, "act", "sigmoid")) {}
  static const char* refusal(const rr_node*) { return ""; }
  static int64_t unit() { return 1; }

  const float* make(int64_t r, Range blocks, float* room, bool) const {
    const int64_t begin = blocks.begin * kProductBlock, end = blocks.end * kProductBlock;
    for (int64_t i = begin; i < end;) {
      const int64_t run = i / width, at = i % width;
      const int64_t n = width - at < end - i ? width - at : end - i;
      activate(values_at(gate, r * runs + run) + at, values_at(up, r * runs + run) + at, room + i,
               n);
      i += n;
    }
    return room + begin;
  }

  void activate(const float* g, const float* u, float* out, int64_t n) const {
    if (sigmoid)
      map_values(g, u, out, n, [](vec a, vec b) { return b * sigmoid_vec(a); });
    else if (gelu)
      map_values(g, u, out, n, [](vec a, vec b) { return gelu_vec(a) * b; });
    else
      map_values(g, u, out, n, silu_times);
  }
};

struct HeadsNormed {
  static constexpr uint32_t kWeights = 3;
  static constexpr int64_t kOwn = 0;
  const rr_tensor &x, &weight, &gate;
  double eps;
  int64_t heads, width;

  explicit HeadsNormed(const rr_node* node)
      : x(node->inputs[0]),
        weight(node->inputs[1]),
        gate(node->inputs[2]),
        eps(attr_float(node, "eps", 0.0)),
        heads(x.shape[1]),
        width(x.shape[2]) {}
  static const char* refusal(const rr_node* node) {
    return node->inputs[0].shape[2] % kProductBlock == 0
               ? ""
               : "heads need to be whole blocks of 32 values";
  }
  int64_t unit() const { return width / kProductBlock; }

  const float* make(int64_t r, Range blocks, float* room, bool) const {
    for (int64_t h = blocks.begin / unit(); h < blocks.end / unit(); ++h) {
      float* out = room + h * width;
      normalised(values_at(x, r * heads + h), values_at(weight, 0), width, eps, {0, unit()}, out);
      map_values(values_at(gate, r * heads + h), out, out, width, silu_times);
    }
    return room + blocks.begin * kProductBlock;
  }
};

}  // namespace

RR_FUSED_PRODUCTS(mul_mats, "mul_mats", Given)
RR_FUSED_PRODUCTS(norm_mul_mats, "norm_mul_mats", Normed)
RR_FUSED_PRODUCTS(add_norm_mul_mats, "add_norm_mul_mats", SumNormed)
RR_FUSED_PRODUCTS(glu_mul_mat, "glu_mul_mat", Gated)
RR_FUSED_PRODUCTS(gated_norm_mul_mat, "gated_norm_mul_mat", HeadsNormed)
