#include "probe.hpp"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "registry.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace riverrun {

namespace {

// Enough independent sums to hide the latency of one on every processor, and few enough for
// sixteen registers.
constexpr int kChains = 12;
constexpr float kFactor = 0.999f, kTerm = 0.001f;  // keeps sums near 1

struct Probe {
  float (*run)(int64_t rounds);
  int lanes;
};

#if defined(__x86_64__)

__attribute__((target("avx512f"))) float chains_avx512(int64_t rounds) {
  __m512 sums[kChains], all = _mm512_setzero_ps();
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(kFactor), term = _mm512_set1_ps(kTerm);
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  for (int i = 0; i < kChains; ++i) all = _mm512_add_ps(all, sums[i]);
  return _mm512_cvtss_f32(all);
}

__attribute__((target("avx2,fma"))) float chains_avx2(int64_t rounds) {
  __m256 sums[kChains], all = _mm256_setzero_ps();
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(kFactor), term = _mm256_set1_ps(kTerm);
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  for (int i = 0; i < kChains; ++i) all = _mm256_add_ps(all, sums[i]);
  return _mm256_cvtss_f32(all);
}

#endif

typedef float v4 __attribute__((vector_size(16)));

v4 multiply_add(v4 a, v4 b, v4 c) {
#if defined(__aarch64__)
  return (v4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

float chains_base(int64_t rounds) {
  v4 sums[kChains], all = {};
  for (int i = 0; i < kChains; ++i) sums[i] = static_cast<float>(i) - v4{};
  const v4 factor = kFactor - v4{}, term = kTerm - v4{};
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) sums[i] = multiply_add(sums[i], factor, term);
  for (int i = 0; i < kChains; ++i) all += sums[i];
  return all[0];
}

// Whether instructions of a level whose name begins so may be used. Levels are sets that grow.
[[maybe_unused]] bool usable_level(const char* prefix) {
  for (const std::string& isa : usable_isas())
    if (isa.rfind(prefix, 0) == 0) return true;
  return false;
}

Probe best_probe() {
#if defined(__x86_64__)
  if (usable_level("avx512")) return {chains_avx512, 16};
  if (usable_level("avx2")) return {chains_avx2, 8};
#endif
  return {chains_base, 4};
}

// Bytes that are summed at a time, and what fetches run ahead of them by; 0 leaves that to the
// processor.
constexpr int64_t kStep = 256;
constexpr int64_t kAhead[] = {0, 1024, 4096, 16384};

typedef uint64_t u2 __attribute__((vector_size(16)));
typedef uint64_t u4 __attribute__((vector_size(32)));
typedef uint64_t u8 __attribute__((vector_size(64)));

// Whole steps of `bytes` from a multiple of 64.
template <class Vector>
[[gnu::always_inline]] inline uint64_t sum(const uint8_t* from, int64_t bytes, int64_t ahead) {
  constexpr int kSums = 4, Width = sizeof(Vector);
  Vector sums[kSums] = {};
  for (int64_t at = 0; at + kStep <= bytes; at += kStep) {
    if (ahead != 0)
      for (int64_t line = 0; line < kStep; line += 64) __builtin_prefetch(from + at + ahead + line);
    for (int64_t i = 0; i < kStep; i += kSums * Width)
      for (int k = 0; k < kSums; ++k) {
        Vector one;
        memcpy(&one, from + at + i + k * Width, Width);
        sums[k] ^= one;
      }
  }
  uint64_t all = 0;
  for (const Vector& one : sums) all ^= one[0];
  return all;
}

#if defined(__x86_64__)

__attribute__((target("avx512f"))) uint64_t sum_avx512(const uint8_t* from, int64_t bytes,
                                                       int64_t ahead) {
  return sum<u8>(from, bytes, ahead);
}

__attribute__((target("avx2"))) uint64_t sum_avx2(const uint8_t* from, int64_t bytes,
                                                  int64_t ahead) {
  return sum<u4>(from, bytes, ahead);
}

#endif

uint64_t sum_base(const uint8_t* from, int64_t bytes, int64_t ahead) {
  return sum<u2>(from, bytes, ahead);
}

auto best_sum() {
#if defined(__x86_64__)
  if (usable_level("avx512")) return sum_avx512;
  if (usable_level("avx2")) return sum_avx2;
#endif
  return sum_base;
}

// Threads take pieces as they come free, as products do.
struct Reading {
  uint64_t (*sum)(const uint8_t*, int64_t, int64_t);
  const uint8_t* memory;
  int64_t bytes, piece, ahead;
  std::atomic<int64_t> next{0};
};

void read(void* context, int, int) {
  Reading& job = *static_cast<Reading*>(context);
  [[maybe_unused]] volatile uint64_t sink = 0;
  for (;;) {
    const int64_t first = job.next.fetch_add(job.piece);
    if (first >= job.bytes) return;
    sink = job.sum(job.memory + first, std::min(job.piece, job.bytes - first), job.ahead);
  }
}

struct Job {
  Probe probe;
  int64_t rounds;
  int n_threads;  // that took part
};

void work(void* context, int thread, int n_threads) {
  Job& job = *static_cast<Job*>(context);
  if (thread == 0) job.n_threads = n_threads;
  [[maybe_unused]] volatile float sink = job.probe.run(job.rounds);
}

// Runs the job, and returns the seconds that it took.
double seconds(ThreadPool& pool, Job& job) {
  const auto began = std::chrono::steady_clock::now();
  pool.run(work, &job);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Operations a second of one run.
double rate(ThreadPool& pool, Job& job) {
  const double took = seconds(pool, job);
  const double operations = 2.0 * kChains * job.probe.lanes * static_cast<double>(job.rounds);
  return operations * job.n_threads / took;
}

}  // namespace

double fma_rate(ThreadPool& pool) {
  constexpr double kLongEnough = 5e-3;
  constexpr int kRepetitions = 7;
  Job job{best_probe(), 1 << 14, 1};
  while (seconds(pool, job) < kLongEnough) job.rounds *= 2;
  double best = 0;
  for (int i = 0; i < kRepetitions; ++i) best = std::max(best, rate(pool, job));
  return best;
}

double read_rate(ThreadPool& pool, const uint8_t* memory, int64_t bytes, int repetitions) {
  constexpr int64_t kPieces = 32;  // for each thread
  const int64_t piece = bytes / (kPieces * pool.size()) / kStep * kStep;
  double best = 0;
  for (const int64_t ahead : kAhead)
    for (int i = 0; i < repetitions; ++i) {
      Reading job{best_sum(), memory, bytes, std::max(piece, kStep), ahead, {}};
      const auto began = std::chrono::steady_clock::now();
      pool.run(read, &job);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      best = std::max(best, static_cast<double>(bytes) / took.count());
    }
  return best;
}

}  // namespace riverrun
