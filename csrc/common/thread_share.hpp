// How many of a pool's threads a job should use while other processes want the processors too.
#pragma once

#include <chrono>

namespace riverrun {

// A thread that lost its core holds the others up at every node, so that fewer threads, down to
// one, can be faster. Where thread 0 of some jobs in a row slept for much of them, half the threads
// are tried; if that was faster they stay for a while, and then all are used again. On a machine
// that does nothing else no thread sleeps within a job, and all are always used.
class ThreadShare {
 public:
  using Duration = std::chrono::nanoseconds;

  explicit ThreadShare(int most) : most_(most), threads_(most) {}
  // Of the next job.
  int threads() const { return threads_; }
  // A job is known by its context; times of different ones say nothing about threads. slept: how
  // long thread 0 did, of the time that the job took.
  void learn(const void* context, Duration took, Duration slept);

 private:
  struct Times {
    int jobs = 0;
    int crowded = 0;  // of them, those in which thread 0 slept for much of the time
    Duration took{0};
  };
  void start_over(const void* context);
  void judge(const Times& times);

  int most_, threads_;
  int more_ = 0;  // threads before half of them were tried, 0 when none are
  Duration took_by_more_{0};
  int rest_ = 0;  // jobs until all threads are used again
  const void* context_ = nullptr;
  Times times_;  // of the last jobs of that context
};

}  // namespace riverrun
