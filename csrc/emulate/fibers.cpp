#include "fibers.hpp"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <random>
#include <string>

#include "context.hpp"
#include "polling.hpp"
#include "streams.hpp"

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread uint3 blockDim;
__thread uint3 gridDim;

namespace emulate {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kMaxThreads = 1024;

enum class State : uint8_t { kNew, kReady, kBarrier, kCollective, kPolling, kDone };

struct Copy {
  void* to;
  const void* from;
  int group;
};

struct Thread {
  State state;
  Fiber* fiber;
  uint3 index;
  unsigned mask;
  void* mine;
  Finish finish;
  std::vector<Copy> copies;
  int groups;
};

class Runner {
 public:
  void run(dim3 grid, dim3 block, size_t shared, const std::function<void()>& body,
           const char* name);

  void sync_threads();
  void collective(unsigned mask, void* mine, Finish finish);
  void poll();
  void made_progress() { progress_ = true; }
  [[noreturn]] void fail(cudaError_t error, const char* message);

  Thread& current() { return threads_[current_]; }
  unsigned char* shared() const { return shared_.get(); }
  int lane() const { return static_cast<int>(current_ % kLanes); }

 private:
  static void job();
  void start(dim3 block, size_t shared);
  bool run_block();
  void run_warp(unsigned warp);
  void resume(unsigned thread);
  void suspend() { threads_[current_].fiber->suspend(); }
  bool release_barrier();
  bool release_polls();
  void deadlock();
  void abandon();
  void set_order(unsigned threads);

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  std::vector<Thread> threads_;
  std::vector<unsigned> warps_;
  unsigned lanes_[kLanes];
  unsigned current_ = 0, alive_ = 0, at_barrier_ = 0;
  bool woken_ = false, failed_ = false, running_ = false, progress_ = false;
  size_t shared_size_ = 0;
  const std::function<void()>* body_ = nullptr;
  const char* name_ = "";

