#include "thread_pool.hpp"

#include <pthread.h>

#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace riverrun {

namespace {

// About the time between two steps of a decoding loop.
constexpr std::chrono::microseconds kPatienceBetweenJobs{500};

std::atomic<unsigned> forks{0};

// Another number in every process that fork() made from this one: it inherits memory, no threads.
unsigned process_number() {
  static const int failed = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  if (failed) throw std::bad_alloc();
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

void Barrier::wait(int n) {
  if (n <= 1) return;
  const uint32_t mine = generation_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.set(mine + 1);
    return;
  }
  generation_.wait(mine);
}

// The threads of one process, and what they share.
class ThreadPool::Workers {
 public:
  explicit Workers(int n_threads);
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  bool alive() const { return process_ == process_number(); }
  void run(void (*job)(void*, int), void* context);

 private:
  void start(int n_threads);
  void stop();
  void work(int thread);

  const unsigned process_ = process_number();
  std::vector<std::thread> threads_;
  std::mutex running_;
  Signal job_number_{kPatienceBetweenJobs}, done_number_{kPatienceInJob};
  std::atomic<size_t> unfinished_{0};
  bool stopping_ = false;
  void (*job_)(void*, int) = nullptr;
  void* context_ = nullptr;
};

ThreadPool::Workers::Workers(int n_threads) {
  try {
    start(n_threads);
  } catch (const std::exception& error) {  // no thread, or no memory for its description
    const size_t possible = threads_.size() + 1;
    stop();
    throw ThreadLimit("threads: the system let " + std::to_string(possible) + " of " +
                      std::to_string(n_threads) + " be started (" + error.what() +
                      "); ask for fewer with threads= (-t), or raise its limits on memory and " +
                      "processes");
  }
}

void ThreadPool::Workers::start(int n_threads) {
  threads_.reserve(static_cast<size_t>(n_threads - 1));
  for (int t = 1; t < n_threads; ++t) threads_.emplace_back(&Workers::work, this, t);
}

void ThreadPool::Workers::stop() {
  stopping_ = true;
  job_number_.set(job_number_.value() + 1);
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void ThreadPool::Workers::run(void (*job)(void*, int), void* context) {
  std::lock_guard<std::mutex> one_at_a_time(running_);
  if (threads_.empty()) return job(context, 0);
  job_ = job;
  context_ = context;
  unfinished_.store(threads_.size(), std::memory_order_relaxed);
  const uint32_t before = job_number_.value();
  job_number_.set(before + 1);
  job(context, 0);
  done_number_.wait(before);
}

void ThreadPool::Workers::work(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    job_number_.wait(seen);
    if (stopping_) return;
    job_(context_, thread);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_number_.set(seen + 1);
  }
}

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads < 1 ? 1 : n_threads) {
  workers_.store(new Workers(n_threads_));
}

// In a process made by fork() the threads are gone, and locks may be as they were in the middle of
// a job: what belonged to them is left alone.
ThreadPool::~ThreadPool() {
  Workers* mine = workers_.load();
  if (mine->alive()) delete mine;
}

ThreadPool::Workers& ThreadPool::workers() {
  Workers* found = workers_.load(std::memory_order_acquire);
  if (found->alive()) return *found;
  auto made = std::make_unique<Workers>(n_threads_);
  if (workers_.compare_exchange_strong(found, made.get())) return *made.release();
  return *found;  // another thread of this process was first
}

void ThreadPool::run(void (*job)(void*, int), void* context) {
  workers().run(job, context);
}

}  // namespace riverrun
