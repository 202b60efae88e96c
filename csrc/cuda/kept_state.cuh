// Ragged batches, kept states and logs on the device: the numbers of ops/ragged.py and
// ops/replay.py, and their checks. Every block checks the whole batch before it writes anything, so
// that all blocks go on or none.
#pragma once

#include "ahead.cuh"
#include "kept.hpp"
#include "kernel.cuh"

namespace {

struct Batch {
  const int32_t* offsets;
  int count;
  int64_t rows;  // of tokens and padding

  __device__ int first(int b) const { return offsets[b]; }
  __device__ int length(int b) const { return offsets[b + 1] - offsets[b]; }
  __device__ int tokens() const { return offsets[count]; }
};

// Rows of planes. Rank 2 is one plane that is both read and written.
struct Kept {
  float* data;
  int64_t rows, width;
  int planes;
  const int32_t *row_of, *start, *head;

  __device__ float* plane(int b, int index) const {
    return data + (int64_t{row_of[b]} * planes + index) * width;
  }
  __device__ int source(int b) const { return start ? start[b] : 0; }
  // The plane of the state after all but the newest `age` tokens; age < planes.
  __device__ int target(int b, int age) const {
    const int64_t at = int64_t{head ? head[b] : 0} + age;
    return static_cast<int>(at < planes ? at : at - planes);
  }
};

// What a sequence does in a pass: entries folded into the state, then tokens run on it directly;
// then entries held, and the other tokens, on a working copy. Without a log all tokens are direct.
struct Pass {
  int folded, held, direct, tokens;

  __device__ bool idle() const { return tokens == 0 && folded == 0; }
};

struct Replay {
  float* log;  // null where there is none
  int entries;
  int64_t width;
  const int32_t *head, *folded, *held, *direct;

