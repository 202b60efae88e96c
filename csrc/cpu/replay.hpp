// Logs beside kept states: the numbers of ops/replay.py and their checks, made by every thread
// alike before anything is written.
#pragma once

#include "ragged.hpp"

namespace {

// What a sequence does in a pass: entries folded into the state, then tokens run on it directly;
// then entries held, and the other tokens, on a working copy. Without a log all tokens are direct.
struct Pass {
  int64_t folded, held, direct, tokens;

  int64_t logged() const { return tokens - direct; }
  bool idle() const { return tokens == 0 && folded == 0; }
};

struct Replay {
  float* log;  // null where there is none
  int64_t entries, width;
  const int32_t *head, *folded, *held, *direct;

  Pass pass(const Batch& batch, int64_t b) const {
    const int64_t tokens = batch.length(b);
    if (!log) return {0, 0, tokens, tokens};
    return {folded[b], held[b], direct[b], tokens};
  }
  // Entry i of sequence b, counted from its oldest live one.
  float* entry(const Kept& kept, int64_t b, int64_t i) const {
    return log + (kept.row_of[b] * entries + (head[b] + i) % entries) * width;
  }
  // Where its token t is logged.
  float* place(const Kept& kept, const Pass& pass, int64_t b, int64_t t) const {
    return entry(kept, b, pass.folded + pass.held + t - pass.direct);
  }
};

// From the first of the five inputs.
[[maybe_unused]] inline Replay read_replay(const rr_tensor* in) {
  if (!present(in[0])) return {};
  return {static_cast<float*>(in[0].data),
          in[0].shape[1],
          in[0].shape[2],
          static_cast<const int32_t*>(in[1].data),
          static_cast<const int32_t*>(in[2].data),
          static_cast<const int32_t*>(in[3].data),
          static_cast<const int32_t*>(in[4].data)};
}

[[maybe_unused]] inline bool check_replay_range(const char* name, int64_t value, int64_t limit,
                                                int64_t b, const rr_exec* exec) {
  if (value >= 0 && value <= limit) return true;
  char message[160];
  snprintf(message, sizeof message, "'%s' should be in [0, %lld], got %lld at [%lld]", name,
           static_cast<long long>(limit), static_cast<long long>(value), static_cast<long long>(b));
  exec->fail(exec, message);
  return false;
}

[[maybe_unused]] inline bool check_replay(const Replay& replay, const Batch& batch,
                                          const rr_exec* exec) {
  if (!replay.log) return true;
  if (!check_indices("log_head", replay.head, batch.count, replay.entries, exec)) return false;
  for (int64_t b = 0; b < batch.count; ++b) {
    const Pass pass = replay.pass(batch, b);
    if (!check_replay_range("n_replay", pass.folded, replay.entries, b, exec) ||
        !check_replay_range("n_held", pass.held, replay.entries, b, exec) ||
        !check_replay_range("n_direct", pass.direct, pass.tokens, b, exec))
      return false;
    char message[160] = "";
    const int64_t needed = pass.folded + pass.held + pass.logged();
    if (pass.direct > 0 && pass.held > 0)
      snprintf(message, sizeof message,
               "'n_direct' should be 0 where entries are held, got %lld at [%lld], where %lld are "
               "held",
               static_cast<long long>(pass.direct), static_cast<long long>(b),
               static_cast<long long>(pass.held));
    else if (needed > replay.entries)
      snprintf(message, sizeof message,
               "'log' should be long enough for the %lld entries of sequence %lld, got %lld",
               static_cast<long long>(needed), static_cast<long long>(b),
               static_cast<long long>(replay.entries));
    if (!*message) continue;
    exec->fail(exec, message);
    return false;
  }
  return true;
}

}  // namespace
