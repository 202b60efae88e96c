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
  // patience: how long a wait may spin before it sleeps.
  explicit Signal(std::chrono::nanoseconds patience) : patience_(patience.count()) {}
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  // Sets another value and wakes those who wait. What was written before is seen after wait().
  void set(uint32_t value);
  // Returns once the value is not `seen`.
  void wait(uint32_t seen);

 private:
  bool spins(uint32_t seen, int64_t nanoseconds) const;
  void sleep(uint32_t seen);

  alignas(64) std::atomic<uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
  const int64_t patience_;
  std::atomic<unsigned> vain_{0};  // waits in a row that spun for nothing
#if !defined(__linux__)
  std::mutex lock_;
  std::condition_variable changed_;
#endif
};

}  // namespace riverrun
