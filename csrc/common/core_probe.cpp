#include "core_probe.hpp"

#include <string.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "registry.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace riverrun {

namespace {

constexpr int kRepetitions = 9;
constexpr int64_t kRounds = 1 << 13;
// Enough independent sums to hide the latency of one, and few enough for sixteen registers.
constexpr int kSums = 12;

// The shortest of several runs of work(kRounds), in seconds.
template <class Work>
double shortest(Work work) {
  double best = 1e30;
  for (int i = 0; i < kRepetitions; ++i) {
    const auto began = std::chrono::steady_clock::now();
    [[maybe_unused]] volatile int sink = work(kRounds);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    best = std::min(best, took.count());
  }
  return best;
}

constexpr int kAdditions = 64;  // of a round

int add_in_turn(int64_t rounds) {
  uint64_t sum = 1, term = 3;
  asm volatile("" : "+r"(term));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 64
    for (int i = 0; i < kAdditions; ++i) {
      sum += term;
      asm volatile("" : "+r"(sum));
    }
  }
  return static_cast<int>(sum);
}

#if defined(__x86_64__)
#define RR_VECTOR "v"
#else
#define RR_VECTOR "w"
#endif

// Instructions that add products to sum %0, with a free register %1 and weights %2; spelt out, as
// compilers would put moves between them.
#define RR_DOTS(NAME, ISA, TYPE, STEP)                                                 \
  __attribute__((target(ISA))) int NAME(int64_t rounds) {                              \
    TYPE w, sums[kSums];                                                               \
    memset(&w, 1, sizeof w);                                                           \
    for (TYPE & sum : sums) sum = w;                                                   \
    for (int64_t r = 0; r < rounds; ++r) {                                             \
      _Pragma("GCC unroll 12") for (TYPE & at : sums) {                                \
        TYPE sum = at, other;                                                          \
        asm volatile(STEP : "+" RR_VECTOR(sum), "=&" RR_VECTOR(other) : RR_VECTOR(w)); \
        at = sum;                                                                      \
      }                                                                                \
    }                                                                                  \
    return 0;                                                                          \
  }

#if defined(__x86_64__)
RR_DOTS(words_sse2, "sse2", __m128i, "movdqa %2, %1; pmaddwd %2, %1; paddd %1, %0")
RR_DOTS(words_avx2, "avx2", __m256i, "vpmaddwd %2, %2, %1; vpaddd %1, %0, %0")
RR_DOTS(bytes_avx2, "avx2", __m256i, "vpmaddubsw %2, %2, %1; vpaddw %1, %0, %0")
RR_DOTS(words_avx512, "avx512bw", __m512i, "vpmaddwd %2, %2, %1; vpaddd %1, %0, %0")
RR_DOTS(bytes_avx512, "avx512bw", __m512i, "vpmaddubsw %2, %2, %1; vpaddw %1, %0, %0")
RR_DOTS(fours_avx512, "avx512vnni", __m512i, "vpdpbusd %2, %2, %0")
#if defined(RR_AVXVNNI)
RR_DOTS(fours_avxvnni, "avxvnni", __m256i, "%{vex%} vpdpbusd %2, %2, %0")
#endif
#elif defined(__aarch64__)
RR_DOTS(fours_sdot, "arch=armv8.2-a+dotprod", int32x4_t, "sdot %0.4s, %2.16b, %2.16b")
#if defined(RR_I8MM)
RR_DOTS(eights_i8mm, "arch=armv8.2-a+i8mm", int32x4_t, "usmmla %0.4s, %2.16b, %2.16b")
#endif
#endif

struct Loop {
  const char* level;
  bool bytes;  // for weights of less than 8 bits alone
  const char* instruction;
  int products;  // of each
  int (*run)(int64_t rounds);
};

// Of a level the first that takes the weights.
constexpr Loop kLoops[] = {
#if defined(__x86_64__)
    {"base", false, "pmaddwd, paddd", 8, words_sse2},
    {"avx2", true, "vpmaddubsw, vpaddw", 32, bytes_avx2},
    {"avx2", false, "vpmaddwd, vpaddd", 16, words_avx2},
#if defined(RR_AVXVNNI)
    {"avxvnni", false, "vpdpbusd", 32, fours_avxvnni},
#endif
    {"avx512", true, "vpmaddubsw, vpaddw", 64, bytes_avx512},
    {"avx512", false, "vpmaddwd, vpaddd", 32, words_avx512},
    {"avx512vnni", false, "vpdpbusd", 64, fours_avx512},
#elif defined(__aarch64__)
    {"dotprod", false, "sdot", 16, fours_sdot},
#if defined(RR_I8MM)
    {"i8mm", false, "usmmla", 32, eights_i8mm},
#endif
#endif
    {"", false, "", 0, nullptr},
};

}  // namespace

double clock_rate() {
  return static_cast<double>(kRounds) * kAdditions / shortest(add_in_turn);
}

Peak dot_peak(bool wide) {
  const std::string& level = usable_isas().back();
  for (const Loop& loop : kLoops)
    if (loop.run && level == loop.level && !(wide && loop.bytes))
      return {loop.instruction,
              static_cast<double>(kRounds) * kSums * loop.products / shortest(loop.run)};
  return {"", 0};
}

#if defined(__linux__)

Instructions::Instructions() {
  perf_event_attr wanted;
  memset(&wanted, 0, sizeof wanted);
  wanted.size = sizeof wanted;
  wanted.type = PERF_TYPE_HARDWARE;
  wanted.config = PERF_COUNT_HW_INSTRUCTIONS;
  wanted.exclude_kernel = wanted.exclude_hv = 1;
  file_ = static_cast<int>(syscall(SYS_perf_event_open, &wanted, 0, -1, -1, 0));
}

Instructions::~Instructions() {
  if (file_ >= 0) close(file_);
}

int64_t Instructions::count() const {
  int64_t counted = -1;
  if (file_ < 0 || read(file_, &counted, sizeof counted) != sizeof counted) return -1;
  return counted;
}

#else

Instructions::Instructions() {}
Instructions::~Instructions() {}
int64_t Instructions::count() const {
  return -1;
}

#endif

}  // namespace riverrun
