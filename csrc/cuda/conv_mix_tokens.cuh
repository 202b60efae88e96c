// conv_delta_mix of several tokens of a sequence as two launches: the operands of all tokens at
// once, then the rule, token by token, which only reads them.
//
// A warp makes one head's queries, keys or values of a few tokens. The warp that has the first of
// them is the only one that reads the old tail of its channels, and writes the new one.
#pragma once

#include "conv_mix.cuh"

namespace {

constexpr int kMadeThreads = 128, kMadeWarps = kMadeThreads / kWarp;
constexpr int kMadeTokens = 4;  // of a warp
static_assert(kMadeTokens >= kTaps - 1, "only the first tokens' warp reads the tail");

constexpr int kMostTokens = 32, kFirstTokens = 8;  // in shared memory; those that come first

// Operands of all tokens of the pass: of heads of keys those of a token after those of the one
// before, `keys` values each; of heads so for each `block_rows` rows of values.
struct MadeOperands {
  float *k, *q, *v, *decay, *beta;
  int64_t rows;
  int keys, block_rows;

  template <typename S>
  static int64_t floats(const Task& task) {
    return (2 * of_keys<S>(task) + of_values<S>(task)) + 2 * task.all.batch.rows * task.heads;
  }
  template <typename S>
  static MadeOperands at(float* room, const Task& task) {
    MadeOperands to = {room,     nullptr,      nullptr, nullptr, nullptr, task.all.batch.rows,
                       S::kKeys, S::kBlockRows};
    to.q = to.k + of_keys<S>(task);
    to.v = to.q + of_keys<S>(task);
    to.decay = to.v + of_values<S>(task);
    to.beta = to.decay + to.rows * task.heads;
    return to;
  }
  __device__ float* key(float* of, int head, int64_t row) const {
    return of + (head * rows + row) * keys;
  }
  // slice: of the head's rows of values.
  __device__ float* value(int slices, int head, int slice, int64_t row) const {
    return v + ((int64_t{head} * slices + slice) * rows + row) * block_rows;
  }

 private:
  template <typename S>
  static int64_t of_keys(const Task& task) {
    return task.all.batch.rows * task.key_heads * S::kKeys;
  }
  template <typename S>
  static int64_t of_values(const Task& task) {
    const int64_t slices = blocks_for(task.size, S::kBlockRows);
    return task.all.batch.rows * task.heads * slices * S::kBlockRows;
  }
};

// Some tokens of a sequence.
struct MadeRows {
  Pass pass;
  int b, first, count;
  int64_t row;  // of token `first`
};

__device__ inline void load_taps(const ConvMix& mix, int c, float4 (&taps)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) taps[i] = get<float4>(mix.w + (c + i) * kTaps);
}

// The entry of the rule's log for a token; null where it is not logged.
__device__ inline float* logged(const Task& task, const MadeRows& rows, int token) {
  if (token < rows.pass.direct) return nullptr;
  return task.all.replay.place(task.all.kept, rows.pass, rows.b, token);
}

__device__ inline void make_gates(const ConvMix& mix, const MadeRows& rows,
                                  const MadeOperands& to) {
  const Task& task = mix.rule;
  for (int i = threadIdx.x; i < rows.count * task.heads; i += kMadeThreads) {
    const int at = i / task.heads, head = i % task.heads;
    const int64_t row = rows.row + at;
    const float alpha = task.g[row * task.g_row + head];
    const float decay = expf(softplus(alpha + mix.dt[head]) * mix.a[head]);
    to.decay[head * to.rows + row] = decay;
    to.beta[head * to.rows + row] = sigmoid(task.beta[row * task.beta_row + head]);
    float* entry = logged(task, rows, rows.first + at);
    if (entry) entry[(task.key_heads + task.heads) * task.size + head] = decay;
  }
}

// Heads of queries, of keys and of values in the order of channels, of which a warp makes one.
struct MadeVector {
  int number, lane;
  bool here;  // whether the lane has channels
  int c;      // the first of its four, or of the vector's

  __device__ MadeVector(const Task& task, int of)
      : number(min(of, 2 * task.key_heads + task.heads - 1)),
        lane(threadIdx.x % kWarp),
        here(4 * lane < task.size),
        c(number * task.size + (here ? 4 * lane : 0)) {}