  struct Free {
    void operator()(unsigned char* p) const { free(p); }
  };
  std::unique_ptr<unsigned char, Free> shared_;
};

// The one that runs a block on this thread; quicker to find than what `runner` has to make.
__thread Runner* active __attribute__((tls_model("initial-exec")));

Runner& runner() {
  static thread_local const auto instance = std::make_unique<Runner>();
  return *instance;
}

enum class Order { kAscending, kDescending, kShuffled };

// Read at each launch, so that one process can compare orders.
Order order() {
  const char* text = getenv("RIVERRUN_EMULATE_ORDER");
  const std::string name = text ? text : "";
  if (name == "descending") return Order::kDescending;
  return name == "shuffled" ? Order::kShuffled : Order::kAscending;
}

void Runner::job() {
  Runner& self = *active;
  (*self.body_)();
  self.threads_[self.current_].state = State::kDone;
  --self.alive_;
}

void Runner::set_order(unsigned threads) {
  static std::atomic<unsigned> launches{0};
  const unsigned number = launches++;
  warps_.resize((threads + kLanes - 1) / kLanes);
  std::iota(warps_.begin(), warps_.end(), 0u);
  std::iota(lanes_, lanes_ + kLanes, 0u);
  const Order how = order();
  if (how == Order::kDescending) {
    std::reverse(warps_.begin(), warps_.end());
    std::reverse(lanes_, lanes_ + kLanes);
  } else if (how == Order::kShuffled) {
    std::mt19937 random(number);
    std::shuffle(warps_.begin(), warps_.end(), random);
    std::shuffle(lanes_, lanes_ + kLanes, random);
  }
}

void Runner::start(dim3 block, size_t shared) {
  const unsigned count = block.x * block.y * block.z;
  threads_.resize(count);
  unsigned i = 0;
  for (unsigned z = 0; z < block.z; ++z)
    for (unsigned y = 0; y < block.y; ++y)
      for (unsigned x = 0; x < block.x; ++x) threads_[i++].index = {x, y, z};
  set_order(count);
  shared_size_ = shared;
  void* memory = nullptr;
  // The exact size, so that AddressSanitizer sees what lies beyond it.
  if (shared && posix_memalign(&memory, 16, shared) != 0) throw std::bad_alloc();
  shared_.reset(static_cast<unsigned char*>(memory));
}

void Runner::run(dim3 grid, dim3 block, size_t shared, const std::function<void()>& body,
                 const char* name) {
  if (running_) {
    fprintf(stderr, "emulated %s: launched from inside a kernel\n", name);
    abort();
  }
  running_ = true;
  active = this;
  body_ = &body;
  name_ = name;
  start(block, shared);
  gridDim = grid;
  blockDim = block;
  bool good = true;
  for (unsigned z = 0; z < grid.z && good; ++z)
    for (unsigned y = 0; y < grid.y && good; ++y)
      for (unsigned x = 0; x < grid.x && good; ++x) {
        blockIdx = {x, y, z};
        good = run_block();
      }
  shared_.reset();
  running_ = false;
}

bool Runner::run_block() {
  if (shared_size_) memset(shared_.get(), 0xFF, shared_size_);
  for (Thread& t : threads_) {
    t.state = State::kNew;
    t.copies.clear();
    t.groups = 0;
  }
  alive_ = static_cast<unsigned>(threads_.size());
  at_barrier_ = 0;
  failed_ = progress_ = false;
  while (alive_ && !failed_) {
    for (unsigned warp : warps_) {
      run_warp(warp);
      if (failed_) break;
    }
    if (alive_ && !failed_ && !release_barrier() && !release_polls()) deadlock();
  }
  if (failed_) abandon();
  return !failed_;
}

// Until all lanes of the warp have ended or wait for other warps.
void Runner::run_warp(unsigned warp) {
  const unsigned first = warp * kLanes;
  const unsigned count = std::min(kLanes, static_cast<unsigned>(threads_.size()) - first);
  do {
    woken_ = false;
    for (unsigned lane : lanes_) {
      if (lane >= count || threads_[first + lane].state > State::kReady) continue;
      resume(first + lane);
      if (failed_) return;
    }
  } while (woken_);
}

void Runner::resume(unsigned number) {
  Thread& t = threads_[number];
  if (t.state == State::kNew) {
    if (free_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>(static_cast<int>(fibers_.size())));
      free_.push_back(fibers_.back().get());
    }
    t.fiber = free_.back();
    free_.pop_back();
    t.state = State::kReady;
  }
  current_ = number;
  threadIdx = t.index;
  t.fiber->resume(&Runner::job);
  if (t.state == State::kDone) free_.push_back(t.fiber);
}

bool Runner::release_barrier() {
  if (at_barrier_ != alive_) return false;
  for (Thread& t : threads_)
    if (t.state == State::kBarrier) t.state = State::kReady;
  at_barrier_ = 0;
  return true;
}

bool Runner::release_polls() {
  if (!progress_) return false;
  progress_ = false;
  for (Thread& t : threads_)
    if (t.state == State::kPolling) t.state = State::kReady;
  return true;
}

void Runner::poll() {
  threads_[current_].state = State::kPolling;
  suspend();
}

void Runner::sync_threads() {
  threads_[current_].state = State::kBarrier;
  ++at_barrier_;
  suspend();
}

void Runner::collective(unsigned mask, void* mine, Finish finish) {
  Thread& self = threads_[current_];
  const unsigned first = current_ / kLanes * kLanes;
  if (!(mask >> (current_ - first) & 1u))
    fail(cudaErrorLaunchFailure, "a lane calls a warp's intrinsic with a mask without itself");
  self.mask = mask;
  self.mine = mine;
  self.finish = finish;
  self.state = State::kCollective;
  void* lanes[kLanes] = {};
  for (unsigned i = 0; i < kLanes; ++i) {
    if (!(mask >> i & 1u)) continue;
    const unsigned number = first + i;
    // An ended lane of the mask never comes: found when nothing else can go on.
    if (number >= threads_.size() || threads_[number].state != State::kCollective) return suspend();
    const Thread& other = threads_[number];
    if (other.mask != mask || other.finish != finish) return suspend();
    lanes[i] = other.mine;
  }
  finish(lanes, mask);
  for (unsigned i = 0; i < kLanes; ++i)
    if (mask >> i & 1u) threads_[first + i].state = State::kReady;
  woken_ = true;
}