  __device__ Pass pass(const Batch& batch, int b) const {
    const int tokens = batch.length(b);
    if (!log) return {0, 0, tokens, tokens};
    return {folded[b], held[b], direct[b], tokens};
  }
  // Entry i of sequence b, counted from its oldest live one; i < entries.
  __device__ float* entry(const Kept& kept, int b, int i) const {
    const int64_t at = int64_t{head[b]} + i, slot = at < entries ? at : at - entries;
    return log + (int64_t{kept.row_of[b]} * entries + slot) * width;
  }
  // Where its token t is logged.
  __device__ float* place(const Kept& kept, const Pass& pass, int b, int t) const {
    return entry(kept, b, pass.folded + pass.held + t - pass.direct);
  }
};

// early: no kernel writes the numbers, so that they may be read before await_grid().
struct Sequences {
  Batch batch;
  Kept kept;
  Replay replay;
  bool early;
  Check first, offsets, rows, start, head, shared;
  Check log_head, folded, held, direct, mixed, entries;
};

// Whether all of them that are there are constant; log: the first of the five inputs.
inline bool all_constant(const rr_tensor& offsets, const rr_tensor& rows, const rr_tensor& start,
                         const rr_tensor& head, const rr_tensor* log) {
  const rr_tensor* const all[] = {&offsets, &rows,   &start,  &head,
                                  log + 1,  log + 2, log + 3, log + 4};
  for (const rr_tensor* t : all)
    if (present(*t) && !t->constant) return false;
  return true;
}

// log: the first of the five inputs.
[[maybe_unused]] inline Sequences read_sequences(const rr_exec* exec, const rr_tensor& offsets,
                                                 int64_t n, const rr_tensor& rows,
                                                 const rr_tensor& state, const rr_tensor& start,
                                                 const rr_tensor& head, const rr_tensor* log) {
  Sequences s = {};
  s.batch = {data<const int32_t>(offsets), static_cast<int>(offsets.shape[0] - 1), n};
  const bool ring = state.rank == 3;
  s.kept = {data<float>(state),
            state.shape[0],
            state.shape[state.rank - 1],
            ring ? static_cast<int>(state.shape[1]) : 1,
            data<const int32_t>(rows),
            ring ? data<const int32_t>(start) : nullptr,
            ring ? data<const int32_t>(head) : nullptr};
  if (present(log[0]))
    s.replay = {
        data<float>(log[0]),         static_cast<int>(log[0].shape[1]), log[0].shape[2],
        data<const int32_t>(log[1]), data<const int32_t>(log[2]),       data<const int32_t>(log[3]),
        data<const int32_t>(log[4])};
  s.early = all_constant(offsets, rows, start, head, log);
  s.first = check(exec, "'seq_offsets' should be 0 at [0], got %lld");
  s.offsets = check(exec,
                    "'seq_offsets' should be ascending and at most the number of rows, got %lld, "
                    "%lld");
  s.rows = check(exec, "'state_rows' should be in [0, %lld), got %lld");
  s.start = check(exec, "'start' should be in [0, %lld), got %lld");
  s.head = check(exec, "'head' should be in [0, %lld), got %lld");
  s.shared = check(exec,
                   "'state_rows' should be a row of its own for each sequence, got one for "
                   "sequences %lld and %lld");
  s.log_head = check(exec, "'log_head' should be in [0, %lld), got %lld");
  s.folded = check(exec, "'n_replay' should be in [0, %lld], got %lld");
  s.held = check(exec, "'n_held' should be in [0, %lld], got %lld");
  s.direct = check(exec, "'n_direct' should be in [0, %lld], got %lld");
  s.mixed = check(exec, "'n_direct' should be 0 where entries are held, got %lld at [%lld]");
  s.entries = check(exec, "'log' should be long enough for a sequence's %lld entries, got %lld");
  return s;
}

__device__ inline bool complain(const Check& check, int64_t a, int64_t b) {
  report(check, a, b);
  return false;
}

__device__ inline bool index_fits(const Check& check, const int32_t* values, int b, int64_t limit) {
  if (!values || (values[b] >= 0 && values[b] < limit)) return true;
  return complain(check, limit, values[b]);
}

__device__ inline bool count_fits(const Check& check, int value, int limit) {
  return (value >= 0 && value <= limit) || complain(check, limit, value);
}

__device__ inline bool offsets_fit(const Sequences& s, int b) {
  const int from = s.batch.offsets[b], to = s.batch.offsets[b + 1];
  if (b == 0 && from != 0) return complain(s.first, from, 0);
  return (from >= 0 && from <= to && to <= s.batch.rows) || complain(s.offsets, from, to);
}

__device__ inline bool replay_fits(const Sequences& s, int b) {
  if (!s.replay.log) return true;
  const int size = s.replay.entries;
  const Pass pass = s.replay.pass(s.batch, b);
  if (!index_fits(s.log_head, s.replay.head, b, size) || !count_fits(s.folded, pass.folded, size) ||
      !count_fits(s.held, pass.held, size) || !count_fits(s.direct, pass.direct, pass.tokens))
    return false;
  if (pass.direct > 0 && pass.held > 0) return complain(s.mixed, pass.direct, b);
  const int64_t needed = int64_t{pass.folded} + pass.held + pass.tokens - pass.direct;
  return needed <= size || complain(s.entries, needed, size);
}

__device__ inline bool in_use(const Sequences& s, int b) {
  return s.batch.length(b) > 0 || (s.replay.log && s.replay.folded[b] > 0);
}

__device__ inline bool state_fits(const Sequences& s, int b) {
  const Kept& kept = s.kept;
  if (!index_fits(s.rows, kept.row_of, b, kept.rows) ||
      !index_fits(s.start, kept.start, b, kept.planes) ||
      !index_fits(s.head, kept.head, b, kept.planes))
    return false;
  const int row = kept.row_of[b];
  int same = 0;  // counted without a branch, so that the loads do not wait for one another
#pragma unroll 8
  for (int other = 0; other < b; ++other) same += kept.row_of[other] == row;
  // Padding has any row, often one of others: it is not worth a look at each of these.
  if (same == 0 || !in_use(s, b)) return true;
  for (int other = 0; other < b; ++other)
    if (kept.row_of[other] == row && in_use(s, other)) return complain(s.shared, other, b);
  return true;
}

// Whether all sequences may go on; the same answer in all threads of all blocks. Each warp looks by
// itself, so that none waits for others.
__device__ inline bool sequences_fit(const Sequences& s) {
  bool fit = true;
  for (int b = threadIdx.x % kWarp; b < s.batch.count; b += kWarp)
    fit = fit && offsets_fit(s, b) && replay_fits(s, b) && state_fits(s, b);
  return __ballot_sync(kAllLanes, !fit) == 0;
}

// What a kernel over sequences begins with; finish_entering ends it. In between it may read the
// numbers, and fetch memory ahead where they are early. Returns whether all sequences may go on.
__device__ inline bool begin_entering(const Sequences& s) {
  if (!s.early) await_grid();
  return sequences_fit(s);
}

__device__ inline void finish_entering(const Sequences& s) {
  if (s.early) await_grid();
}

}  // namespace
