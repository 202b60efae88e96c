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

// The same of what no kernel writes.
__device__ inline float4 four_constants(const float* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0)
    return __ldg(reinterpret_cast<const float4*>(from));
  return make_float4(__ldg(from), __ldg(from + 1), __ldg(from + 2), __ldg(from + 3));
}

__device__ inline float4 times_four(const float4& v, float factor, const float4& w) {
  return make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z,
                     v.w * factor * w.w);
}

template <typename T>
__device__ inline T squares_of_four(const float4& v) {
  const T x = v.x, y = v.y, z = v.z, w = v.w;
  return x * x + y * y + z * z + w * w;
}

// As a float of any sum of squares.
__device__ inline float factor_in_float(double sum, const RmsFactor& of) {
  double factor;
  of(sum, factor);
  return static_cast<float>(factor < 3e38 ? factor : 3e38);
}

// [N, K], or [N, heads, a power of two]: where value `at` of a row lies. Code for a lane's values
// is written out ten times, and a division each would be most of it.
struct ShiftedRows {
  const char* data;
  int64_t row_pitch, head_pitch;  // bytes
  int shift;

  __device__ const float* at(int row, int at) const {
    const int head = at >> shift, own = at & ((1 << shift) - 1);
    return reinterpret_cast<const float*>(data + row * row_pitch + head * head_pitch) + own;
  }
};

// The power of two that the heads of t are wide, or -1; 30 for rows without heads.
inline int shift_of(const rr_tensor& t) {
  if (t.rank == 2) return 30;
  for (int shift = 3; shift < 30; ++shift)
    if (t.shape[2] == int64_t{1} << shift) return shift;
  return -1;
}

ShiftedRows shifted_rows(const rr_tensor& t) {
  return {static_cast<const char*>(t.data), t.strides[0], t.rank > 2 ? t.strides[1] : 0,
          shift_of(t)};
}

template <Act act>
struct GluSource {
  ShiftedRows gate, up;

  __device__ void fetch(int row, int at, Fetched& to) const {
    to = {four_from(gate.at(row, at)), four_from(up.at(row, at))};
  }

  __device__ float4 make(int, const Fetched& from) const {
    const float4 &g = from.first, &u = from.second;
    return make_float4(gated(act, g.x, u.x), gated(act, g.y, u.y), gated(act, g.z, u.z),
                       gated(act, g.w, u.w));
  }

  template <int threads, class Each>
  __device__ Unscaled scale_of(int, const Each&) const {
    return {};
  }
};

template <typename T>
__device__ inline T head_squares(const float4& v, int width) {
  T sum = squares_of_four<T>(v);
  for (int step = width / 8; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}

__noinline__ __device__ float head_factor_in_double(float4 v, int width, double eps) {
  return factor_in_float(head_squares<double>(v, width), {width, eps});
}

// Heads of up to 128 values.
struct GatedNormSource {
  ShiftedRows x, gate;
  const float* weight;
  double eps;

  __device__ void fetch(int row, int at, Fetched& to) const {
    to = {four_from(x.at(row, at)), four_from(gate.at(row, at))};
  }

  __device__ float4 make(int at, const Fetched& from) const {
    const int width = 1 << x.shift;
    const float4 &v = from.first, &g = from.second;
    const RmsFactor of = {width, eps};
    float factor;
    const bool small = of(head_squares<float>(v, width), factor);
    if (!__all_sync(kAllLanes, small)) {
      const float wide = head_factor_in_double(v, width, eps);
      if (!small) factor = wide;
    }
    const float4 normed = times_four(v, factor, four_constants(weight + (at & (width - 1))));
    return make_float4(silu(g.x) * normed.x, silu(g.y) * normed.y, silu(g.z) * normed.z,
                       silu(g.w) * normed.w);
  }

  template <int threads, class Each>
  __device__ Unscaled scale_of(int, const Each&) const {
    return {};
  }
};

struct NormScale {
  float factor;
  const float* weight;

  __device__ void operator()(float4& v, int at) const {
    v = times_four(v, factor, four_constants(weight + at));
  }
};

// x, or x + delta, which it leaves in `sum` when all of the block's are there: stores between loads
// would keep these apart.
struct NormSource {
  ShiftedRows x, delta;  // delta.data: null for none
  float* sum;
  const float* weight;
  double eps;

  __device__ void fetch(int row, int at, Fetched& to) const {
    to.first = four_from(x.at(row, at));
    if (delta.data) to.second = four_from(delta.at(row, at));
  }

  __device__ float4 make(int, const Fetched& from) const {
    const float4 &v = from.first, &d = from.second;
    return delta.data ? make_float4(v.x + d.x, v.y + d.y, v.z + d.z, v.w + d.w) : v;
  }

  template <int threads, class Each>
  __device__ NormScale scale_of(int k, const Each& each) const {
    const RmsFactor of = {k, eps};
    NormScale scale = {1.0f, weight};
    if (!of(row_squares_of<float, threads>(each), scale.factor))
      scale.factor = factor_in_float(row_squares_of<double, threads>(each), of);
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
  for (const rr_tensor* t : {x.first, x.second}) {
    if (!t) continue;
    if (t->dtype != RR_F32 || t->rank < 2 || t->rank > 3 || !dense_tail(*t, 1) || shift_of(*t) < 0)
      return refuse(why, size, "inputs need to be f32 rows, or heads of 8, 16, .. values");
  }
  if (x.kind == PromptHalves::kGatedNorm && (shift_of(*x.first) > 7 || shift_of(*x.second) > 7))
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
  const ShiftedRows first = shifted_rows(*x.first);
  const ShiftedRows second = x.second ? shifted_rows(*x.second) : ShiftedRows{};
  switch (x.kind) {
    case PromptHalves::kGlu:
      if (x.act == static_cast<int>(Act::kSilu))
        return launch(GluSource<Act::kSilu>{first, second});
      if (x.act == static_cast<int>(Act::kGelu))
        return launch(GluSource<Act::kGelu>{first, second});
      return launch(GluSource<Act::kSigmoid>{first, second});
    case PromptHalves::kGatedNorm:
      return launch(GatedNormSource{first, second, weight, x.eps});
    case PromptHalves::kNorm:
      return launch(NormSource{first, second, x.sum, weight, x.eps});
  }
}
