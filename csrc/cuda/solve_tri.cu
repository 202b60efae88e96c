// solve_tri: a block solves up to 32 columns of one system. Lanes are columns, warps share the
// rows; as soon as an unknown is fixed, every warp takes it out of the rows that are still to come.

#include "kernel.cuh"
#include "ops/solve_tri.hpp"

namespace {

constexpr int kWarps = 8;
constexpr int64_t kSharedRows = 48 * 1024 / (kWarp * sizeof(float));

// A batch of systems; x may be b.
struct Systems {
  const float* a;  // [.., n, n]
  const float* b;  // [.., n, m]
  float* x;        // [.., n, m]
  int64_t n, m;
  int64_t tiles;  // of kWarp columns, to a system
  bool lower, unit;
};

// What is left of b stays in shared memory, for large systems in x. An unknown is what is left in
// its row over the diagonal: each warp divides for itself, which saves a meeting a row.
__global__ void __launch_bounds__(kWarps* kWarp) solve(Systems s, bool in_shared) {
  enter_grid();
  const int64_t matrix = blockIdx.x / s.tiles, tile = blockIdx.x % s.tiles * kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const bool active = tile + lane < s.m;
  const float* a = s.a + matrix * s.n * s.n;
  const int64_t at = matrix * s.n * s.m + tile + lane;
  float* left = in_shared ? reinterpret_cast<float*>(dynamic_shared()) + lane : s.x + at;
  const int64_t pitch = in_shared ? kWarp : s.m;
  for (int64_t r = warp; r < s.n; r += kWarps)
    if (active) left[r * pitch] = s.b[at + r * s.m];
  __syncthreads();
  for (int64_t step = 0; step + 1 < s.n; ++step) {
    const int64_t i = s.lower ? step : s.n - 1 - step;
    const float divisor = s.unit ? 1.0f : a[i * s.n + i];
    const float known = active ? left[i * pitch] / divisor : 0.0f;
    const int64_t begin = s.lower ? i + 1 : 0, end = s.lower ? s.n : i;
    const int64_t skipped = (warp - begin % kWarps + kWarps) % kWarps;
    for (int64_t r = begin + skipped; r < end; r += kWarps)
      if (active) left[r * pitch] = fmaf(-a[r * s.n + i], known, left[r * pitch]);
    __syncthreads();
  }
  for (int64_t r = warp; r < s.n; r += kWarps) {
    const float divisor = s.unit ? 1.0f : a[r * s.n + r];
    if (active) s.x[at + r * s.m] = left[r * pitch] / divisor;
  }
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &a = node->inputs[0], &b = node->inputs[1];
  if (numel(b) == 0) return;
  const int64_t n = b.shape[b.rank - 2], m = b.shape[b.rank - 1], tiles = blocks_for(m, kWarp);
  const bool in_shared = n <= kSharedRows;
  const size_t bytes = in_shared ? static_cast<size_t>(n) * kWarp * sizeof(float) : 0;
  const dim3 grid(static_cast<unsigned>(numel(b) / (n * m) * tiles));
  const Systems systems = {data<const float>(a),
                           data<const float>(b),
                           data<float>(node->outputs[0]),
                           n,
                           m,
                           tiles,
                           attr_int(node, "lower", 1) != 0,
                           attr_int(node, "unit", 0) != 0};
  RR_LAUNCH(exec, solve, grid, kWarps * kWarp, bytes, systems, in_shared);
}

}  // namespace

RR_CUDA_KERNEL(solve_tri, RR_ROW_EXACT, "solve_tri", "cuda", "", 0, supports, nullptr, run)
