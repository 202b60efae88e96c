// conv_delta_mix of a few tokens: delta_mix whose blocks convolve the channels that they need, with
// the arithmetic of ssm_conv_silu. A warp has a block's keys, one its queries, one its values.
//
// All blocks of a key head read the old tail of its channels; the last of them to have done so
// writes the new one. The tail of values, which one block reads, is that block's.
#include "conv_mix_tokens.cuh"
#include "counters.cuh"

namespace {

// For more, the convolution is a kernel of its own: many blocks would repeat its work.
constexpr int64_t kMostRows = kMostTokens, kMostSequences = 4;
constexpr int64_t kMostSize = 4 * kWarp;  // of a head that a warp has four channels a lane of

// Places among the inputs and outputs.
enum { kX, kW, kAlpha, kBeta, kDt, kA, kTail, kMemory, kState = kMemory + 2, kTailLog = 17 };

int supports_channels(const rr_node* node, char* why, size_t size) {
  const rr_tensor *in = node->inputs, &x = in[kX];
  const int64_t of_head = node->outputs[0].shape[2];
  if (x.shape[0] > kMostRows || in[kMemory + 1].shape[0] > kMostSequences)
    return refuse(why, size, "passes of more than 32 rows or 4 sequences are not taken");
  if (x.dtype != RR_F32 || x.rank != 2 || !dense_tail(x, 1))
    return refuse(why, size, "x needs dense f32 rows");
  if (of_head > kMostSize || of_head % 4 != 0)
    return refuse(why, size, "heads need a multiple of four values, and at most 128");
  if (present(in[kTailLog]) && in[kMemory + 5].shape[2] % 4 != 0)
    return refuse(why, size, "an entry of the log needs a multiple of four values");
  if (in[kW].shape[1] != kTaps) return refuse(why, size, "a channel needs four taps");
  for (const int i : {kW, kDt, kA})
    if (in[i].dtype != RR_F32 || in[i].layout != RR_LAYOUT_PLAIN || !dense(in[i]))
      return refuse(why, size, "w, dt and a need to be dense f32");
  for (const int i : {kAlpha, kBeta})
    if (in[i].dtype != RR_F32 || in[i].rank != 2 || !dense_tail(in[i], 1))
      return refuse(why, size, "alpha and beta need dense f32 rows");
  const int64_t counted = 2 * in[kMemory + 1].shape[0] * attr_int(node, "key_heads", 1);
  if (counted > kCounters) return refuse(why, size, "there are too many heads of keys");
  return 1;
}

int supports(const rr_node* node, char* why, size_t size) {
  if (!supports_channels(node, why, size)) return 0;
  const rr_tensor *in = node->inputs, *memory = in + kMemory;
  if (memory[0].dtype != RR_I32 || !dense(memory[0]))
    return refuse(why, size, "seq_offsets needs to be dense i32");
  const rr_tensor& o = node->outputs[0];
  const int64_t channels = in[kX].shape[1], heads = o.shape[1];
  const int64_t entry = (attr_int(node, "key_heads", 1) + heads) * o.shape[2] + heads;
  rr_tensor of_tail[kReplayInputs] = {in[kTailLog]};
  for (int i = 1; i < kReplayInputs; ++i) of_tail[i] = memory[5 + i];
  const char* complaint = kept_complaint(memory[2], memory[1], memory[3], memory[4]);
  if (!*complaint) complaint = kept_complaint(in[kTail], memory[1], memory[3], memory[4]);
  if (!*complaint) complaint = replay_complaint(memory + 5, memory[2], entry);
  if (!*complaint) complaint = replay_complaint(of_tail, in[kTail], channels);
  return *complaint ? refuse(why, size, complaint) : 1;
}

template <typename S>
using Steps = Stage<S, false>;

// What a warp does for a token.
enum Role { kKeys, kQueries, kGates, kValues };

// A warp's part of a block's work. Lanes have four channels each, from c on, of those that are
// `here`; others have the first ones' and put nothing anywhere.
struct Part4 {
  int role, c, lane;
  bool here;
  Line<float4> line;
};

template <typename S>
__device__ inline Part4 part_of(const ConvMix& mix, const Work& work) {
  const Task& task = mix.rule;
  const int role = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int keys = task.key_heads * task.size;
  const bool values = role == kValues;
  const int first = values ? 2 * keys + work.head * task.size + work.row
                           : (role == kQueries ? 0 : keys) + work.key * task.size;
  const int count = values ? min(S::kBlockRows, task.size - work.row) : task.size;
  const bool here = role != kGates && 4 * lane < count;
  const int c = first + (here ? 4 * lane : 0);
  return {role, c, lane, here,
          line_from<float4>(mix.x + work.first * mix.x_row, mix.x_row, mix.channels, mix.tail,
                            mix.tail_log, work.pass, work.b, kTaps, c)};
}

// The taps of four channels, and what a head's gates are made with.
struct Weights {
  float4 taps[4];
  float dt, a;
};

__device__ inline Weights weights_of(const ConvMix& mix, const Work& work, const Part4& part) {
  Weights w = {};
  if (part.role == kGates) {
    w.dt = mix.dt[work.head];
    w.a = mix.a[work.head];
    return w;
  }
  load_taps(mix, part.c, w.taps);
  return w;
}

// The rows of a stage that a part fills.
template <typename S>
__device__ inline float* row_of(const Part4& part, Steps<S>& stage, int i) {
  return part.role == kKeys ? stage.k[i] : part.role == kQueries ? stage.q[i] : stage.v[i];
}

// A part's channels of a token: convolved, and of keys and queries divided by their length.
__device__ inline float4 made_of(const Part4& part, const Weights& w, const EuclideanLength& length,
                                 const float4 (&window)[kTaps]) {
  float4 y = convolved(w.taps, window);
  if (part.role == kValues) return y;
  if (!part.here) y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return divide<float>(y, length) ? y : divided_in_double(y, length);
}

// The new tail of a part's channels: read behind the tokens, written when nobody reads the old one.
// In between a thread keeps it in shared memory.
template <typename S>
struct NewTail {
  float4 inputs[kTaps - 1][S::kThreads];
};

// Makes what the steps begin .. end - 1 of a stage, which are tokens, have of a part's channels;
// logs their inputs, if that is up to this block. token: that of step `begin`.
template <typename S>
__device__ inline void convolve_steps(const ConvMix& mix, const Work& work, const Part4& part,
                                      const Weights& w, bool logs, int token, int begin, int end,
                                      Steps<S>& stage, NewTail<S>& tail) {
  float4 window[kTaps], next = part.line.token(token);
#pragma unroll
  for (int t = 0; t + 1 < kTaps; ++t) window[t + 1] = part.line(token - kTaps + 1 + t);
#pragma unroll 1
  for (; begin < end; ++begin, ++token) {
#pragma unroll
    for (int t = 0; t + 1 < kTaps; ++t) window[t] = window[t + 1];
    window[kTaps - 1] = next;
    if (begin + 1 < end) next = part.line.token(token + 1);
    if (logs && part.here && token >= work.pass.direct)
      put(mix.tail_log.place(mix.tail, work.pass, work.b, token) + part.c, window[kTaps - 1]);
    const float4 y = made_of(part, w, mix.length, window);
    if (part.here) put(row_of<S>(part, stage, begin) + 4 * part.lane, y);
  }
#pragma unroll
  for (int t = 0; t + 1 < kTaps; ++t) tail.inputs[t][threadIdx.x] = window[t + 1];
}

// The decays and betas of a stage's n steps, a lane each.
template <typename S>
__device__ inline void gate_steps(const ConvMix& mix, const Work& work, const Weights& w, int lane,
                                  int first, int n, Steps<S>& stage) {
  const Task& task = mix.rule;
  if (lane >= n) return;
  if (first + lane < work.entries) {
    stage.decay[lane] = *source_of(task, work, first + lane, false).decay;
    return;
  }
  const int64_t row = work.first + first + lane - work.entries;
  const float alpha = task.g[row * task.g_row + work.head];
  stage.beta[lane] = sigmoid(task.beta[row * task.beta_row + work.head]);
  stage.decay[lane] = expf(softplus(alpha + w.dt) * w.a);
}

// Starts to bring keys and d of n steps, which are entries of the log.
template <typename S>
__device__ inline void fetch_entries(const Task& task, const Work& work, int first, int n,
                                     Steps<S>& stage) {
  constexpr int kOfKeys = S::kKeys / 4, kAll = kOfKeys + S::kBlockRows / 4;
  for (int item = threadIdx.x; item < n * kAll; item += S::kThreads) {
    const int i = item / kAll, quad = item % kAll;
    const bool key = quad < kOfKeys;
    const int at = 4 * (key ? quad : quad - kOfKeys);
    if (at >= (key ? task.size : task.size - work.row)) continue;
    const Source from = source_of(task, work, first + i, false);
    copy_quad((key ? stage.k[i] : stage.v[i]) + at, (key ? from.k : from.v) + at, 4, from.whole);
  }
  async_copy_commit();
}

// Brings closer what a block reads of the state and of the old tail.
template <typename S>
__device__ inline void fetch_memory(const ConvMix& mix, const Work& work) {
  const Task& task = mix.rule;
  const int rows = min(S::kBlockRows, task.size - work.row), keys = task.key_heads * task.size;
  fetch_ahead(state_row(task, work, task.all.kept.source(work.b), work.row),
              int64_t{4} * task.size * rows);
  const float* tail = mix.tail.plane(work.b, mix.tail.source(work.b));
  for (int t = 0; t + 1 < kTaps; ++t, tail += mix.channels) {
    fetch_ahead(tail + work.key * task.size, int64_t{4} * task.size);
    fetch_ahead(tail + keys + work.key * task.size, int64_t{4} * task.size);
    fetch_ahead(tail + 2 * keys + work.head * task.size + work.row, int64_t{4} * rows);
  }
}

// Whether there is a new tail.
__device__ inline bool moves_on(const Work& work) {
  return work.pass.folded + work.pass.direct > 0;
}

// Of a state that is one plane; other states' are read when they are written. Where all tokens run
// directly it is what convolve_steps leaves.
template <typename S>
__device__ inline void read_tail(const ConvMix& mix, const Work& work, const Part4& part,
                                 NewTail<S>& tail) {
  const bool left = work.pass.tokens > 0 && work.pass.direct == work.pass.tokens;
  if (left || !part.here || !moves_on(work) || mix.tail.planes > 1) return;
#pragma unroll
  for (int t = 0; t + 1 < kTaps; ++t)
    tail.inputs[t][threadIdx.x] = part.line(work.pass.direct - work.pass.held - kTaps + 1 + t);
}

// Of a state of several planes, the four channels from c on.
__noinline__ __device__ void write_planes(const ConvMix& mix, int b, int c) {
  const Batch& batch = mix.rule.all.batch;
  const Pass pass = mix.tail_log.pass(batch, b);
  const float* x = mix.x + batch.first(b) * mix.x_row;
  store_tails<kTaps>(
      mix.tail,
      line_from<float4>(x, mix.x_row, mix.channels, mix.tail, mix.tail_log, pass, b, kTaps, c),
      pass);
}

template <typename S>
__device__ inline void write_tail(const ConvMix& mix, const Work& work, const NewTail<S>& tail) {
  const Part4 part = part_of<S>(mix, work);
  if (!part.here || !moves_on(work)) return;
  if (mix.tail.planes > 1) return write_planes(mix, work.b, part.c);
  float* to = mix.tail.plane(work.b, 0) + part.c;
#pragma unroll
  for (int t = 0; t + 1 < kTaps; ++t) put(to + t * mix.channels, tail.inputs[t][threadIdx.x]);
}

// All blocks of a key head count when they have read what they need of its channels.
__device__ inline unsigned* counter_of(const ConvMix& mix, const Work& work, const Part4& part) {
  return mix.counters + 2 * (work.b * mix.rule.key_heads + work.key) + part.role;
}

__device__ inline unsigned count_part(const ConvMix& mix, const Work& work, const Part4& part) {
  if (part.role > kQueries || part.lane > 0) return 0;
  return count_reader(counter_of(mix, work, part));
}

// Whether this warp writes its part's tail. before: what its first lane counted.
__device__ inline bool comes_last(const ConvMix& mix, const Work& work, const Part4& part,
                                  unsigned before) {
  if (part.role > kQueries) return part.role == kValues;
  const unsigned all = gridDim.x * (mix.rule.heads / mix.rule.key_heads);
  if (__shfl_sync(kAllLanes, before, 0) + 1 < all) return false;
  if (part.lane == 0) *counter_of(mix, work, part) = 0;
  return true;
}

template <typename S>
__device__ inline void run_steps(const ConvMix& mix, const Work& work, const Part4& part,
                                 const Weights& w, Steps<S>& stage, NewTail<S>& tail) {
  const Task& task = mix.rule;
  StateRows<S> rows = load_rows<S>(task, work);
  const bool logs = part.role == kValues || (work.row == 0 && leads_keys(task, work.head));
  unsigned before = 0;
  for (int first = 0; first < work.steps; first += S::kSteps) {
    const int n = min(S::kSteps, work.steps - first);
    const int entries = max(0, min(n, work.entries - first));
    if (first > 0) __syncthreads();
    fetch_entries<S>(task, work, first, entries, stage);
    if (part.role == kGates)
      gate_steps<S>(mix, work, w, part.lane, first, n, stage);
    else if (entries < n)
      convolve_steps<S>(mix, work, part, w, logs, first + entries - work.entries, entries, n, stage,
                        tail);
    async_copy_wait<0>();
    __syncthreads();
    if (first + n >= work.steps) {
      read_tail(mix, work, part, tail);
      before = count_part(mix, work, part);
    }
    log_operands(task, work, first, stage);
    run_entries<S, false>(task, work, first, 0, entries, stage, rows);
    if (entries < n) run_tokens<S, false>(task, work, first, entries, n, stage, rows);
  }
  float none[S::kRows] = {};
  sum_rows<S>(none, rows.out);
  if (rows.to) store_values<S>(rows, rows.to, rows.out, task.scale);
  if (comes_last(mix, work, part, before)) write_tail(mix, work, tail);
}

// blockIdx: slice of the value rows, head, sequence.
template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    conv_mix_pass(const __grid_constant__ ConvMix mix) {
  static_assert(S::kThreads == 4 * kWarp, "a warp for each role");
#ifndef RR_EMULATE
  __builtin_assume(mix.rule.whole_state && mix.rule.whole_log);
#endif
  __shared__ Steps<S> stage;
  __shared__ NewTail<S> tail;
  const Task& task = mix.rule;
  if (mix.at_once) release_all();
  const bool fits = begin_entering(task.all);
  const int head = blockIdx.y, row = blockIdx.x * S::kBlockRows;
  const Work work = fits ? work_of(task, blockIdx.z, head, row) : Work{};
  const bool idle = work.pass.idle(), early = task.all.early && mix.constant;
  const Part4 part = idle ? Part4{} : part_of<S>(mix, work);
  Weights w = {};
  if (!idle && task.all.early) fetch_memory<S>(mix, work);
  if (!idle && early) w = weights_of(mix, work, part);
  finish_entering(task.all);
  if (!fits) return;
  if (task.all.batch.tokens() < task.all.batch.rows) clear_padding(task);
  if (idle) return;
  if (!early) w = weights_of(mix, work, part);
  if (task.size < S::kKeys || task.size % S::kBlockRows != 0) {
    clear(stage);
    __syncthreads();
  }
  run_steps<S>(mix, work, part, w, stage, tail);
}

template <typename S>
void launch(const rr_exec* exec, ConvMix mix) {
  const Task& task = mix.rule;
  const int64_t slices = blocks_for(task.size, S::kBlockRows);
  const int64_t blocks = slices * task.heads * task.all.batch.count;
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(task.heads),
                  static_cast<unsigned>(task.all.batch.count));
  mix.at_once = blocks <= int64_t{S::kBlocks} * cuda(exec).multiprocessors;
  RR_LAUNCH(exec, conv_mix_pass<S>, grid, S::kThreads, 0, mix);
}

