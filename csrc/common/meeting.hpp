// Where the threads of a job wait for each other.
#pragma once

#include <cstdint>
#include <memory>

#include "thread_pool.hpp"

namespace riverrun {

// For up to so many threads. Each says in a cache line of its own that it is there, and looks at
// those of the others: lines travel side by side, where a counter would go from one thread to the
// next, and the last one to come is seen without anybody between.
class Meeting {
 public:
  explicit Meeting(int most) : most_(most), arrived_(new Arrived[static_cast<size_t>(most)]) {}
  int most() const { return most_; }
  // Nobody came yet. For when no thread is inside, or as none will be any more, as after fork().
  void reset() {
    for (int t = 0; t < most_; ++t) arrived_[t].times.clear();
  }
  // Returns when all of n threads, numbered from 0, came as often as this one. idle() does a little
  // useful work and returns whether there is more; it is called while others are awaited.
  template <class Idle>
  void wait(int thread, int n, const Idle& idle) {
    Signal& mine = arrived_[thread].times;
    const uint32_t before = mine.value();
    mine.set(before + 1);
    // Nobody comes twice before this thread did: a number is this one, or one before or behind it.
    for (int t = 0; t < n; ++t) {
      const Signal& other = arrived_[t].times;
      while (other.value() == before && idle()) {
      }
      arrived_[t].times.wait(before);
    }
  }

 private:
  struct alignas(2 * 64) Arrived {  // lines are fetched in pairs
    Signal times{kPatienceInJob};
  };
  int most_;
  std::unique_ptr<Arrived[]> arrived_;
};

}  // namespace riverrun