  __device__ bool is_value(const Task& task) const { return number >= 2 * task.key_heads; }

  __device__ void put_row(const Task& task, const MadeRows& rows, const MadeOperands& to, int i,
                          const float4& y) const {
    const int64_t row = rows.row + i;
    if (is_value(task)) {
      const int slices = (task.size + to.block_rows - 1) / to.block_rows;
      const int slice = 4 * lane / to.block_rows, at = 4 * lane % to.block_rows;
      if (here) put(to.value(slices, number - 2 * task.key_heads, slice, row) + at, y);
      return;
    }
    const bool query = number < task.key_heads;
    const int head = query ? number : number - task.key_heads;
    if (4 * lane < to.keys) put(to.key(query ? to.q : to.k, head, row) + 4 * lane, y);
    float* entry = query ? nullptr : logged(task, rows, rows.first + i);
    if (entry && here) put(entry + head * task.size + 4 * lane, y);
  }
};

__device__ inline void make_vector(const ConvMix& mix, const MadeRows& rows,
                                   const float4 (&taps)[4], const MadeVector& own,
                                   const MadeOperands& to) {
  const Task& task = mix.rule;
  const Pass& pass = rows.pass;
  const bool divides = !own.is_value(task);
  const auto line =
      line_from<float4>(mix.x + (rows.row - rows.first) * mix.x_row, mix.x_row, mix.channels,
                        mix.tail, mix.tail_log, pass, rows.b, kTaps, own.c);
  float4 in[kMadeTokens + kTaps - 1], y[kMadeTokens];
#pragma unroll
  for (int i = 0; i < kMadeTokens + kTaps - 1; ++i)
    in[i] = line(min(rows.first + i + 1 - kTaps, rows.first + rows.count - 1));
  bool safe[kMadeTokens];
#pragma unroll
  for (int i = 0; i < kMadeTokens; ++i) {
    const float4 window[kTaps] = {in[i], in[i + 1], in[i + 2], in[i + 3]};
    y[i] = own.here ? convolved(taps, window) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    safe[i] = !divides || divide<float>(y[i], mix.length);
  }
#pragma unroll
  for (int i = 0; i < kMadeTokens; ++i) {
    if (i >= rows.count) break;
    if (!safe[i]) y[i] = divided_in_double(y[i], mix.length);
    own.put_row(task, rows, to, i, y[i]);
    const int token = rows.first + i;
    if (own.here && token >= pass.direct)
      put(mix.tail_log.place(mix.tail, pass, rows.b, token) + own.c, in[i + kTaps - 1]);
  }
  if (own.here && rows.first == 0 && pass.folded + pass.direct > 0)
    store_tails<kTaps>(mix.tail, line, pass);
}

// blockIdx: vectors, a warp each, and at the end gates; tokens; sequence.
__global__ void __launch_bounds__(kMadeThreads)
    make_operands(const __grid_constant__ ConvMix mix, const __grid_constant__ MadeOperands to) {
  if (mix.at_once) release_all();
  const Task& task = mix.rule;
  const bool fits = begin_entering(task.all), early = task.all.early && mix.constant;
  const int vector = static_cast<int>(blockIdx.x * kMadeWarps + threadIdx.x / kWarp);
  const MadeVector own(task, vector);
  float4 taps[4];
  if (early) load_taps(mix, own.c, taps);
  finish_entering(task.all);
  if (!fits) return;
  if (!early) load_taps(mix, own.c, taps);
  MadeRows rows = {{}, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y) * kMadeTokens};
  rows.pass = task.all.replay.pass(task.all.batch, rows.b);
  rows.count = min(rows.pass.tokens - rows.first, kMadeTokens);
  rows.row = task.all.batch.first(rows.b) + rows.first;
  if (rows.pass.idle() || (rows.count <= 0 && rows.first > 0)) return;
  if (blockIdx.x + 1 == gridDim.x)
    make_gates(mix, rows, to);
  else if (vector == own.number)
    make_vector(mix, rows, taps, own, to);
}

