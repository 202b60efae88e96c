// Waiting for other threads: some microseconds on the processor, then asleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#if !defined(__linux__)
#include <condition_variable>
#include <mutex>
#endif

namespace riverrun {

// A number that threads wait on. Not copied, not moved: threads may sleep on its address.
class Signal {
 public:
  using Duration = std::chrono::nanoseconds;

  // patience: how long a wait may spin before it sleeps.
  explicit Signal(Duration patience) : patience_(patience) {}
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  // Sets another value and wakes those who wait. What was written before is seen after wait().
  void set(uint32_t value);
  // Back to 0, for nobody who waits.
  void clear() { value_.store(0, std::memory_order_relaxed); }
  // Returns once the value is not `seen`.
  void wait(uint32_t seen);
  // How long the calling thread has slept in waits, of all signals.
  static Duration slept();

 private:
  bool spins(uint32_t seen, Duration most) const;
  void sleep(uint32_t seen);

  alignas(64) std::atomic<uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
  const Duration patience_;
#if !defined(__linux__)
  std::mutex lock_;
  std::condition_variable changed_;
#endif
};

}  // namespace riverrun
