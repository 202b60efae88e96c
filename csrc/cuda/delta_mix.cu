// delta_mix: gated_delta_net whose operands get their norms and functions on the way from memory,
// with the arithmetic of the ops that op delta_mix is made of. Lanes that share rows of the state
// hold a token's query and key in registers and form their lengths there, each group by itself, so
// that no thread waits for others.
#include "activation.cuh"
#include "gated_delta_net.cuh"
#include "row_length.cuh"

namespace {

constexpr int kMemory = 7;  // of the inputs, the first that is no operand of a token or a weight

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  for (int i = 3; i < 5; ++i)
    if (in[i].dtype != RR_F32 || in[i].rank != 2 || !dense_tail(in[i], 1))
      return refuse(why, size, "alpha and beta need dense f32 rows");
  for (int i = 5; i < kMemory; ++i)
    if (in[i].dtype != RR_F32 || in[i].layout != RR_LAYOUT_PLAIN || !dense(in[i]))
      return refuse(why, size, "dt and a need to be dense f32");
  return supports_operands(in, in + kMemory, why, size);
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

// A step's decay and beta as they lie in memory.
struct Gates {
  float decay, beta;
};

// Starts to bring steps first .. first + n - 1, a group of four values a thread; the last threads
// bring gates, which they put into the stage when they are there.
template <typename S>
__device__ inline Gates fetch_steps(const Task& task, const Work& work, int first, int n,
                                    Steps<S>& stage) {
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
  return {*from.decay, from.beta ? *from.beta : 0.0f};
}

template <typename S>
__device__ inline void await_steps(const Gates& gates, int n, Steps<S>& stage) {
  const int step = S::kThreads - 1 - static_cast<int>(threadIdx.x);
  async_copy_wait<0>();
  if (step < n) {
    stage.decay[step] = gates.decay;
    stage.beta[step] = gates.beta;
  }
  __syncthreads();
}

// The sum of squares over the lanes that share rows, in the order of divide_row's warp: its lane l
// adds the quads l, l + 32, .., and lanes 16, 8, .. apart are added.
template <typename S, typename T>
__device__ inline T sum_squares(const Part<S>& part) {
  constexpr int kLanes = S::kSpan * S::kQuads < kWarp ? S::kQuads : kWarp / S::kSpan;
  T sums[kLanes];
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c) {
    const T x = part.quad[c].x, y = part.quad[c].y, z = part.quad[c].z, w = part.quad[c].w;
    const T squares = (x * x + y * y) + (z * z + w * w);
    sums[c % kLanes] = c < kLanes ? squares : sums[c % kLanes] + squares;
  }
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
#pragma unroll
    for (int l = 0; l < apart; ++l) sums[l] += sums[l + apart];
  }
#pragma unroll
  for (int apart = S::kSpan / 2; apart > 0; apart /= 2)
    sums[0] += __shfl_xor_sync(kAllLanes, sums[0], apart);
  return sums[0];
}

// Divides by the length; false, and nothing is changed, where T's range is too small.
template <typename T, typename S>
__device__ inline bool divide_part(Part<S>& part, const EuclideanLength& length) {
  const T sum = sum_squares<S, T>(part), divisor = length(sum);
  const bool fits = in_range(sum, divisor);
  const T factor = T(1) / divisor;
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c) {
    float4& v = part.quad[c];
    v.x = fits ? static_cast<float>(v.x * factor) : v.x;
    v.y = fits ? static_cast<float>(v.y * factor) : v.y;
    v.z = fits ? static_cast<float>(v.z * factor) : v.z;
    v.w = fits ? static_cast<float>(v.w * factor) : v.w;
  }
  return fits;
}

// All lanes of a warp take part, for it is rows of one head that they share.
template <typename S>
__device__ inline void normalise(Part<S>& part, const EuclideanLength& length) {
  if (!divide_part<float>(part, length)) divide_part<double>(part, length);
}

// What every token of a head's is made with.
struct Head {
  float dt, a;
};

// Logs a token: d by the lanes that have it, its decay by one block of the head, and its key by one
// of the heads that read it.
template <typename S>
__device__ inline void log_step(const Task& task, const Work& work, const StateRows<S>& rows,
                                int token, const Part<S>& k, const float (&d)[S::kRows],
                                float decay) {
  float* entry = task.all.replay.place(task.all.kept, work.pass, work.b, token);
  store_values<S>(rows, entry + (task.key_heads + work.head) * task.size + rows.first, d, 1.0f);
  if (work.row > 0 || threadIdx.x >= S::kSpan) return;
  if (threadIdx.x == 0) entry[(task.key_heads + task.heads) * task.size + work.head] = decay;
  if (leads_keys(task, work.head))
    store_keys<S>(entry + work.key * task.size, k, rows.lane, task.size, task.whole_log);
}

// Staged step i, a token: number `token` of the sequence.
template <typename S>
__device__ inline void run_token(const Mix& mix, const Work& work, const Head& head, int token,
                                 int i, const Steps<S>& stage, StateRows<S>& rows) {
  const Task& task = mix.rule;
  const float* v = &stage.v[i][rows.first - work.row];
  Part<S> k = load_part<S>(stage.k[i], rows.lane), q = load_part<S>(stage.q[i], rows.lane);
  const float decay = expf(softplus(stage.decay[i] + head.dt) * head.a);
  const float beta = sigmoid(stage.beta[i]);
  normalise(k, mix.length);
  normalise(q, mix.length);
  float d[S::kRows];
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    decay_row<S>(rows.m[r], EvenDecay{decay});
    d[r] = dot_part(rows.m[r], k);
  }
  sum_rows<S>(d, rows.out);
  if (rows.to) store_values<S>(rows, rows.to, rows.out, task.scale);
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    d[r] = beta * (v[r] - d[r]);
    add_row<S>(rows.m[r], d[r], k);
    rows.out[r] = dot_part(rows.m[r], q);
  }
  rows.to = rows.next;
  rows.next += task.o.row;
  if (token >= work.pass.direct) log_step<S>(task, work, rows, token, k, d, decay);
}

template <typename S>
__device__ inline void run_steps(const Mix& mix, const Work& work, Steps<S>* stages) {
  const Task& task = mix.rule;
  const Head head = {mix.dt[work.head], mix.a[work.head]};
  int n = min(S::kSteps, work.steps);
  Gates gates = fetch_steps<S>(task, work, 0, n, stages[0]);
  StateRows<S> rows = load_rows<S>(task, work);
  for (int first = 0, turn = 0; first < work.steps; first += S::kSteps, turn ^= 1) {
    const Steps<S>& stage = stages[turn];
    const int now = n;
    await_steps<S>(gates, now, stages[turn]);
    n = min(S::kSteps, work.steps - first - S::kSteps);
    if (n > 0) gates = fetch_steps<S>(task, work, first + S::kSteps, n, stages[turn ^ 1]);
    for (int i = 0; i < now; ++i) {
      const int token = first + i - work.entries;
      if (token < 0) {
        run_entries<S, false>(task, work, first, i, i + 1, stage, rows);
        continue;
      }
      run_token<S>(mix, work, head, token, i, stage, rows);
      keep_state(task, work, rows, first + i);
    }
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
  const Mix mix = {read_task(node, exec, kMemory), data<const float>(node->inputs[5]),
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
