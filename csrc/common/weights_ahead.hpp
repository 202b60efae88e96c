// Weights are known before their product begins: threads that wait ask for what they will read.
#pragma once

#include <cstdint>

namespace riverrun {

// A weight of a node whose threads read all its weights once, each its own of equal parts of them
// first.
struct WeightStream {
  const char* data = nullptr;
  int64_t bytes = 0;
  int64_t before = 0, all = 0;          // bytes of the node's weights before this one, and of all
  int threads = 1;                      // at most, that the node uses
  const WeightStream* after = nullptr;  // which is read next
};

// One thread's way through its parts of the weights to come, as far as caches hold them.
class WeightsAhead {
 public:
  WeightsAhead(int thread, int n_threads);
  // The first weight of the node that will read any next, or is reading; null: none. From one call
  // to the next it is the same or that of the node after it, and what was asked for counts.
  void aim(const WeightStream* next);
  // Asks for a few lines; whether there may be more.
  bool step() {
    if (at_ >= end_ && !go_on()) return false;
    for (const char* stop = at_ + kStep; at_ < stop; at_ += kLine) __builtin_prefetch(at_, 0, 2);
    return true;
  }

 private:
  static constexpr int64_t kLine = 64, kStep = 2 * kLine;

  struct Range {
    const char* begin;
    int64_t bytes;
  };
  Range part(const WeightStream& stream) const;
  bool go_on();

  const int thread_, n_threads_;
  int64_t room_;  // bytes that caches still hold
  const WeightStream* next_ = nullptr;
  const WeightStream* asked_ = nullptr;  // the last one that was begun with
  const char *at_ = nullptr, *end_ = nullptr;
};

}  // namespace riverrun