// Starts to bring tokens begin .. end - 1 of a sequence to the places with their numbers.
template <typename S>
__device__ inline void fetch_made(const Task& task, const MadeOperands& from, const Work& work,
                                  int begin, int end, Stage<S, false>& stage) {
  const int64_t row = work.first + begin;
  const int slices = (task.size + S::kBlockRows - 1) / S::kBlockRows, n = end - begin;
  const float* k = from.key(from.k, work.key, row);
  const float* q = from.key(from.q, work.key, row);
  const float* v = from.value(slices, work.head, work.row / S::kBlockRows, row);
  for (int i = 4 * threadIdx.x; i < n * S::kKeys; i += 4 * S::kThreads) {
    async_copy16(stage.k[begin] + i, k + i);
    async_copy16(stage.q[begin] + i, q + i);
  }
  for (int i = 4 * threadIdx.x; i < n * S::kBlockRows; i += 4 * S::kThreads)
    async_copy16(stage.v[begin] + i, v + i);
  async_copy_commit();
}

// Entries of the log, one after the other.
template <typename S>
__device__ inline void fold_entries(const Task& task, const Work& work, StateRows<S>& rows) {
#pragma unroll 1
  for (int i = 0; i < work.entries; ++i) {
    const Source from = source_of(task, work, i, false);
    const Part<S> k = load_keys<S>(from.k, rows.lane, task.size, task.whole_log);
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      decay_row<S>(rows.m[r], EvenDecay{*from.decay});
      add_row<S>(rows.m[r], r < rows.left ? from.v[rows.first - work.row + r] : 0.0f, k);
    }
    keep_state<S>(task, work, rows, i);
  }
}

template <typename S>
__device__ inline void run_made(const Task& task, const MadeOperands& from, const Work& work,
                                Stage<S, false>& stage) {
  const int n = work.pass.tokens, some = min(n, kFirstTokens), thread = threadIdx.x;
  fetch_made<S>(task, from, work, 0, some, stage);
  fetch_made<S>(task, from, work, some, n, stage);
  if (thread < n) {
    stage.decay[thread] = from.decay[work.head * from.rows + work.first + thread];
    stage.beta[thread] = from.beta[work.head * from.rows + work.first + thread];
  }
  StateRows<S> rows = load_rows<S>(task, work);
  fold_entries<S>(task, work, rows);
#pragma unroll 1
  for (int begin = 0, end = some; begin < n; begin = end, end = n) {
    if (begin == 0)
      async_copy_wait<1>();
    else
      async_copy_wait<0>();
    __syncthreads();
    run_tokens<S, false>(task, work, work.entries, begin, end, stage, rows);
  }
  float none[S::kRows] = {};
  sum_rows<S>(none, rows.out);
  if (rows.to) store_values<S>(rows, rows.to, rows.out, task.scale);
}

// blockIdx: slice of the value rows, head, sequence.
template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    run_made_pass(const __grid_constant__ Task task, const __grid_constant__ MadeOperands from) {
#ifndef RR_EMULATE
  __builtin_assume(task.whole_state && task.whole_log);
#endif
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
  if (!idle) run_made<S>(task, from, work, *reinterpret_cast<Stage<S, false>*>(dynamic_shared()));
}

template <typename S>
void launch_made(const rr_exec* exec, ConvMix mix) {
  const Task& task = mix.rule;
  const auto to = MadeOperands::at<S>(static_cast<float*>(exec->workspace), task);
  const auto count = static_cast<unsigned>(task.all.batch.count);
  const dim3 made(
      static_cast<unsigned>(blocks_for(2 * task.key_heads + task.heads, kMadeWarps) + 1),
      static_cast<unsigned>(blocks_for(to.rows, kMadeTokens)), count);
  mix.at_once = int64_t{made.x} * made.y * made.z <= int64_t{4} * cuda(exec).multiprocessors;
  RR_LAUNCH(exec, make_operands, made, kMadeThreads, 0, mix, to);
  const dim3 grid(static_cast<unsigned>(blocks_for(task.size, S::kBlockRows)),
                  static_cast<unsigned>(task.heads), count);
  allow_shared(run_made_pass<S>, sizeof(Stage<S, false>));
  RR_LAUNCH(exec, run_made_pass<S>, grid, S::kThreads, sizeof(Stage<S, false>), task, to);
}

}  // namespace