ConvMix read_mix(const rr_node* node, const rr_exec* exec) {
  const rr_tensor *in = node->inputs, &x = in[kX], &log = in[kTailLog];
  ConvMix mix = {};
  mix.rule = rule_task(node, exec, in + kMemory, x.shape[0]);
  mix.rule.key_heads = static_cast<int>(attr_int(node, "key_heads", 1));
  read_gates(in[kAlpha], in[kBeta], mix.rule);
  mix.x = data<const float>(x);
  mix.w = data<const float>(in[kW]);
  mix.dt = data<const float>(in[kDt]);
  mix.a = data<const float>(in[kA]);
  mix.x_row = x.strides[0] / static_cast<int64_t>(sizeof(float));
  mix.channels = x.shape[1];
  mix.tail = mix.rule.all.kept;
  mix.tail.data = data<float>(in[kTail]);
  mix.tail.width = (kTaps - 1) * mix.channels;
  mix.tail_log = mix.rule.all.replay;
  mix.tail_log.log = present(log) ? data<float>(log) : nullptr;
  mix.tail_log.width = mix.channels;
  mix.length = {true, attr_float(node, "eps", 0.0)};
  mix.counters = counters(exec);
  mix.constant = in[kW].constant && in[kDt].constant && in[kA].constant;
  return mix;
}

