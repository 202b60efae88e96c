// What kernels with a kept state and a log ask of their operands, on every device.
#pragma once

#include "node.hpp"

namespace {

[[maybe_unused]] constexpr int kReplayInputs = 5;  // log, log_head, n_replay, n_held, n_direct

// What a kernel with a kept state asks of its operands; "" when it is given.
[[maybe_unused]] inline const char* kept_complaint(const rr_tensor& state, const rr_tensor& rows,
                                                   const rr_tensor& start, const rr_tensor& head) {
  if (state.dtype != RR_F32 || (state.rank != 2 && state.rank != 3) || !dense(state))
    return "the state needs to be dense f32 of rank 2 or 3";
  if (rows.dtype != RR_I32 || !dense(rows)) return "state_rows needs to be dense i32";
  const rr_tensor* const both[] = {&start, &head};
  for (const rr_tensor* t : both)
    if (present(*t) != (state.rank == 3) || (present(*t) && (t->dtype != RR_I32 || !dense(*t))))
      return "start and head need to be dense i32, given exactly for a state of rank 3";
  return "";
}

// What a kernel asks of the five inputs, whose entries have this many floats; "" when it is given.
[[maybe_unused]] inline const char* replay_complaint(const rr_tensor* in, const rr_tensor& state,
                                                     int64_t width) {
  const rr_tensor& log = in[0];
  for (int i = 1; i < kReplayInputs; ++i)
    if (present(in[i]) != present(log) ||
        (present(in[i]) && (in[i].dtype != RR_I32 || !dense(in[i]))))
      return "log_head, n_replay, n_held and n_direct need to be dense i32, given with a log";
  if (!present(log)) return "";
  if (state.rank != 2) return "a log goes with a state of rank 2";
  if (log.dtype != RR_F32 || log.rank != 3 || !dense(log) || log.shape[2] != width)
    return "the log needs to be dense f32 of rank 3, with entries of the op's size";
  return "";
}

}  // namespace
