// ssm_conv and ssm_conv_silu: a thread takes a channel through a piece of a sequence, its window in
// registers. The thread with a sequence's first piece, which alone reads the old tail, also writes
// the new ones; so a piece is never shorter than a tail.
#include "activation.cuh"
#include "ops/ssm_conv.hpp"
#include "ssm_conv.cuh"

namespace {

constexpr int kThreads = 128;
constexpr int kResident = 6;            // blocks that a multiprocessor has room for, at least
constexpr int64_t kMostBlocks = 32768;  // along an axis of the grid
constexpr int kPiece = 16;              // tokens, where the taps are known before

struct Task {
  const float *x, *w;
  float* y;
  int64_t x_stride, y_stride;  // floats from row to row
  int64_t channels;
  int taps, piece;
  bool at_once;  // all blocks run at the same time
  Sequences all;
};

__device__ inline Line<float> line_of(const Task& task, const Pass& pass, int b, int64_t c) {
  return line_from<float>(task.x + task.all.batch.first(b) * task.x_stride, task.x_stride,
                          task.channels, task.all.kept, task.all.replay, pass, b, task.taps, c);
}

// kTaps: 0 where the number is not known before; kSilu: y is what silu makes of the sums.
template <int kTaps, bool kSilu>
__device__ inline void convolve(const Task& task, const Line<float>& line, float* y, int begin,
                                int end) {
  const float* w = task.w + line.c * task.taps;
  if constexpr (kTaps == 0) {
    for (int i = begin; i < end; ++i) {
      float sum = 0.0f;
      for (int t = 0; t < task.taps; ++t) sum = fmaf(w[t], line(i - task.taps + 1 + t), sum);
      y[i * task.y_stride] = kSilu ? silu(sum) : sum;
    }
  } else {
    float tap[kTaps], window[kTaps], ahead[kPiece];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) tap[t] = w[t];
#pragma unroll
    for (int t = 0; t + 1 < kTaps; ++t) window[t + 1] = line(begin - kTaps + 1 + t);
#pragma unroll
    for (int i = 0; i < kPiece; ++i)
      ahead[i] = begin + i < end ? line.x[(begin + i) * line.x_stride] : 0.0f;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (begin + i >= end) break;
#pragma unroll
      for (int t = 0; t + 1 < kTaps; ++t) window[t] = window[t + 1];
      window[kTaps - 1] = ahead[i];
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < kTaps; ++t) sum = fmaf(tap[t], window[t], sum);
      y[(begin + i) * task.y_stride] = kSilu ? silu(sum) : sum;
    }
  }
}

__device__ inline void log_inputs(const Task& task, const Line<float>& line, const Pass& pass,
                                  int begin, int end) {
  const int first = begin > pass.direct ? begin : pass.direct;
  for (int t = first; t < end; ++t)
    task.all.replay.place(task.all.kept, pass, line.b, t)[line.c] = line(t);
}

__device__ inline void clear_padding(const Task& task, int64_t c) {
  for (int64_t i = task.all.batch.tokens() + blockIdx.y; i < task.all.batch.rows; i += gridDim.y)
    task.y[i * task.y_stride + c] = 0.0f;
}

// A sequence and which of its pieces; b < 0 for none. First come the first pieces of all, which
// sequences without tokens have, too.
struct Place {
  int b, piece;
};

__device__ inline Place place_of(const Batch& batch, int size, int index) {
  if (index < batch.count) return {index, 0};
  index -= batch.count;
  for (int b = 0; b < batch.count; ++b) {
    const int length = batch.length(b), more = length > size ? (length - 1) / size : 0;
    if (index < more) return {b, index + 1};
    index -= more;
  }
  return {-1, 0};
}