// Shapes for one size give the same bits: rows enough to fill the device share a thread's operands.
void launch_128(const rr_exec* exec, const ConvMix& mix) {
  using One = Shape<8, 4, 1>;
  const Task& task = mix.rule;
  const int64_t heads = int64_t{task.all.batch.count} * task.heads;
  if (heads * blocks_for(task.size, One::kBlockRows) <= One::kBlocks * cuda(exec).multiprocessors)
    launch<One>(exec, mix);
  else
    launch<Shape<8, 4, 2>>(exec, mix);
}

// Rows from which on operands are made by a launch of their own.
constexpr int64_t kLeastMade = 9;

// Calls f with the shape for heads of so many values whose operands are made.
template <typename Function>
auto with_made_shape(int size, Function f) {
  if (size <= 32) return f(Shape<8, 1, 1, kMostTokens>());
  if (size <= 64) return f(Shape<8, 2, 1, kMostTokens>());
  return f(Shape<8, 4, 1, kMostTokens>());
}

size_t workspace(const rr_node* node, int32_t) {
  Task task = {};
  task.all.batch.rows = node->inputs[kX].shape[0];
  if (task.all.batch.rows < kLeastMade) return 0;
  task.key_heads = static_cast<int>(attr_int(node, "key_heads", 1));
  task.heads = static_cast<int>(node->outputs[0].shape[1]);
  task.size = static_cast<int>(node->outputs[0].shape[2]);
  const int64_t floats = with_made_shape(
      task.size, [&](auto shape) { return MadeOperands::floats<decltype(shape)>(task); });
  return static_cast<size_t>(floats) * sizeof(float);
}

void run(const rr_node* node, const rr_exec* exec) {
  const ConvMix mix = read_mix(node, exec);
  if (!aligned(mix.tail.data) || !aligned(mix.tail_log.log) || !mix.rule.whole_state ||
      !mix.rule.whole_log)
    return exec->fail(exec, "states and logs need rows that start at multiples of 16 bytes");
  if (mix.rule.all.batch.rows >= kLeastMade)
    with_made_shape(mix.rule.size, [&](auto shape) { launch_made<decltype(shape)>(exec, mix); });
  else if (mix.rule.size <= 32)
    launch<Shape<8, 1, 1>>(exec, mix);
  else if (mix.rule.size <= 64)
    launch<Shape<8, 2, 1>>(exec, mix);
  else
    launch_128(exec, mix);
}

}  // namespace

RR_CUDA_KERNEL(conv_delta_mix, RR_ROW_EXACT, "conv_delta_mix", "cuda", "", 0, supports, workspace,
               run)
