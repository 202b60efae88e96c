// norm: a warp or a block a row. Deviations are taken from the rounded mean, and then from what is
// left of their own mean, so that a large offset costs no precision.

#include "ops/norm.hpp"
#include "rows.cuh"

namespace {

struct Affine {
  const float* w;  // or null
  const float* b;  // or null
  double eps;
};

__device__ inline float root(float x) {
  return sqrtf(x);
}

__device__ inline double root(double x) {
  return sqrt(x);
}

// The row in arithmetic of type T. False, and nothing is written, where T's range is too small.
template <int group, typename T>
__device__ inline bool norm_row(const float* x, float* y, int64_t width, const Affine& affine) {
  const bool quads = in_quads(x, width);
  const int first = 4 * (threadIdx.x % group);
  const T n = static_cast<T>(width);
  T sum = 0;
  for (int64_t i = first; i < width; i += 4 * group) {
    const float4 v = load_quad(x, i, width, quads, 0.0f);
    sum += (T(v.x) + T(v.y)) + (T(v.z) + T(v.w));
  }
  // A float, so that nothing is lost in deviations from it, and it can stand for missing elements.
  const float mean = static_cast<float>(group_sum<group>(sum) / n);
  T rest = 0, squares = 0;
  for (int64_t i = first; i < width; i += 4 * group) {
    const float4 v = load_quad(x, i, width, quads, mean);
    const T a = T(v.x) - T(mean), b = T(v.y) - T(mean), c = T(v.z) - T(mean), d = T(v.w) - T(mean);
    rest += (a + b) + (c + d);
    squares += (a * a + b * b) + (c * c + d * d);
  }
  rest = group_sum<group>(rest) / n;
  squares = group_sum<group>(squares);
  const T variance = squares / n - rest * rest;
  const T length = root((variance < T(0) ? T(0) : variance) + static_cast<T>(affine.eps));
  if (sizeof(T) == sizeof(float) && !(squares <= T(1e37) && length >= T(1e-15))) return false;
  const T factor = T(1) / length;
  const bool stores = quads && in_quads(y, width);
  const bool weighs = quads && affine.w && in_quads(affine.w, 4);
  const bool shifts = quads && affine.b && in_quads(affine.b, 4);
  for (int64_t i = first; i < width; i += 4 * group) {
    const float4 v = load_quad(x, i, width, quads, mean);
    float4 out = make_float4(static_cast<float>((T(v.x) - T(mean) - rest) * factor),
                             static_cast<float>((T(v.y) - T(mean) - rest) * factor),
                             static_cast<float>((T(v.z) - T(mean) - rest) * factor),
                             static_cast<float>((T(v.w) - T(mean) - rest) * factor));
    if (affine.w) {
      const float4 w = load_quad(affine.w, i, width, weighs, 1.0f);
      out = make_float4(out.x * w.x, out.y * w.y, out.z * w.z, out.w * w.w);
    }
    if (affine.b) {
      const float4 b = load_quad(affine.b, i, width, shifts, 0.0f);
      out = make_float4(out.x + b.x, out.y + b.y, out.z + b.z, out.w + b.w);
    }
    store_quad(y, i, width, stores, out);
  }
  return true;
}

template <int group>
__global__ void norm_rows(Rows x, Rows y, int64_t rows, int64_t width, Affine affine) {
  enter_grid();
  const int64_t r = own_row<group>();
  if (r >= rows) return;
  const float* in = row_at(x, r);
  float* out = row_at(y, r);
  if (!norm_row<group, float>(in, out, width, affine))
    norm_row<group, double>(in, out, width, affine);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &b = node->inputs[2];
  if (numel(x) == 0) return;
  const int64_t rows = n_rows(x), width = x.shape[x.rank - 1];
  const Affine affine = {present(w) ? data<const float>(w) : nullptr,
                         present(b) ? data<const float>(b) : nullptr, attr_float(node, "eps", 0.0)};
  RR_LAUNCH_ROWS(exec, norm_rows, rows, width, rows_of(x), rows_of(node->outputs[0]), rows, width,
                 affine);
}

}  // namespace

RR_CUDA_KERNEL(norm, RR_ROW_EXACT, "norm", "cuda", "", 0, supports, nullptr, run)
