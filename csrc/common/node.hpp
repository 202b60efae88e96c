// Reading node views. Everything here is internal to its translation unit, because kernel files
// are compiled once per instruction set and must not share inline code.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "riverrun.h"

namespace {

inline const rr_attr* find_attr(const rr_node* node, const char* name) {
  for (uint32_t i = 0; i < node->n_attrs; ++i)
    if (strcmp(node->attrs[i].name, name) == 0) return &node->attrs[i];
  return nullptr;
}

[[maybe_unused]] inline int64_t attr_int(const rr_node* node, const char* name, int64_t fallback) {
  const rr_attr* a = find_attr(node, name);
  return a ? a->i : fallback;
}

[[maybe_unused]] inline double attr_float(const rr_node* node, const char* name, double fallback) {
  const rr_attr* a = find_attr(node, name);
  return a ? a->f : fallback;
}

[[maybe_unused]] inline bool attr_is(const rr_node* node, const char* name, const char* text) {
  const rr_attr* a = find_attr(node, name);
  return a && a->text && strcmp(a->text, text) == 0;
}

[[maybe_unused]] inline bool present(const rr_tensor& t) {
  return t.dtype != RR_ABSENT;
}

[[maybe_unused]] inline int64_t numel(const rr_tensor& t) {
  int64_t n = 1;
  for (int i = 0; i < t.rank; ++i) n *= t.shape[i];
  return n;
}

// Bytes of one element of a plain type; 0 for block types.
[[maybe_unused]] inline int64_t element_bytes(uint32_t dtype) {
  switch (dtype) {
    case RR_F32:
    case RR_I32:
      return 4;
    case RR_F16:
    case RR_BF16:
    case RR_I16:
      return 2;
    case RR_I64:
    case RR_F64:
      return 8;
    case RR_I8:
    case RR_U8:
      return 1;
    default:
      return 0;
  }
}

// True when elements of the last `axes` axes lie row-major without gaps (plain types).
[[maybe_unused]] inline bool dense_tail(const rr_tensor& t, int axes) {
  int64_t step = element_bytes(t.dtype);
  for (int i = t.rank - 1; i >= 0 && i >= t.rank - axes; --i) {
    if (t.shape[i] != 1 && t.strides[i] != step) return false;
    step *= t.shape[i];
  }
  return true;
}

[[maybe_unused]] inline bool dense(const rr_tensor& t) {
  return dense_tail(t, t.rank);
}

[[maybe_unused]] inline int refuse(char* why, size_t size, const char* reason) {
  snprintf(why, size, "%s", reason);
  return 0;
}

// Rows of a tensor seen as a matrix: every axis but the last.
[[maybe_unused]] inline int64_t n_rows(const rr_tensor& t) {
  int64_t n = 1;
  for (int i = 0; i + 1 < t.rank; ++i) n *= t.shape[i];
  return n;
}

// Start of row r, for tensors whose leading axes may have gaps.
[[maybe_unused]] inline char* row_ptr(const rr_tensor& t, int64_t r) {
  char* p = static_cast<char*>(t.data);
  for (int i = t.rank - 2; i >= 0; --i) {
    p += (r % t.shape[i]) * t.strides[i];
    r /= t.shape[i];
  }
  return p;
}

// Matrix rows that are real, given the node's real extent of axis 0.
[[maybe_unused]] inline int64_t real_rows(const rr_node* node, const rr_tensor& t) {
  if (t.rank < 2 || t.shape[0] == 0) return n_rows(t);
  return n_rows(t) / t.shape[0] * (node->rows < t.shape[0] ? node->rows : t.shape[0]);
}

struct Range {
  int64_t begin, end;
};

// This thread's part of n items, in whole multiples of `grain`.
[[maybe_unused]] inline Range split(const rr_exec* exec, int64_t n, int64_t grain = 1) {
  const int64_t units = (n + grain - 1) / grain;
  const int64_t begin = units * exec->thread / exec->n_threads * grain;
  const int64_t end = units * (exec->thread + 1) / exec->n_threads * grain;
  return {begin < n ? begin : n, end < n ? end : n};
}

// n items in pieces of a few, each for the thread that is free first: a thread whose core another
// process takes delays the others by a piece, not by its whole part. A thread begins with its own
// part, where nobody gets into its way and what it fetches ahead is its own. Every thread must call
// `next` until it gives no more, since each final call takes a number, too. A node that hands out
// items several times numbers these rounds from 0, with a barrier between two of them; those after
// the first one take numbers in turn.
class Pieces {
 public:
  Pieces(const rr_exec* exec, int64_t n, int64_t per_thread = 8, int64_t round = 0)
      : exec_(exec), n_(n), near_(round == 0) {
    const int64_t wanted = per_thread * exec->n_threads;
    size_ = exec->n_threads == 1 ? n : (n + wanted - 1) / wanted;
    if (size_ < 1) size_ = 1;
    count_ = (n + size_ - 1) / size_;
    base_ = (round - 1) * (count_ + exec->n_threads);
  }

  bool next(Range& piece) const {
    const int64_t number = near_ ? exec_->take_near(exec_, count_) : exec_->take(exec_) - base_;
    const int64_t begin = number * size_;
    if (begin >= n_) return false;
    piece = {begin, begin + size_ < n_ ? begin + size_ : n_};
    return true;
  }

 private:
  const rr_exec* exec_;
  int64_t n_, size_, count_, base_;
  bool near_;
};

[[maybe_unused]] inline void failf(const rr_exec* exec, const char* format, long long a,
                                   long long b) {
  char message[256];
  snprintf(message, sizeof message, format, a, b);
  exec->fail(exec, message);
}

}  // namespace
