// delta_mix: gated_delta_net whose operands get their norms and functions on the way from memory,
// with the arithmetic of the ops that op delta_mix is made of. Lanes that share rows of the state
// hold a token's query and key in registers and form their lengths themselves, so that no thread
// waits for others; what a step needs is fetched while the one before it is computed.
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

// What a step needs: an entry's key, d as v, and decay, or a token's operands.
template <typename S>
struct Step {
  Part<S> k, q;
  float v[S::kRows];
  float decay, beta;
};

template <typename S>
__device__ inline Step<S> load_step(const Task& task, const Work& work, const StateRows<S>& rows,
                                    int step) {
  const Source from = source_of(task, work, step, false);
  Step<S> s = {};
  s.k = load_keys<S>(from.k, rows.lane, task.size, from.whole);
  if (from.q) s.q = load_keys<S>(from.q, rows.lane, task.size, from.whole);
#pragma unroll
  for (int r = 0; r < S::kRows; ++r)
    if (r < rows.left) s.v[r] = from.v[rows.first - work.row + r];
  s.decay = *from.decay;
  if (from.beta) s.beta = *from.beta;
  return s;
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

// A token's operands as the rule takes them.
template <typename S>
__device__ inline void finish_step(const Mix& mix, float dt, float a, Step<S>& s) {
  normalise(s.k, mix.length);
  normalise(s.q, mix.length);
  s.decay = expf(softplus(s.decay + dt) * a);
  s.beta = sigmoid(s.beta);
}

// What an entry or a token makes of the rows; a token's d is left in s.v.
template <typename S>
__device__ inline void run_step(const Task& task, bool token, StateRows<S>& rows, Step<S>& s) {
  const EvenDecay decay = {s.decay};
  float d[S::kRows];
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    decay_row<S>(rows.m[r], decay);
    d[r] = dot_part(rows.m[r], s.k);
  }
  if (token) {
    sum_rows<S>(d, rows.out);
    if (rows.to) store_values<S>(rows, rows.to, rows.out, task.scale);
    rows.to = rows.next;
    rows.next += task.o.row;
  }
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    if (token) s.v[r] = s.beta * (s.v[r] - d[r]);
    add_row<S>(rows.m[r], s.v[r], s.k);
    if (token) rows.out[r] = dot_part(rows.m[r], s.q);
  }
}

// Logs a token: d by the lanes that have it, its decay by one block of the head, and its key by one
// of the heads that read it.
template <typename S>
__device__ inline void log_step(const Task& task, const Work& work, const StateRows<S>& rows,
                                int token, const Step<S>& s) {
  float* entry = task.all.replay.place(task.all.kept, work.pass, work.b, token);
  float* d = entry + (task.key_heads + work.head) * task.size;
  store_values<S>(rows, d + rows.first, s.v, 1.0f);
  if (work.row > 0 || threadIdx.x >= S::kSpan) return;
  if (threadIdx.x == 0) entry[(task.key_heads + task.heads) * task.size + work.head] = s.decay;
  if (leads_keys(task, work.head))
    store_keys<S>(entry + work.key * task.size, s.k, rows.lane, task.size, task.whole_log);
}

template <typename S>
__device__ inline void run_steps(const Mix& mix, const Work& work, StateRows<S>& rows, Step<S> s,
                                 float dt, float a) {
  const Task& task = mix.rule;
  for (int i = 0; i < work.steps; ++i) {
    Step<S> next = {};
    if (i + 1 < work.steps) next = load_step<S>(task, work, rows, i + 1);
    const int token = i - work.entries;
    if (token >= 0) finish_step(mix, dt, a, s);
    run_step(task, token >= 0, rows, s);
    if (token >= work.pass.direct) log_step(task, work, rows, token, s);
    keep_state(task, work, rows, i);
    s = next;
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
  StateRows<S> rows = load_rows<S>(task, work);
  const Step<S> first = load_step<S>(task, work, rows, 0);
  run_steps<S>(mix, work, rows, first, mix.dt[head], mix.a[head]);
}

template <typename S>
void launch(const rr_exec* exec, Mix mix) {
  const Task& task = mix.rule;
  const int64_t slices = blocks_for(task.size, S::kBlockRows);
  const int64_t blocks = slices * task.heads * task.all.batch.count;
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(task.heads),
                  static_cast<unsigned>(task.all.batch.count));
  mix.at_once = blocks <= int64_t{S::kBlocks} * cuda(exec).multiprocessors;
  RR_LAUNCH(exec, mix_pass<S>, grid, S::kThreads, 0, mix);
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
