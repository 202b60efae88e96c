#include "thread_pool.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace riverrun {

namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Some microseconds, which is how long most nodes last.
constexpr int kSpinsBeforeYield = 128;

// Spins, then offers the core: another process may hold the thread that is waited for.
template <class Done>
void spin_until(Done done) {
  for (int turn = 0; !done(); ++turn) {
    if (turn < kSpinsBeforeYield)
      relax();
    else
      std::this_thread::yield();
  }
}

// About the time between two steps of a decoding loop; after it, workers sleep.
constexpr int kSpinsBeforeSleep = 20000;

}  // namespace

void SpinBarrier::wait(int n) {
  if (n <= 1) return;
  const unsigned mine = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(mine + 1, std::memory_order_release);
    return;
  }
  spin_until([&] { return generation_.load(std::memory_order_acquire) != mine; });
}

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads < 1 ? 1 : n_threads) {
  for (int t = 1; t < n_threads_; ++t) threads_.emplace_back(&ThreadPool::worker, this, t);
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(sleeping_);
    stop_.store(true);
    epoch_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::run(void (*job)(void*, int), void* context) {
  std::lock_guard<std::mutex> one_at_a_time(running_);
  job_ = job;
  context_ = context;
  unfinished_.store(n_threads_ - 1, std::memory_order_relaxed);
  if (n_threads_ > 1) {
    {
      std::lock_guard<std::mutex> lock(sleeping_);
      epoch_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
  }
  job(context, 0);
  spin_until([&] { return unfinished_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::worker(int thread) {
  unsigned seen = 0;
  for (;;) {
    for (int turn = 0; turn < kSpinsBeforeSleep; ++turn) {
      if (epoch_.load(std::memory_order_acquire) != seen) break;
      relax();
    }
    if (epoch_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(sleeping_);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    job_(context_, thread);
    unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace riverrun
