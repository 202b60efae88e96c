// delta_mix: gated_delta_net whose operands get their norms and functions on the way from memory,
// with the arithmetic of the ops that op delta_mix is made of: once a block, in shared memory.
#include "activation.cuh"
#include "gated_delta_net.cuh"
#include "row_length.cuh"

namespace {

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  if (!supports_mix_operands(in, why, size)) return 0;
  return supports_operands(in, in + kMixOperands, why, size);
}

// rule: with alpha as g. at_once: all blocks run at the same time.
struct Mix {
  Task rule;
  const float *dt, *a;
  EuclideanLength length;
  bool at_once;
};

template <typename S>
using Steps = Stage<S, false>;

// A step's decay and beta as they lie in memory, and what those of a token are made with.
struct Gates {
  float decay, beta, dt, a;
};

// Starts to bring steps first .. first + n - 1, a group of four values a thread; the last threads
// bring gates, which they put into the stage when they are there.
template <typename S>
__device__ inline Gates fetch_steps(const Mix& mix, const Work& work, int first, int n,
                                    Steps<S>& stage) {
  const Task& task = mix.rule;
  constexpr int kOfKeys = S::kKeys / 4, kAll = 2 * kOfKeys + (S::kBlockRows + 3) / 4;
  for (int item = threadIdx.x; item < kAll; item += S::kThreads) {
    const bool key = item < kOfKeys, query = !key && item < 2 * kOfKeys;
    const int at = 4 * (item - (key ? 0 : query ? kOfKeys : 2 * kOfKeys));
    const int left = min(4, (key || query ? task.size : task.size - work.row) - at);
    for (int i = 0; left > 0 && i < n; ++i) {
      const Source from = source_of(task, work, first + i, false);
      if (query && !from.q) continue;
      float* to = key ? stage.k[i] : query ? stage.q[i] : stage.v[i];
      const float* values = key ? from.k : query ? from.q : from.v;
      copy_quad(to + at, values + at, left, from.whole);
    }
  }
  async_copy_commit();
  const int step = S::kThreads - 1 - static_cast<int>(threadIdx.x);
  if (step >= n) return {};
  const Source from = source_of(task, work, first + step, false);
  return {*from.decay, from.beta ? *from.beta : 0.0f, mix.dt[work.head], mix.a[work.head]};
}

template <typename S>
__device__ inline void await_steps(const Work& work, int first, int n, const Gates& gates,
                                   Steps<S>& stage) {
  const int step = S::kThreads - 1 - static_cast<int>(threadIdx.x);
  async_copy_wait<0>();
  if (step < n) {
    const bool token = first + step >= work.entries;
    stage.decay[step] = token ? expf(softplus(gates.decay + gates.dt) * gates.a) : gates.decay;
    stage.beta[step] = sigmoid(gates.beta);
  }
  __syncthreads();
}

// Divides the queries and keys of staged tokens by their lengths, a warp a row.
template <typename S>
__device__ inline void normalise(const Mix& mix, int entries, int n, Steps<S>& stage) {
  for (int i = 2 * entries + threadIdx.x / kWarp; i < 2 * n; i += S::kThreads / kWarp) {
    float* row = i % 2 ? stage.q[i / 2] : stage.k[i / 2];
    divide_safely<kWarp>(LengthRow{row, nullptr, row, mix.rule.size}, mix.length);
  }
  __syncthreads();
}

template <typename S>
__device__ inline void run_steps(const Mix& mix, const Work& work, Steps<S>* stages) {
  const Task& task = mix.rule;
  int n = min(S::kSteps, work.steps);
  Gates gates = fetch_steps<S>(mix, work, 0, n, stages[0]);
  StateRows<S> rows = load_rows<S>(task, work);
  for (int first = 0, turn = 0; first < work.steps; first += S::kSteps, turn ^= 1) {
    Steps<S>& stage = stages[turn];
    const int now = n, entries = max(0, min(now, work.entries - first));
    await_steps<S>(work, first, now, gates, stage);
    n = min(S::kSteps, work.steps - first - S::kSteps);
    if (n > 0) gates = fetch_steps<S>(mix, work, first + S::kSteps, n, stages[turn ^ 1]);
    normalise<S>(mix, entries, now, stage);
    log_operands(task, work, first, stage);
    run_entries<S, false>(task, work, first, 0, entries, stage, rows);
    if (entries < now) run_tokens<S, false>(task, work, first, entries, now, stage, rows);
  }
  float none[S::kRows] = {};
  sum_rows<S>(none, rows.out);
  if (rows.to) store_values<S>(rows, rows.to, rows.out, task.scale);
}

// blockIdx: slice of the value rows, head, sequence.
template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) mix_pass(Mix mix) {
  const Task& task = mix.rule;
  if (mix.at_once) release_all();
  const bool fits = begin_entering(task.all);
  const int head = blockIdx.y, row = blockIdx.x * S::kBlockRows;
  const Work work = fits ? work_of(task, blockIdx.z, head, row) : Work{};
  const bool idle = work.pass.idle();
  if (!idle && task.all.early)
    fetch_ahead(state_row(task, work, task.all.kept.source(work.b), row),
                int64_t{4} * task.size * min(S::kBlockRows, task.size - row));
  finish_entering(task.all);
  if (!fits) return;
  if (task.all.batch.tokens() < task.all.batch.rows) clear_padding(task);
  if (idle) return;
  auto* stages = reinterpret_cast<Steps<S>*>(dynamic_shared());
  if (task.size < S::kKeys || task.size % S::kBlockRows != 0) {
    clear(stages[0]);
    clear(stages[1]);
    __syncthreads();
  }
  run_steps<S>(mix, work, stages);
}

template <typename S>
void launch(const rr_exec* exec, Mix mix) {
  const Task& task = mix.rule;
  const int64_t slices = blocks_for(task.size, S::kBlockRows);
  const int64_t blocks = slices * task.heads * task.all.batch.count;
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(task.heads),
                  static_cast<unsigned>(task.all.batch.count));
  mix.at_once = blocks <= int64_t{S::kBlocks} * cuda(exec).multiprocessors;
  RR_LAUNCH(exec, mix_pass<S>, grid, S::kThreads, (kStages * sizeof(Steps<S>)), mix);
}

// Shapes for one size give the same bits: rows enough to fill the device share a thread's operands.
void launch_128(const rr_exec* exec, const Mix& mix) {
  using One = Shape<8, 4, 1>;
  const Task& task = mix.rule;
  const int64_t heads = int64_t{task.all.batch.count} * task.heads;
  if (heads * blocks_for(task.size, One::kBlockRows) <= One::kBlocks * cuda(exec).multiprocessors)
    launch<One>(exec, mix);
  else
    launch<Shape<8, 4, 2>>(exec, mix);
}

void run(const rr_node* node, const rr_exec* exec) {
  const EuclideanLength length = {true, attr_float(node, "eps", 0.0)};
  const Mix mix = {read_task(node, exec, kMixOperands), data<const float>(node->inputs[5]),
                   data<const float>(node->inputs[6]), length, false};
  const int size = mix.rule.size;
  if (size <= 32)
    launch<Shape<8, 1, 1>>(exec, mix);
  else if (size <= 64)
    launch<Shape<8, 2, 1>>(exec, mix);
  else if (size <= 128)
    launch_128(exec, mix);
  else if (size <= 256)
    launch<Shape<16, 4, 1>>(exec, mix);
  else
    launch<Shape<32, 8, 1>>(exec, mix);
}

}  // namespace

RR_CUDA_KERNEL(delta_mix, RR_ROW_EXACT, "delta_mix", "cuda", "", 0, supports, nullptr, run)
