#include "executor.hpp"

#include <stdio.h>

namespace riverrun {

namespace {

void meet_nobody(const rr_exec*) {}

int64_t take_nothing(const rr_exec*) {
  return 0;
}

int64_t take_none(const rr_exec*, int64_t n) {
  return n;
}

// Bytes from a tensor's start within which all of its elements begin; a little more for their ends.
int64_t span_bytes(const rr_tensor& t) {
  int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) last += (t.shape[i] - 1) * t.strides[i];
  return last + 8;
}

}  // namespace

BoundCuda::BoundCuda(std::shared_ptr<const Plan> plan, std::shared_ptr<Card> card,
                     std::vector<Region> regions, Region workspace, std::vector<Transfer> uploads,
                     std::vector<Transfer> downloads, std::vector<DeviceCopy> copies, bool recorded,
                     bool overlap)
    : plan_(std::move(plan)),
      card_(std::move(card)),
      regions_(std::move(regions)),
      workspace_(std::move(workspace)),
      uploads_(std::move(uploads)),
      downloads_(std::move(downloads)),
      copies_(std::move(copies)),
      overlap_(overlap && card_->overlaps()),
      fault_(card_->fault()),
      counters_(card_, kCounters * sizeof(unsigned)) {
  std::vector<Buffer> buffers;
  for (const Region& r : regions_) buffers.push_back({r.data(), r.size, r.memory->constant()});
  tensors_ = plan_->placed(buffers, workspace_.size);
  const auto& nodes = plan_->nodes();
  for (size_t n = 0; n < nodes.size(); ++n) {
    rr_node view = nodes[n].data->view();
    view.inputs = tensors_[n].data();
    view.outputs = tensors_[n].data() + view.n_inputs;
    views_.push_back(view);
  }
  card_->use();
  if (recorded) record();
  must(cudaEventCreateWithFlags(done_.out(), cudaEventDisableTiming), "making an event");
}

BoundCuda::~BoundCuda() {
  cudaSetDevice(card_->index());
  cudaStreamSynchronize(card_->stream());
}

