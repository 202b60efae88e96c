// Atomic operations: they return what was there before. Real atomics, because streams driven by
// different host threads may meet in memory.
#pragma once

#include "language.hpp"

namespace emulate {

template <typename T, typename Change>
T atomic_change(T* at, Change change) {
  T before, after;
  __atomic_load(at, &before, __ATOMIC_RELAXED);
  do {
    after = change(before);
  } while (
      !__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return before;
}

}  // namespace emulate

#define RR_ATOMIC_INTEGER(type)                                                               \
  inline type atomicAdd(type* at, type v) {                                                   \
    return __atomic_fetch_add(at, v, __ATOMIC_SEQ_CST);                                       \
  }                                                                                           \
  inline type atomicExch(type* at, type v) {                                                  \
    return __atomic_exchange_n(at, v, __ATOMIC_SEQ_CST);                                      \
  }                                                                                           \
  inline type atomicOr(type* at, type v) {                                                    \
    return __atomic_fetch_or(at, v, __ATOMIC_SEQ_CST);                                        \
  }                                                                                           \
  inline type atomicAnd(type* at, type v) {                                                   \
    return __atomic_fetch_and(at, v, __ATOMIC_SEQ_CST);                                       \
  }                                                                                           \
  inline type atomicMax(type* at, type v) {                                                   \
    return emulate::atomic_change(at, [v](type x) { return x < v ? v : x; });                 \
  }                                                                                           \
  inline type atomicMin(type* at, type v) {                                                   \
    return emulate::atomic_change(at, [v](type x) { return v < x ? v : x; });                 \
  }                                                                                           \
  inline type atomicCAS(type* at, type expected, type v) {                                    \
    __atomic_compare_exchange_n(at, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return expected;                                                                          \
  }

RR_ATOMIC_INTEGER(int)
RR_ATOMIC_INTEGER(unsigned)
RR_ATOMIC_INTEGER(unsigned long long)

#undef RR_ATOMIC_INTEGER

inline int atomicSub(int* at, int v) {
  return __atomic_fetch_sub(at, v, __ATOMIC_SEQ_CST);
}

inline float atomicAdd(float* at, float v) {
  return emulate::atomic_change(at, [v](float x) { return x + v; });
}

inline double atomicAdd(double* at, double v) {
  return emulate::atomic_change(at, [v](double x) { return x + v; });
}

inline float atomicExch(float* at, float v) {
  return emulate::atomic_change(at, [v](float) { return v; });
}

inline long long atomicMax(long long* at, long long v) {
  return emulate::atomic_change(at, [v](long long x) { return x < v ? v : x; });
}

inline long long atomicMin(long long* at, long long v) {
  return emulate::atomic_change(at, [v](long long x) { return v < x ? v : x; });
}

inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

inline void __threadfence_block() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

inline void __threadfence_system() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
