// What fused products of prompts multiply, made from their inputs as rows of halves.
#include "fused_inputs.cuh"
#include "prompt_half_slabs.cuh"
#include "prompt_products.hpp"

namespace {

using riverrun::PromptHalves;

__device__ inline float4 four_from(const float* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0)
    return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], from[1], from[2], from[3]);
}

struct GluSource {
  Act act;
  HeadRows gate, up;

  __device__ float4 load(int row, int at) const {
    const float4 g = four_from(gate.row(row).at(at)), u = four_from(up.row(row).at(at));
    return make_float4(gated(act, g.x, u.x), gated(act, g.y, u.y), gated(act, g.z, u.z),
                       gated(act, g.w, u.w));
  }

  template <int threads, class Each>
  __device__ Unscaled scale_of(int, const Each&) const {
    return {};
  }
};

// v times factor, then times w.
template <typename T>
__device__ inline void scale_four(float4& v, T factor, const float4& w) {
  v.x = static_cast<float>(static_cast<T>(v.x) * factor) * w.x;
  v.y = static_cast<float>(static_cast<T>(v.y) * factor) * w.y;
  v.z = static_cast<float>(static_cast<T>(v.z) * factor) * w.z;
  v.w = static_cast<float>(static_cast<T>(v.w) * factor) * w.w;
}

template <typename T>
__device__ inline T squares_of_four(const float4& v) {
  const T x = v.x, y = v.y, z = v.z, w = v.w;
  return x * x + y * y + z * z + w * w;
}

// Heads of up to 128 values, a power of two.
struct GatedNormSource {
  HeadRows x, gate;
  const float* weight;
  double eps;

  __device__ float4 load(int row, int at) const {
    const HeadRow heads = x.row(row);
    float4 v = four_from(heads.at(at));
    const float4 g = four_from(gate.row(row).at(at)), w = four_from(weight + at % heads.width);
    const RmsFactor of = {heads.width, eps};
    float factor;
    const bool small = of(head_squares<float>(v, heads.width), factor);
    if (__all_sync(kAllLanes, small)) {
      scale_four(v, factor, w);
    } else {
      double wide;
      of(head_squares<double>(v, heads.width), wide);
      small ? scale_four(v, factor, w) : scale_four(v, wide, w);
    }
    return make_float4(silu(g.x) * v.x, silu(g.y) * v.y, silu(g.z) * v.z, silu(g.w) * v.w);
  }

  template <int threads, class Each>
  __device__ Unscaled scale_of(int, const Each&) const {
    return {};
  }

 private:
  template <typename T>
  static __device__ T head_squares(const float4& v, int width) {
    T sum = squares_of_four<T>(v);
    for (int step = width / 8; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
  }
};

// wide: where floats are too small for the factor.
struct NormScale {
  float factor;
  double wide;
  bool small;
  const float* weight;

  __device__ void operator()(float4& v, int at) const {
    const float* from = weight + at;
    const float4 w = make_float4(__ldg(from), __ldg(from + 1), __ldg(from + 2), __ldg(from + 3));
    small ? scale_four(v, factor, w) : scale_four(v, wide, w);
  }
};

// x, or x + delta, which it leaves in `sum` when all of the block's are there: stores between loads
// would keep these apart.
struct NormSource {
  Rows x, delta;  // delta.data: null for none
  float* sum;
  const float* weight;
  double eps;
  int k;

  __device__ float4 load(int row, int at) const {
    float4 v = four_from(row_at<const float>(x, row) + at);
    if (!delta.data) return v;
    const float4 d = four_from(row_at<const float>(delta, row) + at);
    return make_float4(v.x + d.x, v.y + d.y, v.z + d.z, v.w + d.w);
  }

  template <int threads, class Each>
  __device__ NormScale scale_of(int, const Each& each) const {
    const RmsFactor of = {k, eps};
    NormScale scale = {1.0f, 1.0, false, weight};
    scale.small = of(row_squares_of<float, threads>(each), scale.factor);
    if (!scale.small) of(row_squares_of<double, threads>(each), scale.wide);
    if (delta.data)
      each([&](const float4& v, int at) {
        *reinterpret_cast<float4*>(sum + int64_t{blockIdx.x} * k + at) = v;
      });
    return scale;
  }

 private:
  // The same in all threads.
  template <typename T, int threads, class Each>
  static __device__ T row_squares_of(const Each& each) {
    __shared__ T sums[threads / kWarp];
    T own = 0, all = 0;
    each([&](const float4& v, int) { own += squares_of_four<T>(v); });
    for (int step = kWarp / 2; step > 0; step /= 2) own += __shfl_xor_sync(kAllLanes, own, step);
    if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = own;
    __syncthreads();
    for (const T part : sums) all += part;
    return all;
  }
};

}  // namespace

int riverrun::supports_halves(const PromptHalves& x, char* why, size_t size) {
  if (x.k % kHalvesBlock != 0 || x.k > INT32_MAX)
    return refuse(why, size, "needs a multiple of 256 columns");
  if (x.kind == PromptHalves::kNorm) {
    for (const rr_tensor* t : {x.first, x.second})
      if (t && (t->dtype != RR_F32 || !dense_tail(*t, 1)))
        return refuse(why, size, "x and delta need dense f32 rows");
    return 1;
  }
  if (!in_heads(*x.first) || !in_heads(*x.second))
    return refuse(why, size, "inputs need to be f32 heads of a multiple of 8 values");
  const int64_t width = x.first->shape[x.first->rank - 1];
  if (x.kind == PromptHalves::kGatedNorm && (width > 128 || (width & (width - 1)) != 0))
    return refuse(why, size, "heads need to have 8, 16, .. or 128 values");
  return 1;
}

void riverrun::write_halves(const rr_exec* exec, const PromptHalves& x) {
  auto* slabs = static_cast<uint8_t*>(exec->workspace);
  const PromptSlabs place = prompt_slabs(x.n, x.k);
  const auto launch = [&](const auto& source) {
    launch_halving(exec, source, x.n, static_cast<int>(x.k), slabs, place.slab,
                   reinterpret_cast<float*>(slabs + place.bytes), {nullptr, 1});
  };
  const float* weight = x.weight ? data<const float>(*x.weight) : nullptr;
  switch (x.kind) {
    case PromptHalves::kGlu:
      return launch(GluSource{static_cast<Act>(x.act), head_rows(*x.first), head_rows(*x.second)});
    case PromptHalves::kGatedNorm:
      return launch(GatedNormSource{head_rows(*x.first), head_rows(*x.second), weight, x.eps});
    case PromptHalves::kNorm:
      return launch(NormSource{rows_of(*x.first), x.second ? rows_of(*x.second) : Rows{}, x.sum,
                               weight, x.eps, static_cast<int>(x.k)});
  }
}
