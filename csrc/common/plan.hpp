// A compiled graph: nodes with their kernels, tensors as (buffer, offset). Immutable; binding it
// to buffers gives something that runs in one call.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "meeting.hpp"
#include "riverrun.h"
#include "thread_pool.hpp"
#include "weights_ahead.hpp"

namespace riverrun {

// Owns the storage behind an rr_node view.
class NodeData {
 public:
  NodeData(std::string op, std::vector<rr_tensor> inputs, std::vector<rr_tensor> outputs);
  NodeData(const NodeData&) = delete;
  NodeData& operator=(const NodeData&) = delete;

  void add_int(const std::string& name, int64_t value);
  void add_float(const std::string& name, double value);
  void add_text(const std::string& name, const std::string& value);
  void add_ints(const std::string& name, std::vector<int64_t> values);
  // The view; valid while this object lives. Tensors have no data.
  rr_node view() const;
  const std::string& op() const { return op_; }

 private:
  rr_attr& add(const std::string& name, uint32_t kind);

  std::string op_;
  std::vector<rr_tensor> inputs_, outputs_;
  std::vector<rr_attr> attrs_;
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> ints_;
};

struct Location {
  int32_t buffer = -1;  // -1: absent
  int64_t offset = 0;
};

struct PlanNode {
  std::shared_ptr<NodeData> data;
  const rr_kernel* kernel = nullptr;
  std::vector<Location> inputs, outputs;
  std::string label;     // for error messages
  bool rowwise = false;  // axis 0 holds tokens, so that padding may be skipped
};

// Memory that a plan's values lie in. constant: its bytes never change.
struct Buffer {
  char* data;
  int64_t size;
  bool constant = false;
};

class Plan {
 public:
  Plan(std::vector<PlanNode> nodes, int32_t n_buffers, int max_threads);
  const std::vector<PlanNode>& nodes() const { return nodes_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  int32_t tasks(size_t node) const { return tasks_[node]; }
  int max_threads() const { return max_threads_; }
  // For each node its inputs and then its outputs, in these buffers; absent ones have no data.
  // Throws std::invalid_argument when there is not one buffer each, or one or the workspace is
  // shorter than it must be.
  std::vector<std::vector<rr_tensor>> placed(const std::vector<Buffer>& buffers,
                                             int64_t workspace_bytes) const;

 private:
  void need(const rr_tensor& tensor, const Location& at);

  std::vector<PlanNode> nodes_;
  std::vector<int64_t> needed_;
  std::vector<int32_t> tasks_;
  size_t workspace_bytes_ = 0;
  int max_threads_;
};

class BoundPlan {
 public:
  // buffers: one per plan buffer. Throws std::invalid_argument when one is short.
  BoundPlan(std::shared_ptr<const Plan> plan, const std::vector<Buffer>& buffers,
            std::pair<void*, int64_t> workspace);
  // Runs all nodes; rows is the real extent of axis 0 of token tensors. Returns "" or what failed.
  // nanoseconds, when given, receives the time of each node.
  std::string run(ThreadPool& pool, int64_t rows, std::vector<int64_t>* nanoseconds = nullptr);

 private:
  struct Step {
    rr_node view;
    const rr_kernel* kernel;
    int32_t tasks;
    bool rowwise, sync;
    std::vector<WeightStream> weights;   // that it multiplies by
    const WeightStream* next = nullptr;  // the first one of this node, or of the next that has any
  };
  // How many pieces of a thread's own part of a node, and of the next one, in turn, are taken.
  struct alignas(2 * 64) Part {
    std::atomic<int64_t> taken[2] = {};
  };
  static void job(void* self, int thread, int n_threads);
  static void barrier(const rr_exec* exec);
  static void fail(const rr_exec* exec, const char* message);
  static int64_t take(const rr_exec* exec);
  static int64_t take_near(const rr_exec* exec, int64_t n);
  void look_ahead(const std::vector<Buffer>& buffers);
  void run_thread(int thread, int n_threads);

  std::shared_ptr<const Plan> plan_;
  std::vector<std::vector<rr_tensor>> tensors_;
  std::vector<Step> steps_;
  std::pair<void*, int64_t> workspace_;
  Meeting all_;
  Barrier some_;  // of the threads of a node that does not use all
  std::vector<Part> parts_;
  // Handed-out numbers of a node and of the next one, in turn.
  alignas(64) std::atomic<int64_t> taken_[2] = {};
  std::mutex message_lock_;
  std::string message_;
  std::atomic<int64_t> failed_{0};
  std::vector<int64_t>* nanoseconds_ = nullptr;
};

}  // namespace riverrun
