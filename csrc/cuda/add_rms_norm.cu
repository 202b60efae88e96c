// add_rms_norm: a block a row, which stays in registers between the sum and what it is divided by.
#include "row_length.cuh"

namespace {

struct AddNorm {
  Rows x, delta, y, sum;
  const float* weight;
  bool constant;  // no kernel writes weight: it can be loaded before await_grid()
  int quads;      // of a row
  RootMeanSquare length;
};

// Values of a thread: fours number threadIdx.x, threadIdx.x + threads, ..
template <int threads, int most>
struct Fours {
  float4 of[most];

  template <class Each>
  __device__ static void each(int quads, Each do_one) {
#pragma unroll
    for (int i = 0; i < most; ++i)
      if (const int at = static_cast<int>(threadIdx.x) + i * threads; at < quads) do_one(i, at);
  }

  __device__ void load(const float* row, int quads) {
    each(quads, [&](int i, int at) { of[i] = reinterpret_cast<const float4*>(row)[at]; });
  }
};

// The row in arithmetic of type T. False, and nothing is written, where T's range is too small.
template <int threads, int most, typename T>
__device__ inline bool divide_fours(const AddNorm& in, const Fours<threads, most>& v,
                                    const Fours<threads, most>& w, float* y) {
  T sum = 0;
  v.each(in.quads, [&](int i, int) {
    const T a = v.of[i].x, b = v.of[i].y, c = v.of[i].z, d = v.of[i].w;
    sum += (a * a + b * b) + (c * c + d * d);
  });
  sum = group_sum<threads>(sum);
  const T divisor = in.length(sum);
  if (!in_range(sum, divisor)) return false;
  const T factor = T(1) / divisor;
  v.each(in.quads, [&](int i, int at) {
    const float4 &from = v.of[i], &by = w.of[i];
    reinterpret_cast<float4*>(y)[at] = make_float4(
        static_cast<float>(from.x * factor) * by.x, static_cast<float>(from.y * factor) * by.y,
        static_cast<float>(from.z * factor) * by.z, static_cast<float>(from.w * factor) * by.w);
  });
  return true;
}

template <int threads, int most>
__global__ void __launch_bounds__(threads) add_and_divide(AddNorm in) {
  Fours<threads, most> v, w, delta;
  release_grid();
  if (in.constant) w.load(in.weight, in.quads);
  await_grid();
  if (!in.constant) w.load(in.weight, in.quads);
  const int64_t row = blockIdx.x;
  v.load(row_at(in.x, row), in.quads);
  delta.load(row_at(in.delta, row), in.quads);
  auto* sum = reinterpret_cast<float4*>(row_at(in.sum, row));
  v.each(in.quads, [&](int i, int at) {
    v.of[i].x += delta.of[i].x;
    v.of[i].y += delta.of[i].y;
    v.of[i].z += delta.of[i].z;
    v.of[i].w += delta.of[i].w;
    sum[at] = v.of[i];
  });
  float* y = row_at(in.y, row);
  if (!divide_fours<threads, most, float>(in, v, w, y))
    divide_fours<threads, most, double>(in, v, w, y);
}

constexpr int64_t kMostWide = 8192;

// Whether rows are dense and begin at multiples of 16 bytes.
bool in_fours(const rr_tensor& t) {
  if (t.dtype != RR_F32 || !dense_tail(t, 1) || t.shape[t.rank - 1] % 4 != 0) return false;
  for (int i = 0; i + 1 < t.rank; ++i)
    if (t.strides[i] % 16 != 0) return false;
  return true;
}

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &weight = node->inputs[2];
  for (const rr_tensor* t : {&x, &node->inputs[1], &node->outputs[0], &node->outputs[1]})
    if (!in_fours(*t)) return refuse(why, size, "rows need to be f32 in fours");
  if (!dense(weight)) return refuse(why, size, "weight needs to be dense");
  if (weight.shape[0] > kMostWide) return refuse(why, size, "rows have more than 8192 values");
  return 1;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &weight = node->inputs[2];
  if (numel(x) == 0) return;
  const int64_t width = weight.shape[0];
  const AddNorm in = {rows_of(x),
                      rows_of(node->inputs[1]),
                      rows_of(node->outputs[0]),
                      rows_of(node->outputs[1]),
                      data<const float>(weight),
                      weight.constant != 0,
                      static_cast<int>(width / 4),
                      {width, attr_float(node, "eps", 0.0)}};
  const dim3 grid(static_cast<unsigned>(n_rows(x)));
  if (width <= 1024)
    RR_LAUNCH(exec, (add_and_divide<128, 2>), grid, 128, 0, in);
  else if (width <= 4096)
    RR_LAUNCH(exec, (add_and_divide<512, 2>), grid, 512, 0, in);
  else
    RR_LAUNCH(exec, (add_and_divide<512, 4>), grid, 512, 0, in);
}

}  // namespace

RR_CUDA_KERNEL(add_rms_norm, RR_ROW_EXACT, "add_rms_norm", "cuda", "", 0, supports, nullptr, run)
