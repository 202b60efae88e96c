// sum, mean and cumsum along an axis, in f64 and rounded once: f32 sums of huge numbers that cancel
// would be wrong, and memory is the limit all the same.
#include "ops/reduce.hpp"
#include "rows.cuh"

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kShort = 1024;  // sums of up to so many elements take a warp, longer ones a block

// A tensor without the axis that is summed over.
struct Slices {
  Rows starts;          // where the sums start
  int64_t n, step;      // elements of a sum, bytes from one to the next
  int64_t width, rows;  // sums that lie side by side, and how many times that
};

int axis_of(const rr_node* node) {
  const int64_t given = attr_int(node, "axis", 0);
  return static_cast<int>(given < 0 ? given + node->inputs[0].rank : given);
}

Slices slices(const rr_tensor& t, int axis) {
  rr_tensor starts = t;
  starts.shape[axis] = 1;
  return {rows_of(starts), t.shape[axis], t.strides[axis], starts.shape[t.rank - 1],
          n_rows(starts)};
}

__device__ inline const float* column_of(const Slices& s, int64_t row, int64_t column) {
  return row_at<const float>(s.starts, row) + column;
}

__device__ inline float element(const float* start, const Slices& s, int64_t i) {
  return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(start) + i * s.step);
}

__device__ inline double sum_of_lanes(double x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// Sums along the last axis, `warps` warps each.
template <int warps>
__global__ void sum_along(Slices s, float* y, double divisor) {
  enter_grid();
  __shared__ double parts[kWarps];
  constexpr int each = warps * kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kWarps / warps) + threadIdx.x / each;
  double sum = 0.0;
  if (row < s.rows) {
    const float* x = column_of(s, row, 0);
    for (int64_t i = threadIdx.x % each; i < s.n; i += each) sum += static_cast<double>(x[i]);
  }
  sum = sum_of_lanes(sum);
  if (warps > 1) {
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = sum;
    __syncthreads();
    sum = 0.0;
    for (int i = 0; i < kWarps; ++i) sum += parts[i];
  }
  if (threadIdx.x % each == 0 && row < s.rows) y[row] = static_cast<float>(sum / divisor);
}

// Sums along another axis: a lane's column, a warp's share of its elements.
__global__ void sum_down(Slices s, float* y, double divisor) {
  enter_grid();
  __shared__ double parts[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t across = (s.width + kWarp - 1) / kWarp;
  const int64_t row = blockIdx.x / across, column = blockIdx.x % across * kWarp + lane;
  double sum = 0.0;
  if (column < s.width) {
    const float* x = column_of(s, row, column);
    for (int64_t i = warp; i < s.n; i += kWarps) sum += static_cast<double>(element(x, s, i));
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= s.width) return;
  for (int i = 1; i < kWarps; ++i) sum += parts[i][lane];
  y[row * s.width + column] = static_cast<float>(sum / divisor);
}

void reduce(const rr_node* node, const rr_exec* exec, bool mean) {
  const int axis = axis_of(node);
  const Slices s = slices(node->inputs[0], axis);
  float* y = data<float>(node->outputs[0]);
  const double divisor = mean ? static_cast<double>(s.n) : 1.0;
  if (s.rows * s.width == 0) return;
  if (axis + 1 < node->inputs[0].rank) {
    const dim3 grid(static_cast<unsigned>(s.rows * blocks_for(s.width, kWarp)));
    RR_LAUNCH(exec, sum_down, grid, kThreads, 0, s, y, divisor);
  } else if (s.n <= kShort) {
    const dim3 grid(static_cast<unsigned>(blocks_for(s.rows, kWarps)));
    RR_LAUNCH(exec, sum_along<1>, grid, kThreads, 0, s, y, divisor);
  } else {
    const dim3 grid(static_cast<unsigned>(s.rows));
    RR_LAUNCH(exec, sum_along<kWarps>, grid, kThreads, 0, s, y, divisor);
  }
}

void run_sum(const rr_node* node, const rr_exec* exec) {
  reduce(node, exec, false);
}

void run_mean(const rr_node* node, const rr_exec* exec) {
  reduce(node, exec, true);
}

// The sum of this lane's value and those of the lanes before it.
__device__ inline double sum_up_to_lane(double x) {
  const int lane = threadIdx.x % kWarp;
  for (int step = 1; step < kWarp; step *= 2) {
    const double before = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x += before;
  }
  return x;
}

// Running sums along the last axis: a block's row, kThreads elements at a time.
__global__ void scan_along(Slices s, Rows ends) {
  enter_grid();
  __shared__ double parts[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float* x = column_of(s, blockIdx.x, 0);
  float* y = row_at(ends, blockIdx.x);
  double before = 0.0;
  for (int64_t first = 0; first < s.n; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const double sum = sum_up_to_lane(i < s.n ? static_cast<double>(x[i]) : 0.0);
    if (lane == kWarp - 1) parts[warp] = sum;
    __syncthreads();
    double own = before;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) own += parts[w];
      before += parts[w];
    }
    if (i < s.n) y[i] = static_cast<float>(own + sum);
    __syncthreads();
  }
}

// Running sums along another axis: a thread's column.
__global__ void scan_down(Slices s, Slices out) {
  enter_grid();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= s.rows * s.width) return;
  const int64_t row = at / s.width, column = at % s.width;
  const float* x = column_of(s, row, column);
  char* y = row_at<char>(out.starts, row) + column * 4;
  double sum = 0.0;
  for (int64_t i = 0; i < s.n; ++i) {
    sum += static_cast<double>(element(x, s, i));
    *reinterpret_cast<float*>(y + i * out.step) = static_cast<float>(sum);
  }
}

void run_cumsum(const rr_node* node, const rr_exec* exec) {
  const int axis = axis_of(node);
  const Slices s = slices(node->inputs[0], axis), out = slices(node->outputs[0], axis);
  if (s.rows * s.width * s.n == 0) return;
  if (axis + 1 == node->inputs[0].rank) {
    const dim3 grid(static_cast<unsigned>(s.rows));
    RR_LAUNCH(exec, scan_along, grid, kThreads, 0, s, out.starts);
  } else {
    const dim3 grid(static_cast<unsigned>(blocks_for(s.rows * s.width, kThreads)));
    RR_LAUNCH(exec, scan_down, grid, kThreads, 0, s, out);
  }
}

}  // namespace

RR_CUDA_KERNEL(sum, RR_ROW_EXACT, "sum", "cuda", "", 0, supports, nullptr, run_sum)
RR_CUDA_KERNEL(mean, RR_ROW_EXACT, "mean", "cuda", "", 0, supports, nullptr, run_mean)
RR_CUDA_KERNEL(cumsum, RR_ROW_EXACT, "cumsum", "cuda", "", 0, supports, nullptr, run_cumsum)
