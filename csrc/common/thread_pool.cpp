#include "thread_pool.hpp"

#include <pthread.h>

#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "thread_share.hpp"

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
  Workers(int n_threads, bool all);
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  bool alive() const { return process_ == process_number(); }
  void run(Job job, void* context);

 private:
  struct Worker {
    Signal jobs{kPatienceBetweenJobs};  // how many it was given
    std::thread thread;
  };
  void start(int n_threads);
  void stop();
  void work(Worker& self, int thread);
  void run_on(int n_threads);

  const unsigned process_ = process_number();
  const bool all_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex running_;
  ThreadShare share_;
  Signal jobs_done_{kPatienceInJob};
  std::atomic<int> unfinished_{0};
  bool stopping_ = false;
  Job job_ = nullptr;
  void* context_ = nullptr;
  int participants_ = 1;
};

ThreadPool::Workers::Workers(int n_threads, bool all) : all_(all), share_(n_threads) {
  try {
    start(n_threads);
  } catch (const std::exception& error) {  // no thread, or no memory for its description
    const size_t possible = workers_.size() + 1;
    stop();
    throw ThreadLimit("threads: the system let " + std::to_string(possible) + " of " +
                      std::to_string(n_threads) + " be started (" + error.what() +
                      "); ask for fewer with threads= (-t), or raise its limits on memory and " +
                      "processes");
  }
}

void ThreadPool::Workers::start(int n_threads) {
  workers_.reserve(static_cast<size_t>(n_threads - 1));
  for (int t = 1; t < n_threads; ++t) {
    auto made = std::make_unique<Worker>();
    made->thread = std::thread(&Workers::work, this, std::ref(*made), t);
    workers_.push_back(std::move(made));
  }
}

void ThreadPool::Workers::stop() {
  stopping_ = true;
  for (auto& worker : workers_) worker->jobs.set(worker->jobs.value() + 1);
  for (auto& worker : workers_) worker->thread.join();
  workers_.clear();
}

void ThreadPool::Workers::run(Job job, void* context) {
  std::lock_guard<std::mutex> one_at_a_time(running_);
  if (workers_.empty()) return job(context, 0, 1);
  job_ = job;
  context_ = context;
  if (all_) return run_on(static_cast<int>(workers_.size()) + 1);
  const auto began = std::chrono::steady_clock::now();
  const Signal::Duration slept = Signal::slept();
  run_on(share_.threads());
  share_.learn(context, std::chrono::steady_clock::now() - began, Signal::slept() - slept);
}

void ThreadPool::Workers::run_on(int n_threads) {
  if (n_threads == 1) return job_(context_, 0, 1);
  participants_ = n_threads;
  unfinished_.store(n_threads - 1, std::memory_order_relaxed);
  const uint32_t before = jobs_done_.value();
  for (int t = 1; t < n_threads; ++t) {
    Signal& jobs = workers_[static_cast<size_t>(t - 1)]->jobs;
    jobs.set(jobs.value() + 1);
  }
  job_(context_, 0, n_threads);
  jobs_done_.wait(before);
}

void ThreadPool::Workers::work(Worker& self, int thread) {
  for (uint32_t seen = 0;; ++seen) {
    self.jobs.wait(seen);
    if (stopping_) return;
    job_(context_, thread, participants_);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      jobs_done_.set(jobs_done_.value() + 1);
  }
}

ThreadPool::ThreadPool(int n_threads, bool all)
    : n_threads_(n_threads < 1 ? 1 : n_threads), all_(all) {
  workers_.store(new Workers(n_threads_, all_));
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
  auto made = std::make_unique<Workers>(n_threads_, all_);
  if (workers_.compare_exchange_strong(found, made.get())) return *made.release();
  return *found;  // another thread of this process was first
}

void ThreadPool::run(Job job, void* context) {
  workers().run(job, context);
}

}  // namespace riverrun
