#include "weights_ahead.hpp"

#include <algorithm>

#if defined(__linux__)
#include <unistd.h>
#endif

namespace riverrun {

namespace {

// A part of a core's second-level cache, which has to hold what is computed beside the weights.
int64_t most_ahead() {
  constexpr int64_t kUnknown = 1 << 17, kPart = 4;
#if defined(_SC_LEVEL2_CACHE_SIZE)
  const int64_t cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (cache > 0) return cache / kPart;
#endif
  return kUnknown;
}

int64_t room_of_core() {
  static const int64_t most = most_ahead();
  return most;
}

}  // namespace

WeightsAhead::WeightsAhead(int thread, int n_threads)
    : thread_(thread), n_threads_(n_threads), room_(room_of_core()) {}

WeightsAhead::Range WeightsAhead::part(const WeightStream& stream) const {
  const int n = std::min(stream.threads, n_threads_);
  if (thread_ >= n) return {stream.data, 0};
  const auto place = [&](int64_t at) {  // of a byte of all weights, in this one
    return std::min(std::max<int64_t>(at - stream.before, 0), stream.bytes);
  };
  const int64_t begin = place(stream.all * thread_ / n);
  return {stream.data + begin, place(stream.all * (thread_ + 1) / n) - begin};
}

void WeightsAhead::aim(const WeightStream* next) {
  if (next == next_) return;
  bool begins = asked_ == nullptr;  // as nothing was asked for of what comes from `next` on
  for (; next_ != nullptr && next_ != next; next_ = next_->after) {
    begins = begins || asked_ == next_;
    room_ += part(*next_).bytes;
  }
  next_ = next;
  if (!begins) return;
  asked_ = nullptr;
  at_ = end_ = nullptr;
  room_ = room_of_core();
}

// To the next weight that this thread has a part of, if there is room for some of it.
bool WeightsAhead::go_on() {
  while (room_ > 0) {
    const WeightStream* next = asked_ == nullptr ? next_ : asked_->after;
    if (next == nullptr) return false;
    const Range mine = part(*next);
    asked_ = next;
    if (mine.bytes == 0) continue;
    at_ = mine.begin;
    end_ = at_ + std::min(mine.bytes, room_);
    room_ -= mine.bytes;
    return true;
  }
  return false;
}

}  // namespace riverrun
