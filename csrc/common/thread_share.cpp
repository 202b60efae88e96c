#include "thread_share.hpp"

#include <utility>

namespace riverrun {

namespace {

constexpr int kJobs = 3;   // that are judged together
constexpr int kRest = 64;  // jobs

}  // namespace

void ThreadShare::learn(const void* context, Duration took, Duration slept) {
  if (rest_ > 0) {
    if (--rest_ == 0) threads_ = most_;
    return;
  }
  if (context != context_) start_over(context);
  times_.took += took;
  times_.crowded += slept * 4 > took;
  if (++times_.jobs == kJobs) judge(std::exchange(times_, {}));
}

void ThreadShare::start_over(const void* context) {
  context_ = context;
  times_ = {};
  if (more_) threads_ = most_;
  more_ = 0;
}

void ThreadShare::judge(const Times& times) {
  const bool slower = more_ && times.took * 10 > took_by_more_ * 9;
  const bool crowded = threads_ > 1 && times.crowded == times.jobs;
  if (slower) threads_ = more_;
  if (crowded && !slower) {
    more_ = threads_;
    took_by_more_ = times.took;
    threads_ = (threads_ + 1) / 2;
  } else if (more_) {
    more_ = 0;
    rest_ = kRest;
  }
}

}  // namespace riverrun