void Runner::fail(cudaError_t error, const char* message) {
  fprintf(stderr, "emulated %s, block (%u, %u, %u), thread (%u, %u, %u): %s\n", name_, blockIdx.x,
          blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, message);
  set_fault(error);
  failed_ = true;
  suspend();
  abort();  // nobody resumes a failed block's threads
}

void Runner::deadlock() {
  unsigned barrier = 0, collective = 0, polling = 0, ended = 0;
  for (const Thread& t : threads_) {
    barrier += t.state == State::kBarrier;
    collective += t.state == State::kCollective;
    polling += t.state == State::kPolling;
    ended += t.state == State::kDone;
  }
  fprintf(
      stderr,
      "deadlock: emulated %s, block (%u, %u, %u): %u threads wait in __syncthreads, %u in a "
      "warp's intrinsic for lanes that do not come to it, %u for a barrier in shared memory, %u "
      "have returned\n",
      name_, blockIdx.x, blockIdx.y, blockIdx.z, barrier, collective, polling, ended);
  set_fault(cudaErrorLaunchFailure);
  failed_ = true;
}

// Takes the fibers back from the threads that are in the middle of their work.
void Runner::abandon() {
  for (Thread& t : threads_) {
    if (t.state == State::kNew || t.state == State::kDone) continue;
    t.fiber->reset();
    free_.push_back(t.fiber);
  }
}

bool valid(dim3 grid, dim3 block) {
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return false;
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return false;
  if (block.x > kMaxThreads || block.y > kMaxThreads || block.z > 64) return false;
  return block.x * block.y * block.z <= kMaxThreads;
}

}  // namespace

void launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::function<void()> body,
            const char* name, const void* function) {
  const char* wrong = nullptr;
  cudaError_t error = cudaErrorInvalidConfiguration;
  if (!valid(grid, block)) {
    wrong = "no such grid or block";
  } else if (shared > shared_limit(function)) {
    wrong = "more dynamic shared memory than the function may have (allow_shared)";
    error = cudaErrorInvalidValue;
  }
  if (wrong) {
    fprintf(stderr,
            "emulated %s: grid (%u, %u, %u), block (%u, %u, %u), %zu bytes of shared memory: %s\n",
            name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, wrong);
    set_error(error);
    return;
  }
  enqueue(stream, [=, body = std::move(body)] {
    // Shared memory is there once in the process, so threads of the host take turns.
    static std::mutex one_at_a_time;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    runner().run(grid, block, shared, body, name);
  });
}

unsigned char* dynamic_shared() {
  return active->shared();
}

int lane() {
  return active->lane();
}

void poll() {
  active->poll();
}

void made_progress() {
  active->made_progress();
}

void collective(unsigned mask, void* mine, Finish finish) {
  active->collective(mask, mine, finish);
}

void async_copy(void* to, const void* from) {
  Thread& self = active->current();
  self.copies.push_back({to, from, self.groups});
}

void async_copy_commit() {
  ++active->current().groups;
}

void async_copy_finish(int left) {
  Thread& self = active->current();
  const auto end =
      std::partition_point(self.copies.begin(), self.copies.end(),
                           [&](const Copy& copy) { return copy.group < self.groups - left; });
  for (auto it = self.copies.begin(); it != end; ++it) memcpy(it->to, it->from, 16);
  self.copies.erase(self.copies.begin(), end);
}

void fail_block(cudaError_t error, const char* message) {
  active->fail(error, message);
}

}  // namespace emulate

void __syncthreads() {
  emulate::active->sync_threads();
}
