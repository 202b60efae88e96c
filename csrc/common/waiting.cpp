#include "waiting.hpp"

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

thread_local Signal::Duration slept_here{0};

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Whether the value became another one within that time.
bool Signal::spins(uint32_t seen, Duration most) const {
  const Clock::time_point unset{};
  for (Clock::time_point end = unset;;) {
    for (int turn = 0; turn < kTurnsBetweenClocks; ++turn) {
      if (value() != seen) return true;
      relax();
    }
    const Clock::time_point now = Clock::now();
    if (end == unset) end = now + most;
    if (now >= end) return false;
  }
}

// The patience is the same whatever earlier waits came to: threads that share a node part for
// longer than it now and then, and the many short waits behind that must not go to sleep.
void Signal::wait(uint32_t seen) {
  if (value() != seen || spins(seen, patience_)) return;
  const Clock::time_point asleep = Clock::now();
  sleep(seen);
  slept_here += Clock::now() - asleep;
}

Signal::Duration Signal::slept() {
  return slept_here;
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
