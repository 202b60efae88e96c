// Ragged batches and kept states: the checks of ops/ragged.py, made by every thread alike, before
// anything is written, so that all of them go on or none.
#pragma once

#include "kept.hpp"

namespace {

struct Batch {
  const int32_t* offsets;
  int64_t count;

  int64_t first(int64_t b) const { return offsets[b]; }
  int64_t length(int64_t b) const { return int64_t{offsets[b + 1]} - offsets[b]; }
  int64_t tokens() const { return offsets[count]; }
};

[[maybe_unused]] inline Batch read_batch(const rr_tensor& seq_offsets) {
  return {static_cast<const int32_t*>(seq_offsets.data), seq_offsets.shape[0] - 1};
}

[[maybe_unused]] inline bool check_batch(const Batch& batch, int64_t n, const rr_exec* exec) {
  if (batch.offsets[0] != 0) {
    failf(exec, "'seq_offsets' should be 0 at [0], got %lld", batch.offsets[0], 0);
    return false;
  }
  for (int64_t b = 0; b < batch.count; ++b) {
    const int64_t from = batch.offsets[b], to = batch.offsets[b + 1];
    if (from <= to && to <= n) continue;
    char message[160];
    snprintf(message, sizeof message,
             "'seq_offsets' should be ascending and at most %lld, the number of rows, got %lld, "
             "%lld at [%lld]",
             static_cast<long long>(n), static_cast<long long>(from), static_cast<long long>(to),
             static_cast<long long>(b + 1));
    exec->fail(exec, message);
    return false;
  }
  return true;
}

// A kept state: rows of planes. Rank 2 is one plane that is both read and written.
struct Kept {
  float* data;
  int64_t rows, planes, width;
  const int32_t *row_of, *start, *head;

  float* plane(int64_t b, int64_t index) const {
    return data + (row_of[b] * planes + index) * width;
  }
  const float* source(int64_t b) const { return plane(b, start ? start[b] : 0); }
  // The plane of the state after all but the newest `age` tokens; age < planes.
  float* target(int64_t b, int64_t age) const {
    return plane(b, ((head ? head[b] : 0) + age) % planes);
  }
};

[[maybe_unused]] inline Kept read_kept(const rr_tensor& state, const rr_tensor& rows,
                                       const rr_tensor& start, const rr_tensor& head) {
  const bool ring = state.rank == 3;
  return {static_cast<float*>(state.data),
          state.shape[0],
          ring ? state.shape[1] : 1,
          state.shape[state.rank - 1],
          static_cast<const int32_t*>(rows.data),
          ring ? static_cast<const int32_t*>(start.data) : nullptr,
          ring ? static_cast<const int32_t*>(head.data) : nullptr};
}

[[maybe_unused]] inline bool check_indices(const char* name, const int32_t* values, int64_t count,
                                           int64_t limit, const rr_exec* exec) {
  for (int64_t b = 0; values && b < count; ++b) {
    if (values[b] >= 0 && values[b] < limit) continue;
    char message[160];
    snprintf(message, sizeof message, "'%s' should be in [0, %lld), got %d at [%lld]", name,
             static_cast<long long>(limit), values[b], static_cast<long long>(b));
    exec->fail(exec, message);
    return false;
  }
  return true;
}

// folds: how many entries of a log each sequence adds to its state, null for none.
[[maybe_unused]] inline bool check_kept(const Kept& kept, const Batch& batch, const rr_exec* exec,
                                        const int32_t* folds = nullptr) {
  if (!check_indices("state_rows", kept.row_of, batch.count, kept.rows, exec) ||
      !check_indices("start", kept.start, batch.count, kept.planes, exec) ||
      !check_indices("head", kept.head, batch.count, kept.planes, exec))
    return false;
  const auto used = [&](int64_t b) { return batch.length(b) > 0 || (folds && folds[b] > 0); };
  for (int64_t b = 0; b < batch.count; ++b)
    for (int64_t other = 0; other < b && used(b); ++other) {
      if (kept.row_of[other] != kept.row_of[b] || !used(other)) continue;
      char message[160];
      snprintf(message, sizeof message,
               "'state_rows' should be a row of its own for each sequence, got %d for sequences "
               "%lld and %lld",
               kept.row_of[b], static_cast<long long>(other), static_cast<long long>(b));
      exec->fail(exec, message);
      return false;
    }
  return true;
}

}  // namespace
