// One pool of threads that run a job together. The caller is thread 0.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>

#include "waiting.hpp"

namespace riverrun {

// Longer than threads that share a node usually come apart, and far shorter than the turn that the
// system gives to another process.
constexpr std::chrono::microseconds kPatienceInJob{100};

// The system did not let all threads of a pool be started.
class ThreadLimit : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Lets n threads wait for each other.
class Barrier {
 public:
  void wait(int n);
  // Forgets who arrived: for a process made by fork() while others were inside.
  void reset() { arrived_.store(0, std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  Signal generation_{kPatienceInJob};
};

class ThreadPool {
 public:
  // What every thread of a job runs; n_threads take part.
  using Job = void (*)(void* context, int thread, int n_threads);

  // all: every job uses all threads, even where fewer would be faster because other processes use
  // the processors. Throws ThreadLimit, with the number of threads that could be started.
  explicit ThreadPool(int n_threads, bool all = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }
  // Runs job(context, thread, n_threads) on threads 0 to n_threads - 1, size() at most, and returns
  // when all are done. One job at a time. In a process made by fork(), which has none of its
  // parent's threads, the first call starts them anew, and may throw ThreadLimit.
  void run(Job job, void* context);

 private:
  class Workers;
  Workers& workers();

  const int n_threads_;
  const bool all_;
  std::atomic<Workers*> workers_{nullptr};
};

}  // namespace riverrun
