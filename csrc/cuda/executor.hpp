// A plan bound to memory of one card: copies in, kernels, copies out, recorded once as a CUDA
// graph and replayed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "counters.hpp"
#include "device.hpp"
#include "fault.hpp"
#include "plan.hpp"

namespace riverrun {

// A handle of the CUDA runtime that is destroyed with its owner, also when a constructor throws.
template <class Handle, cudaError_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_) destroy(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  operator Handle() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

// A part of a card's memory.
struct Region {
  std::shared_ptr<CardMemory> memory;
  int64_t offset = 0, size = 0;
  char* data() const { return memory->data() + offset; }
};

// Bytes that go between pinned host memory and the card in every run.
struct Transfer {
  std::shared_ptr<PinnedMemory> host;
  int64_t host_offset;
  Region region;
};

// Results that go to memory of the caller's when the kernels have run; sizes are the same.
struct DeviceCopy {
  Region to, from;
};

class BoundCuda {
 public:
  // regions: one per plan buffer. record: as a CUDA graph; overlap: kernels begin while those
  // before them end, on cards that can. Throws std::invalid_argument when one is short, CudaError
  // when a kernel cannot be launched.
  BoundCuda(std::shared_ptr<const Plan> plan, std::shared_ptr<Card> card,
            std::vector<Region> regions, Region workspace, std::vector<Transfer> uploads,
            std::vector<Transfer> downloads, std::vector<DeviceCopy> copies, bool record,
            bool overlap);
  ~BoundCuda();
  BoundCuda(const BoundCuda&) = delete;
  BoundCuda& operator=(const BoundCuda&) = delete;

  // Puts a run on a stream of the card. Another one than the card's waits for what is on the card's
  // now, and what comes there later waits for the run.
  void start(cudaStream_t on);
  // Waits for the last run that was started. Returns "" or what was wrong with the data of a run.
  std::string finish();
  // One run with the time of each node.
  std::string profile(std::vector<int64_t>& nanoseconds);

  const Card& card() const { return *card_; }
  // How many kernels and memory sets a recorded run launches, copies of inputs and results aside; 0
  // for runs that are not recorded.
  int64_t launches() const { return launches_; }

 private:
  struct Exec : CountingExec {
    std::string* failed;
  };
  static void fail(const rr_exec* exec, const char* message);
  void enqueue(cudaStream_t on, std::vector<cudaEvent_t>* marks = nullptr);
  // alone: nothing of the next node is done with it.
  void launch(size_t node, cudaStream_t on, bool alone);
  void forget(size_t node);
  void record();

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<Card> card_;
  const std::vector<Region> regions_;
  const Region workspace_;
  const std::vector<Transfer> uploads_, downloads_;
  const std::vector<DeviceCopy> copies_;
  const bool overlap_;
  const std::shared_ptr<Fault> fault_;
  CardMemory counters_;
  Prepared prepared_ = {};
  Ended ended_ = {};
  int64_t launches_ = 0;
  std::vector<std::vector<rr_tensor>> tensors_;
  std::vector<rr_node> views_;
  Owned<cudaGraphExec_t, &cudaGraphExecDestroy> graph_;
  Owned<cudaEvent_t, &cudaEventDestroy> done_;
};

}  // namespace riverrun
