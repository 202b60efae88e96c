#include "plan.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "products.hpp"

namespace riverrun {

namespace {

constexpr int64_t kNone = INT64_MAX;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_block_type(uint32_t dtype) {
  switch (dtype) {
    case RR_F32:
    case RR_F16:
    case RR_BF16:
    case RR_F64:
    case RR_I8:
    case RR_I16:
    case RR_I32:
    case RR_I64:
    case RR_U8:
      return false;
    default:
      return true;
  }
}

// What a kernel's callbacks need to find their run again.
struct ExecImpl {
  void* bound;
  int64_t step;
  int participants, n_threads;
  int whose;  // part it took pieces of last
  WeightsAhead* ahead;
};

}  // namespace

NodeData::NodeData(std::string op, std::vector<rr_tensor> inputs, std::vector<rr_tensor> outputs)
    : op_(std::move(op)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

rr_attr& NodeData::add(const std::string& name, uint32_t kind) {
  texts_.push_back(std::make_unique<std::string>(name));
  attrs_.push_back(rr_attr{texts_.back()->c_str(), kind, 0, 0, 0.0, nullptr, nullptr});
  return attrs_.back();
}

void NodeData::add_int(const std::string& name, int64_t value) {
  rr_attr& a = add(name, RR_ATTR_INT);
  a.i = value;
  a.f = static_cast<double>(value);
}

void NodeData::add_float(const std::string& name, double value) {
  add(name, RR_ATTR_FLOAT).f = value;
}

void NodeData::add_text(const std::string& name, const std::string& value) {
  auto owned = std::make_unique<std::string>(value);
  add(name, RR_ATTR_TEXT).text = owned->c_str();
  texts_.push_back(std::move(owned));
}

void NodeData::add_ints(const std::string& name, std::vector<int64_t> values) {
  ints_.push_back(std::make_unique<std::vector<int64_t>>(std::move(values)));
  rr_attr& a = add(name, RR_ATTR_INTS);
  a.ints = ints_.back()->data();
  a.count = static_cast<uint32_t>(ints_.back()->size());
}

rr_node NodeData::view() const {
  const int64_t rows = outputs_.empty() || outputs_[0].rank == 0 ? 1 : outputs_[0].shape[0];
  return rr_node{sizeof(rr_node),
                 static_cast<uint32_t>(inputs_.size()),
                 static_cast<uint32_t>(outputs_.size()),
                 static_cast<uint32_t>(attrs_.size()),
                 op_.c_str(),
                 inputs_.data(),
                 outputs_.data(),
                 attrs_.data(),
                 rows};
}

Plan::Plan(std::vector<PlanNode> nodes, int32_t n_buffers, int max_threads)
    : nodes_(std::move(nodes)), needed_(n_buffers, 0), max_threads_(std::max(max_threads, 1)) {
  for (const PlanNode& node : nodes_) {
    const rr_node view = node.data->view();
    if (node.inputs.size() != view.n_inputs || node.outputs.size() != view.n_outputs)
      throw std::invalid_argument(node.label + ": a location is needed for every tensor");
    for (uint32_t i = 0; i < view.n_inputs; ++i) need(view.inputs[i], node.inputs[i]);
    for (uint32_t i = 0; i < view.n_outputs; ++i) need(view.outputs[i], node.outputs[i]);
    if (node.kernel->workspace)
      workspace_bytes_ = std::max(workspace_bytes_, node.kernel->workspace(&view, max_threads));
    const int32_t tasks = node.kernel->tasks ? node.kernel->tasks(&view) : max_threads;
    tasks_.push_back(std::max<int32_t>(1, tasks));
  }
}

void Plan::need(const rr_tensor& tensor, const Location& at) {
  if (tensor.dtype == RR_ABSENT) return;
  if (at.buffer < 0 || at.buffer >= static_cast<int32_t>(needed_.size()) || at.offset < 0)
    throw std::invalid_argument("a tensor lies in no buffer");
  // The bytes of packed weights are their packer's business.
  if (tensor.layout != RR_LAYOUT_PLAIN) return;
  const int strided = is_block_type(tensor.dtype) ? tensor.rank - 1 : tensor.rank;
  int64_t last = 0;
  for (int i = 0; i < tensor.rank; ++i)
    if (tensor.shape[i] == 0) return;
  for (int i = 0; i < strided; ++i) last += (tensor.shape[i] - 1) * tensor.strides[i];
  needed_[at.buffer] = std::max(needed_[at.buffer], at.offset + last + 1);
}

std::vector<std::vector<rr_tensor>> Plan::placed(const std::vector<Buffer>& buffers,
                                                 int64_t workspace_bytes) const {
  if (buffers.size() != needed_.size()) throw std::invalid_argument("one buffer each is needed");
  for (size_t i = 0; i < needed_.size(); ++i)
    if (buffers[i].size < needed_[i])
      throw std::invalid_argument("buffer " + std::to_string(i) + " has " +
                                  std::to_string(buffers[i].size) + " bytes, needs " +
                                  std::to_string(needed_[i]));
  if (workspace_bytes < static_cast<int64_t>(workspace_bytes_))
    throw std::invalid_argument("workspace too small");

  std::vector<std::vector<rr_tensor>> out(nodes_.size());
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const rr_node view = nodes_[n].data->view();
    auto& all = out[n];
    all.assign(view.inputs, view.inputs + view.n_inputs);
    all.insert(all.end(), view.outputs, view.outputs + view.n_outputs);
    for (uint32_t i = 0; i < all.size(); ++i) {
      const Location& at =
          i < view.n_inputs ? nodes_[n].inputs[i] : nodes_[n].outputs[i - view.n_inputs];
      if (at.buffer < 0 || all[i].dtype == RR_ABSENT) continue;
      all[i].data = buffers[at.buffer].data + at.offset;
      all[i].constant = buffers[at.buffer].constant;
    }
  }
  return out;
}

BoundPlan::BoundPlan(std::shared_ptr<const Plan> plan, const std::vector<Buffer>& buffers,
                     std::pair<void*, int64_t> workspace)
    : plan_(std::move(plan)),
      tensors_(plan_->placed(buffers, workspace.second)),
      workspace_(workspace),
      all_(plan_->max_threads()),
      parts_(static_cast<size_t>(plan_->max_threads())) {
  const auto& nodes = plan_->nodes();
  for (size_t n = 0; n < nodes.size(); ++n) {
    Step step{nodes[n].data->view(), nodes[n].kernel, plan_->tasks(n), nodes[n].rowwise, true, {}};
    step.view.inputs = tensors_[n].data();
    step.view.outputs = tensors_[n].data() + step.view.n_inputs;
    steps_.push_back(step);
  }
  // Two single-thread nodes in a row run on the same thread and need no barrier between them.
  for (size_t n = 0; n + 1 < steps_.size(); ++n)
    steps_[n].sync = steps_[n].tasks > 1 || steps_[n + 1].tasks > 1;
  look_ahead(buffers);
}

// Packed weights, which are alone in their buffers. Which experts are chosen is not known before.
void BoundPlan::look_ahead(const std::vector<Buffer>& buffers) {
  const auto& nodes = plan_->nodes();
  for (size_t n = steps_.size(); n-- > 0;) {
    Step& step = steps_[n];
    if (n + 1 < steps_.size()) step.next = steps_[n + 1].next;
    if (!(step.kernel->flags & kReadsInParts) || step.tasks == 1) continue;
    int64_t all = 0;
    for (uint32_t i = 0; i < step.view.n_inputs; ++i) {
      if (step.view.inputs[i].layout == RR_LAYOUT_PLAIN) continue;
      const Buffer& whole = buffers[static_cast<size_t>(nodes[n].inputs[i].buffer)];
      step.weights.push_back({whole.data, whole.size, all, 0, step.tasks, step.next});
      all += whole.size;
    }
    for (size_t i = step.weights.size(); i-- > 0;) {
      step.weights[i].all = all;
      step.weights[i].after = step.next;
      step.next = &step.weights[i];
    }
  }
}

std::string BoundPlan::run(ThreadPool& pool, int64_t rows, std::vector<int64_t>* nanoseconds) {
  for (Step& step : steps_)
    if (step.rowwise) step.view.rows = rows;
  message_.clear();
  failed_.store(kNone);
  taken_[0].store(0);
  for (Part& part : parts_) part.taken[0].store(0, std::memory_order_relaxed);
  all_.reset();  // fork() may have left it in the middle of a run
  some_.reset();
  nanoseconds_ = nanoseconds;
  if (nanoseconds) nanoseconds->assign(steps_.size(), 0);
  if (pool.size() > all_.most()) return "the plan was made for fewer threads";
  try {
    pool.run(&BoundPlan::job, this);
  } catch (const ThreadLimit& limit) {
    return limit.what();
  }
  if (failed_.load() == kNone) return "";
  const PlanNode& node = plan_->nodes()[static_cast<size_t>(failed_.load())];
  return node.data->op() + ": " + message_ + " [" + node.label + "]";
}

void BoundPlan::job(void* self, int thread, int n_threads) {
  static_cast<BoundPlan*>(self)->run_thread(thread, n_threads);
}

void BoundPlan::barrier(const rr_exec* exec) {
  auto* impl = static_cast<ExecImpl*>(exec->impl);
  auto* self = static_cast<BoundPlan*>(impl->bound);
  if (impl->participants == 1) return;
  if (impl->participants < impl->n_threads) return self->some_.wait(impl->participants);
  self->all_.wait(exec->thread, impl->n_threads, [&] { return impl->ahead->step(); });
}

void BoundPlan::fail(const rr_exec* exec, const char* message) {
  auto* impl = static_cast<ExecImpl*>(exec->impl);
  auto* self = static_cast<BoundPlan*>(impl->bound);
  std::lock_guard<std::mutex> lock(self->message_lock_);
  if (self->failed_.load() <= impl->step) return;
  self->message_ = message;
  self->failed_.store(impl->step);
}

int64_t BoundPlan::take(const rr_exec* exec) {
  auto* impl = static_cast<ExecImpl*>(exec->impl);
  auto* self = static_cast<BoundPlan*>(impl->bound);
  return self->taken_[impl->step & 1].fetch_add(1, std::memory_order_relaxed);
}

int64_t BoundPlan::take_near(const rr_exec* exec, int64_t n) {
  auto* impl = static_cast<ExecImpl*>(exec->impl);
  auto& parts = static_cast<BoundPlan*>(impl->bound)->parts_;
  const int parts_of_all = impl->participants;
  for (int passed = 0; passed < parts_of_all; ++passed) {
    const int64_t begin = n * impl->whose / parts_of_all;
    const int64_t size = n * (impl->whose + 1) / parts_of_all - begin;
    std::atomic<int64_t>& taken = parts[static_cast<size_t>(impl->whose)].taken[impl->step & 1];
    // Looked at before it is written to, which takes the line away from whoever has it.
    if (taken.load(std::memory_order_relaxed) < size) {
      const int64_t number = taken.fetch_add(1, std::memory_order_relaxed);
      if (number < size) return begin + number;
    }
    impl->whose = impl->whose + 1 == parts_of_all ? 0 : impl->whose + 1;
  }
  return n;
}

void BoundPlan::run_thread(int thread, int n_threads) {
  WeightsAhead ahead(thread, n_threads);
  ExecImpl impl{this, 0, 1, n_threads, thread, &ahead};
  rr_exec exec{sizeof(rr_exec),
               thread,
               1,
               workspace_.first,
               static_cast<size_t>(workspace_.second),
               &BoundPlan::barrier,
               &BoundPlan::fail,
               &impl,
               &BoundPlan::take,
               &BoundPlan::take_near};
  for (size_t n = 0; n < steps_.size(); ++n) {
    const Step& step = steps_[n];
    const int participants = std::min(step.tasks, n_threads);
    const int64_t began = nanoseconds_ && thread == 0 ? now_ns() : 0;
    // No thread takes numbers of the next node yet: a barrier comes first, or this thread runs it.
    if (thread == 0) taken_[(n + 1) & 1].store(0, std::memory_order_relaxed);
    parts_[static_cast<size_t>(thread)].taken[(n + 1) & 1].store(0, std::memory_order_relaxed);
    // Only nodes of one thread, without a barrier behind them, follow a failure before the next
    // barrier, where all threads return; so leaving them out skips no barrier.
    const bool alive = failed_.load(std::memory_order_acquire) >= static_cast<int64_t>(n);
    if (thread < participants && alive) {
      impl.step = static_cast<int64_t>(n);
      impl.participants = exec.n_threads = participants;
      impl.whose = thread;
      ahead.aim(step.next);
      step.kernel->run(&step.view, &exec);
    }
    if (step.sync && n_threads > 1) {
      ahead.aim(n + 1 < steps_.size() ? steps_[n + 1].next : nullptr);
      all_.wait(thread, n_threads, [&] { return ahead.step(); });
    }
    if (nanoseconds_ && thread == 0) (*nanoseconds_)[n] = now_ns() - began;
    // A failure of a later node, seen early by a slow thread, must not stop it before the others.
    if (step.sync && failed_.load(std::memory_order_acquire) <= static_cast<int64_t>(n)) return;
  }
}

}  // namespace riverrun