// Brings the weights of a block's channels closer, and the old tail of the sequence that it begins.
__device__ inline void fetch_operands(const Task& task, const Place& place) {
  const int64_t c = int64_t{blockIdx.x} * kThreads, left = task.channels - c;
  const int64_t bytes = int64_t{4} * (left < kThreads ? left : kThreads);
  fetch_ahead(task.w + c * task.taps, bytes * task.taps);
  if (place.b < 0 || place.piece > 0) return;
  const Kept& kept = task.all.kept;
  const float* tail = kept.plane(place.b, kept.source(place.b)) + c;
  for (int t = 0; t + 1 < task.taps; ++t) fetch_ahead(tail + t * task.channels, bytes);
}

// blockIdx: a group of channels, and the number of a piece.
template <int kTaps, bool kSilu>
__global__ void __launch_bounds__(kThreads, kResident) convolve_pieces(Task task) {
  if (task.at_once) release_all();
  const bool fits = begin_entering(task.all);
  const Batch& batch = task.all.batch;
  const int index = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y);
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const Place place = fits ? place_of(batch, task.piece, index) : Place{-1, 0};
  if (task.all.early) fetch_operands(task, place);
  const int b = place.b < 0 ? 0 : place.b;
  const Pass pass = place.b < 0 ? Pass{} : task.all.replay.pass(batch, b);
  const Line<float> line = fits ? line_of(task, pass, b, c) : Line<float>{};
  finish_entering(task.all);
  if (!fits || c >= task.channels) return;
  clear_padding(task, c);
  if (pass.idle()) return;
  float* y = task.y + batch.first(b) * task.y_stride + c;
  const int begin = place.piece * task.piece;
  const int end = pass.tokens - begin < task.piece ? pass.tokens : begin + task.piece;
  convolve<kTaps, kSilu>(task, line, y, begin, end);
  log_inputs(task, line, pass, begin, end);
  if (place.piece == 0) store_tails<kTaps>(task.all.kept, line, pass);
}

template <bool kSilu>
void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor *in = node->inputs, &y = node->outputs[0];
  const int64_t bytes = sizeof(float), rows = in[0].shape[0], channels = in[0].shape[1];
  const int taps = static_cast<int>(in[1].shape[1]), piece = taps > kPiece ? taps : kPiece;
  Task task = {data<const float>(in[0]),
               data<const float>(in[1]),
               data<float>(y),
               in[0].strides[0] / bytes,
               y.strides[0] / bytes,
               channels,
               taps,
               piece,
               false,
               read_sequences(exec, in[2], rows, in[3], in[4], in[5], in[6], in + 7)};
  const int64_t pieces = task.all.batch.count + (rows > 0 ? (rows - 1) / piece : 0);
  const int64_t deep = blocks_for(pieces, kMostBlocks), wide = blocks_for(channels, kThreads);
  const dim3 grid(static_cast<unsigned>(wide), static_cast<unsigned>(blocks_for(pieces, deep)),
                  static_cast<unsigned>(deep));
  task.at_once = wide * pieces <= int64_t{kResident} * cuda(exec).multiprocessors;
  switch (taps) {
    case 2:
      RR_LAUNCH(exec, (convolve_pieces<2, kSilu>), grid, kThreads, 0, task);
      break;
    case 3:
      RR_LAUNCH(exec, (convolve_pieces<3, kSilu>), grid, kThreads, 0, task);
      break;
    case 4:
      RR_LAUNCH(exec, (convolve_pieces<4, kSilu>), grid, kThreads, 0, task);
      break;
    default:
      RR_LAUNCH(exec, (convolve_pieces<0, kSilu>), grid, kThreads, 0, task);
  }
}

}  // namespace

RR_CUDA_KERNEL(ssm_conv, RR_ROW_EXACT, "ssm_conv", "cuda", "", 0, supports, nullptr, run<false>)
RR_CUDA_KERNEL(ssm_conv_silu, RR_ROW_EXACT, "ssm_conv_silu", "cuda", "", 0, supports, nullptr,
               run<true>)