// Captured in relaxed mode: the first use of a kernel may load its module, with calls that the
// stricter modes forbid while a stream is captured.
void BoundCuda::record() {
  cudaGraph_t graph = nullptr;
  must(cudaStreamBeginCapture(card_->stream(), cudaStreamCaptureModeRelaxed), "recording a graph");
  try {
    enqueue(card_->stream());
  } catch (...) {
    cudaStreamEndCapture(card_->stream(), &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  must(cudaStreamEndCapture(card_->stream(), &graph), "recording a graph");
  size_t nodes = 0;
  cudaGraphGetNodes(graph, nullptr, &nodes);
  launches_ = static_cast<int64_t>(nodes - uploads_.size() - downloads_.size() - copies_.size());
  const cudaError_t status = cudaGraphInstantiate(graph_.out(), graph, 0);
  cudaGraphDestroy(graph);
  must(status, "instantiating a graph");
  must(cudaGraphUpload(graph_, card_->stream()), "uploading a graph");
}

void BoundCuda::fail(const rr_exec* exec, const char* message) {
  *static_cast<Exec*>(static_cast<CudaExec*>(exec->impl))->failed = message;
}

void BoundCuda::launch(size_t n, cudaStream_t on, bool alone) {
  std::string failed;
  Exec own;
  static_cast<CudaExec&>(own) = {on,
                                 fault_.get(),
                                 static_cast<int>(n),
                                 card_->multiprocessors(),
                                 &prepared_,
                                 overlap_,
                                 alone || n + 1 == views_.size() ? nullptr : &views_[n + 1],
                                 &ended_};
  own.counters = reinterpret_cast<unsigned*>(counters_.data());
  own.failed = &failed;
  const rr_exec exec{sizeof(rr_exec),
                     0,
                     1,
                     workspace_.memory ? workspace_.data() : nullptr,
                     static_cast<size_t>(workspace_.size),
                     &meet_nobody,
                     &BoundCuda::fail,
                     static_cast<CudaExec*>(&own),
                     &take_nothing,
                     &take_none};
  const PlanNode& node = plan_->nodes()[n];
  prepared_.used = false;
  node.kernel->run(&views_[n], &exec);
  forget(n);
  if (failed.empty()) return;
  cudaGetLastError();
  throw CudaError(node.data->op() + ": " + failed + " [" + node.label + "]");
}

// What a node may have overwritten is prepared no more: the workspace, or the operand itself.
void BoundCuda::forget(size_t n) {
  if (plan_->nodes()[n].kernel->workspace && !prepared_.used) prepared_.form = 0;
  if (!prepared_.form) return;
  const char* begin = static_cast<const char*>(prepared_.source.data);
  const char* end = begin + span_bytes(prepared_.source);
  for (uint32_t i = 0; i < views_[n].n_outputs; ++i) {
    const rr_tensor& out = views_[n].outputs[i];
    const char* at = static_cast<const char*>(out.data);
    if (at && at < end && at + span_bytes(out) > begin) prepared_.form = 0;
  }
}

void BoundCuda::enqueue(cudaStream_t stream, std::vector<cudaEvent_t>* marks) {
  prepared_.form = 0;
  ended_ = {};
  for (const Transfer& t : uploads_)
    must(cudaMemcpyAsync(t.region.data(), t.host->data() + t.host_offset, t.region.size,
                         cudaMemcpyHostToDevice, stream),
         "copying to the card");
  if (marks) must(cudaEventRecord((*marks)[0], stream), "recording an event");
  for (size_t n = 0; n < views_.size(); ++n) {
    launch(n, stream, marks != nullptr);
    if (marks) must(cudaEventRecord((*marks)[n + 1], stream), "recording an event");
  }
  for (const DeviceCopy& c : copies_)
    must(cudaMemcpyAsync(c.to.data(), c.from.data(), c.to.size, cudaMemcpyDeviceToDevice, stream),
         "copying on the card");
  for (const Transfer& t : downloads_)
    must(cudaMemcpyAsync(t.host->data() + t.host_offset, t.region.data(), t.region.size,
                         cudaMemcpyDeviceToHost, stream),
         "copying from the card");
}

void BoundCuda::start(cudaStream_t on) {
  card_->precede(on);
  if (graph_)
    must(cudaGraphLaunch(graph_, on), "starting a graph");
  else
    enqueue(on);
  must(cudaEventRecord(done_, on), "recording an event");
  if (on != card_->stream())
    must(cudaStreamWaitEvent(card_->stream(), done_, 0), "ordering two streams");
}

std::string BoundCuda::finish() {
  card_->use();
  must(cudaEventSynchronize(done_), "waiting for a run");
  Fault& fault = *fault_;
  if (!fault.set) return "";
  char message[256];
  snprintf(message, sizeof message, fault.message, fault.a, fault.b);
  const size_t at = static_cast<size_t>(fault.node);
  fault = Fault{};
  if (at >= views_.size()) return message;
  const PlanNode& node = plan_->nodes()[at];
  return node.data->op() + ": " + message + " [" + node.label + "]";
}

std::string BoundCuda::profile(std::vector<int64_t>& nanoseconds) {
  card_->use();
  std::vector<cudaEvent_t> marks(views_.size() + 1);
  for (cudaEvent_t& mark : marks) must(cudaEventCreate(&mark), "making an event");
  enqueue(card_->stream(), &marks);
  must(cudaEventRecord(done_, card_->stream()), "recording an event");
  const std::string failed = finish();
  nanoseconds.assign(views_.size(), 0);
  for (size_t n = 0; n < views_.size(); ++n) {
    float ms = 0.0f;
    must(cudaEventElapsedTime(&ms, marks[n], marks[n + 1]), "reading an event");
    nanoseconds[n] = static_cast<int64_t>(ms * 1e6f);
  }
  for (cudaEvent_t mark : marks) cudaEventDestroy(mark);
  return failed;
}

}  // namespace riverrun
