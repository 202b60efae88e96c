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
  // Throws ThreadLimit, with the number of threads that could be started.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }
  // Runs job(context, thread) on every thread and returns when all are done. One job at a time.
  // In a process made by fork(), which has none of its parent's threads, the first call starts
  // them anew, and may throw ThreadLimit.
  void run(void (*job)(void* context, int thread), void* context);

 private:
  class Workers;
  Workers& workers();

  const int n_threads_;
  std::atomic<Workers*> workers_{nullptr};
};

}  // namespace riverrun
