// mul_mat for few rows of x on tensor cores, row-exact; and what offers such products to others.
#include "mul_mat_step.cuh"

namespace {

constexpr int64_t kMostStepAxis = 1 << 24;  // costs are ints
constexpr int kStepForm = 9;                // of is_prepared
constexpr int64_t kMostStepRows = 64;       // of x, where rows need not be exact

inline int current_capability() {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major;
}

template <uint32_t... dtypes>
inline bool step_type(uint32_t dtype) {
  return (... || (dtype == dtypes));
}

}  // namespace

bool riverrun::step_takes(const rr_tensor& w, char* why, size_t size) {
  if (w.layout != RR_LAYOUT_ROWS8 || !step_type<RR_STEP_TYPES>(w.dtype))
    return refuse(why, size, "another type of weight, or one that is not packed by eight rows");
  if (w.rank != 2) return refuse(why, size, "w needs to be a matrix");
  const int64_t rows = w.shape[0], k = w.shape[1];
  if (k == 0 || k % kStepBlock != 0) return refuse(why, size, "needs a multiple of 256 columns");
  if (k > kMostStepAxis || rows > kMostStepAxis) return refuse(why, size, "too large");
  if (current_capability() < 9) return refuse(why, size, "needs compute capability 9.0");
  return true;
}

void riverrun::launch_step_products(const rr_exec* exec, const StepProduct* products, int count,
                                    const StepInput& x) {
  const int64_t n = x.n;
  StepJob job = {};
  job.constant = true;
  job.x = x.x;
  if (x.normed) job.squares = reinterpret_cast<const double*>(x.x + step_x_bytes(n, x.k));
  job.eps = x.eps;
  job.n = static_cast<int>(n);
  job.blocks = static_cast<int>(x.k / kStepBlock);
  job.ending = next_ending(exec, products, count, x);
  for (int i = 0; i < count; ++i) {
    const rr_tensor& from = *products[i].w;
    if (from.shape[0] == 0) continue;
    if (reinterpret_cast<uintptr_t>(from.data) % kCopiesApart != 0)
      return exec->fail(exec, "a weight does not begin at a multiple of 128 bytes");
    StepWeight& w = job.weights[job.count++];
    w.data = data<const unsigned char>(from);
    w.y = products[i].y;
    w.y_row = products[i].y_row;
    w.rows = static_cast<int>(from.shape[0]);
    w.dtype = from.dtype;
    job.constant = job.constant && from.constant != 0;
  }
  if (job.count == 0 || n == 0) return;
  if (n <= 4) return launch_step_4(exec, job);
  if (n <= 8) return launch_step_8(exec, job);
  if (n <= 16) return launch_step_16(exec, job);
  launch_step_32(exec, job);
}

namespace {

// Values from one row to the next; -1 where rows are not evenly spaced.
inline int64_t step_row_values(const rr_tensor& t) {
  const Rows rows = rows_of(t);
  return rows.axes > 1 ? -1 : rows.pitches[0] / 4;
}

size_t workspace_step(const rr_node* node, int32_t) {
  const rr_tensor& x = node->inputs[0];
  return static_cast<size_t>(step_x_bytes(n_rows(x), x.shape[x.rank - 1]));
}

void run_step(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  if (numel(y) == 0) return;
  const int64_t n = n_rows(x), k = w.shape[1];
  auto* prepared = static_cast<unsigned char*>(exec->workspace);
  const StepRows rows = {prepared, n, k / kStepBlock};
  if (!is_prepared(exec, x, kStepForm))
    RR_LAUNCH(exec, prepare_step_x, block_grid(rows), kRowOfThreads, 0, rows_of(x), rows);
  const riverrun::StepProduct product = {&w, data<float>(y), step_row_values(y)};
  riverrun::launch_step_products(exec, &product, 1, {prepared, n, k, false, 0.0});
}

int supports_step(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  if (!riverrun::step_takes(w, why, size)) return 0;
  if (x.dtype != RR_F32 || !dense_tail(x, 1) || !dense_tail(y, 1))
    return refuse(why, size, "x and y need dense f32 rows");
  if (step_row_values(y) < 0) return refuse(why, size, "y needs evenly spaced rows");
  if (step_x_bytes(n_rows(x), w.shape[1]) > kMostStepX) return refuse(why, size, "too large");
  return 1;
}

int supports_few(const rr_node* node, char* why, size_t size) {
  if (n_rows(node->inputs[0]) > kMostStepRows)
    return refuse(why, size, "too many rows for products of a step");
  return supports_step(node, why, size);
}

}  // namespace

RR_CUDA_KERNEL(step, RR_ROW_EXACT, "mul_mat", "step", "", 5, supports_step, workspace_step,
               run_step)
RR_CUDA_KERNEL(step_few, RR_ROW_EXACT, "mul_mat", "step", "", 15, supports_few, workspace_step,
               run_step)
