// write_rows: a block of threads for a piece of each row. Rows whose index comes again later are
// left out, so that of equal indices the last one wins.
#include "attention_pool.cuh"
#include "encode.cuh"
#include "entering.cuh"
#include "ops/write_rows.hpp"

namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;

struct Task {
  View rows;
  Entering to;
  char* state;
  int64_t row_bytes, inner, last, pieces;  // a row is `pieces` runs of `last` elements
  bool whole;                              // without gaps between runs
  Check fit;
};

__device__ const float* element(const Task& task, int64_t i, int64_t e) {
  if (task.whole) return reinterpret_cast<const float*>(view_row(task.rows, i * task.pieces)) + e;
  const int64_t piece = e / task.last;
  return reinterpret_cast<const float*>(view_row(task.rows, i * task.pieces + piece)) +
         (e - piece * task.last);
}

template <uint32_t dtype>
__global__ void write_plain(Task task) {
  enter_grid();
  const int64_t i = blockIdx.x;
  if (!enters(task.to, i)) return;
  char* to = task.state + task.to.idx[i] * task.row_bytes;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * (kThreads * kPerThread);
  for (int u = 0; u < kPerThread; ++u) {
    const int64_t e = begin + u * kThreads + threadIdx.x;
    if (e < task.inner) store<dtype>(to, e, *element(task, i, e));
  }
}

// A warp for each block of 32.
template <uint32_t dtype>
__global__ void write_blocks(Task task) {
  enter_grid();
  const int64_t i = blockIdx.x;
  if (!enters(task.to, i)) return;
  uint8_t* to = reinterpret_cast<uint8_t*>(task.state + task.to.idx[i] * task.row_bytes);
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * (kThreads * kPerThread);
  for (int u = 0; u < kPerThread; ++u) {
    const int64_t first = begin + u * kThreads + threadIdx.x / kWarp * kWarp;
    if (first >= task.inner) return;
    const float x = *element(task, i, first + threadIdx.x % kWarp);
    encode<dtype>(x, extreme_of<dtype>(x), to + first / 32 * Block<dtype>::kBytes);
  }
}

template <uint32_t dtype>
__global__ void judge(Task task) {
  enter_grid();
  __shared__ int stop;
  const int64_t i = blockIdx.x;
  if (threadIdx.x == 0) stop = 0;
  __syncthreads();
  if (task.to.idx[i] >= 0)
    for (int64_t e = threadIdx.x; e < task.inner; e += kThreads)
      if (!encodes<dtype>(fabsf(*element(task, i, e)))) atomicMax(&stop, 1);
  __syncthreads();
  if (threadIdx.x != 0) return;
  task.to.unfit[i] = stop;
  if (stop != 0) report(task.fit, i, task.to.n);
}

Task read_task(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &state = node->inputs[0], &rows = node->inputs[1];
  const int64_t n = rows.shape[0], last = rows.shape[rows.rank - 1];
  const int64_t inner = n > 0 ? numel(rows) / n : 0;
  const bool blocks = state.dtype == RR_Q8_0 || state.dtype == RR_Q4_0;
  return {view(rows),
          entering(exec, node->inputs[2], state.shape[0],
                   blocks ? static_cast<int*>(exec->workspace) : nullptr),
          static_cast<char*>(state.data),
          pool_bytes(state.dtype, inner),
          inner,
          last,
          last > 0 ? inner / last : 0,
          dense_tail(rows, rows.rank - 1),
          check(exec,
                "'rows' should be finite and small enough for a block's f16 scale, row %lld of "
                "%lld is not")};
}

template <uint32_t dtype>
void run_blocks(const Task& task, const dim3& grid, const rr_exec* exec) {
  RR_LAUNCH(exec, judge<dtype>, static_cast<int>(task.to.n), kThreads, 0, task);
  RR_LAUNCH(exec, write_blocks<dtype>, grid, kThreads, 0, task);
}

void run(const rr_node* node, const rr_exec* exec) {
  const Task task = read_task(node, exec);
  if (task.to.n == 0 || task.inner == 0) return;
  const dim3 grid(static_cast<unsigned>(task.to.n),
                  static_cast<unsigned>(blocks_for(task.inner, kThreads * kPerThread)));
  switch (node->inputs[0].dtype) {
    case RR_F32:
      RR_LAUNCH(exec, write_plain<RR_F32>, grid, kThreads, 0, task);
      break;
    case RR_F16:
      RR_LAUNCH(exec, write_plain<RR_F16>, grid, kThreads, 0, task);
      break;
    case RR_BF16:
      RR_LAUNCH(exec, write_plain<RR_BF16>, grid, kThreads, 0, task);
      break;
    case RR_Q8_0:
      run_blocks<RR_Q8_0>(task, grid, exec);
      break;
    default:
      run_blocks<RR_Q4_0>(task, grid, exec);
  }
}

size_t workspace(const rr_node* node, int32_t) {
  return static_cast<size_t>(node->inputs[1].shape[0]) * sizeof(int);
}

}  // namespace

RR_CUDA_KERNEL(kernel, RR_ROW_EXACT, "write_rows", "cuda", "", 0, supports, workspace, run)
