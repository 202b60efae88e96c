// One pool of threads that run a job together. The caller is thread 0.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace riverrun {

// Lets n threads wait for each other, spinning: nodes last microseconds.
class SpinBarrier {
 public:
  void wait(int n);

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> generation_{0};
};

class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }
  // Runs job(context, thread) on every thread and returns when all are done. One job at a time.
  void run(void (*job)(void* context, int thread), void* context);

 private:
  void worker(int thread);

  const int n_threads_;
  std::vector<std::thread> threads_;
  std::mutex running_;
  std::mutex sleeping_;
  std::condition_variable wake_;
  std::atomic<unsigned> epoch_{0};
  std::atomic<int> unfinished_{0};
  std::atomic<bool> stop_{false};
  void (*job_)(void*, int) = nullptr;
  void* context_ = nullptr;
};

}  // namespace riverrun
