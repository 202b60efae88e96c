#include "waiting.hpp"

#include <algorithm>
#include <chrono>
#include <climits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace riverrun {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTurnsBetweenClocks = 32;  // reading the clock costs about as much as these
constexpr unsigned kTrial = 32;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Whether the value became another one within that time.
bool Signal::spins(uint32_t seen, int64_t nanoseconds) const {
  Clock::time_point end{};
  for (;;) {
    for (int turn = 0; turn < kTurnsBetweenClocks; ++turn) {
      if (value() != seen) return true;
      relax();
    }
    const Clock::time_point now = Clock::now();
    if (end == Clock::time_point{}) end = now + std::chrono::nanoseconds(nanoseconds);
    if (now >= end) return false;
  }
}

// Who is waited for may need this very core, or have lost its own to another process: then spinning
// takes time from it. So waits that spun in vain make the next ones spin less; now and then one
// tries for the whole time, and where that helps, the next ones do too.
void Signal::wait(uint32_t seen) {
  if (value() != seen) return;
  const unsigned vain = vain_.load(std::memory_order_relaxed);
  const int64_t most = vain % kTrial == 0 ? patience_ : patience_ >> std::min(2 * vain, 8u);
  if (spins(seen, most)) return vain_.store(0, std::memory_order_relaxed);
  vain_.store(vain + 1, std::memory_order_relaxed);
  sleep(seen);
}

#if defined(__linux__)

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the system waits on the number");

// Either set() sees a sleeper here, or the system sees the new value and returns at once: both
// sides write before they read, in one order for all.
void Signal::sleep(uint32_t seen) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (value_.load(std::memory_order_seq_cst) == seen)
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Signal::set(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0)
    syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

#else

void Signal::sleep(uint32_t seen) {
  std::unique_lock<std::mutex> lock(lock_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  changed_.wait(lock, [&] { return value_.load(std::memory_order_seq_cst) != seen; });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Signal::set(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  { std::lock_guard<std::mutex> lock(lock_); }  // whoever saw the old value is asleep by now
  changed_.notify_all();
}

#endif

}  // namespace riverrun
