#include "probe.hpp"

#include <algorithm>
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

Probe best_probe() {
#if defined(__x86_64__)
  const std::string isa = usable_isas().back();
  if (isa.rfind("avx512", 0) == 0) return {chains_avx512, 16};
  if (isa == "avx2" || isa == "avxvnni") return {chains_avx2, 8};
#endif
  return {chains_base, 4};
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

}  // namespace riverrun
