#include "streams.hpp"

#include <chrono>
#include <mutex>

using emulate::set_error;

namespace {

using Work = std::vector<std::function<void()>>;

// What the streams that take part in one capture record together.
struct Capture {
  Work work;
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool invalid = false, ended = false;
};

using Clock = std::chrono::steady_clock;

// Captures that this thread began and that have not ended.
thread_local std::vector<std::shared_ptr<Capture>> captures;

}  // namespace

struct CUstream_st {
  int device;
  std::shared_ptr<Capture> capture;

  Capture* capturing() const { return capture && !capture->ended ? capture.get() : nullptr; }
};

struct CUevent_st {
  unsigned flags;
  bool recorded;
  Clock::time_point at;
  std::shared_ptr<Capture> capture;
};

struct CUgraph_st {
  Work work;
};

struct CUgraphExec_st {
  std::shared_ptr<const Work> work;
};

namespace {

Capture* capturing(cudaStream_t stream) {
  return stream ? stream->capturing() : nullptr;
}

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.invalid = true;
  return set_error(error);
}

void run(const Work& work) {
  for (const auto& step : work) step();
}

}  // namespace

namespace emulate {

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  Capture* capture = capturing(stream);
  if (!capture) {
    // The default stream waits for the others, which a capture cannot record.
    if (!stream)
      if (const cudaError_t error = forbid_capture()) return error;
    work();
    return cudaSuccess;
  }
  if (capture->invalid) return set_error(cudaErrorStreamCaptureInvalidated);
  capture->work.push_back(std::move(work));
  return cudaSuccess;
}

cudaError_t forbid_capture() {
  cudaError_t error = cudaSuccess;
  for (const auto& capture : captures)
    if (!capture->ended && capture->mode != cudaStreamCaptureModeRelaxed)
      error = invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  return error;
}

}  // namespace emulate

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st{emulate::current_device(), nullptr};
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!stream) return set_error(cudaErrorInvalidResourceHandle);
  if (stream->capturing() && stream->capture->origin == stream) stream->capture->ended = true;
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (Capture* capture = capturing(stream))
    return invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  if (!stream)
    if (const cudaError_t error = emulate::forbid_capture()) return error;
  return emulate::fault();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return emulate::enqueue(stream, [=] { function(data); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (!stream) return set_error(cudaErrorStreamCaptureUnsupported);
  if (stream->capturing()) return set_error(cudaErrorInvalidValue);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  captures.push_back(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  Capture* capture = capturing(stream);
  if (!capture) return set_error(cudaErrorInvalidValue);
  if (capture->origin != stream) return invalidate(*capture, cudaErrorStreamCaptureUnmatched);
  const std::shared_ptr<Capture> ended = std::move(stream->capture);
  ended->ended = true;
  captures.erase(std::remove(captures.begin(), captures.end(), ended), captures.end());
  if (ended->invalid) return set_error(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(ended->work)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Capture* capture = capturing(stream);
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (!graph) return set_error(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{std::make_shared<const Work>(graph->work)};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
  return exec ? cudaSuccess : set_error(cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (!exec) return set_error(cudaErrorInvalidValue);
  return emulate::enqueue(stream, [work = exec->work] { run(*work); });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (!graph || !count) return set_error(cudaErrorInvalidValue);
  if (nodes) return set_error(cudaErrorNotSupported);
  *count = graph->work.size();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{flags, false, {}, nullptr};
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

// In a capture the event marks a place of the graph only: as in CUDA, its time is not to be had.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!event) return set_error(cudaErrorInvalidResourceHandle);
  if (Capture* capture = capturing(stream)) {
    if (capture->invalid) return set_error(cudaErrorStreamCaptureInvalidated);
    event->capture = stream->capture;
    return cudaSuccess;
  }
  event->capture = nullptr;
  event->recorded = true;
  event->at = Clock::now();
  return cudaSuccess;
}

// A stream that waits for an event of a capture joins it; order is that of the calls.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!event) return set_error(cudaErrorInvalidResourceHandle);
  if (!event->capture) {
    // The graph would not know what the stream is to wait for.
    Capture* capture = capturing(stream);
    if (capture && event->recorded) return invalidate(*capture, cudaErrorStreamCaptureIsolation);
    return cudaSuccess;
  }
  if (event->capture->ended) return set_error(cudaErrorCapturedEvent);
  if (!stream) return invalidate(*event->capture, cudaErrorStreamCaptureImplicit);
  if (!stream->capturing()) stream->capture = event->capture;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!event) return set_error(cudaErrorInvalidResourceHandle);
  if (event->capture && !event->capture->ended)
    return invalidate(*event->capture, cudaErrorCapturedEvent);
  return emulate::fault();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return cudaEventSynchronize(event);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const unsigned flags = from && to ? from->flags | to->flags : cudaEventDisableTiming;
  if (flags & cudaEventDisableTiming || !from->recorded || !to->recorded)
    return set_error(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
