// attention_prepare: a block takes a few heads of one token, a warp each: queries, then keys, then
// values. A head is normalised into shared memory, turned there, and goes from there to where it
// belongs. Where no kernel writes the positions, angles are formed while those before this one end.
#include "ahead.cuh"
#include "attention_pool.cuh"
#include "encode.cuh"
#include "entering.cuh"
#include "rope.cuh"
#include "row_length.cuh"

namespace {

constexpr int kHeads = 8, kThreads = kHeads * kWarp;  // of a block
constexpr int kMostValues = 512;                      // of a head, that a warp normalises
static_assert(kMostValues / 2 <= kThreads, "a thread forms the angle of one pair at most");

// Their places among the inputs.
enum { kQ, kK, kV, kPositions, kIdx, kKeyPool, kValuePool, kQueryNorm, kKeyNorm, kFactors };

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  for (int i = kQ; i <= kV; ++i)
    if (in[i].dtype != RR_F32 || in[i].rank != 3 || !dense_tail(in[i], 1))
      return refuse(why, size, "q, k and v need rank 3 and dense f32 rows");
  if (in[kQ].shape[2] > kMostValues || in[kV].shape[2] > kMostValues)
    return refuse(why, size, "heads of more than 512 values are not taken");
  const char* complaint = turning_complaint(node, in[kQ].shape[2], in[kPositions], in[kFactors]);
  if (*complaint) return refuse(why, size, complaint);
  if (in[kIdx].dtype != RR_I32 || !dense(in[kIdx]))
    return refuse(why, size, "idx needs to be dense i32");
  for (int i = kKeyPool; i <= kValuePool; ++i)
    if (in[i].rank != 3 || !dense_pool(in[i]))
      return refuse(why, size, "the pools need to be dense f32, f16, bf16, q8_0 or q4_0");
  for (int i = kQueryNorm; i <= kKeyNorm; ++i)
    if (present(in[i]) && !dense(in[i])) return refuse(why, size, "norms need to be dense");
  return 1;
}

// Heads of one kind: where they are and go. A pool's rows are those that idx names.
struct Part {
  const float* x;
  int64_t token_step, head_step;  // floats
  int heads, size;
  const float* norm;  // or null
  char* to;
  int64_t row_bytes, head_bytes;
  uint32_t dtype;
};

struct Task {
  Part q, k, v;
  Turning turning;
  Entering entering;
  RootMeanSquare length;
  Check fit;
  int groups;  // of heads, a block each
  bool early;  // no kernel writes positions, idx or factors
};

// A block of 32 values from each run of 32, some at a time, so that none waits for another. False
// where there is a value that blocks cannot hold; then those at hand are left out.
template <uint32_t dtype>
__device__ bool store_blocks(const float* row, int size, char* to) {
  constexpr int kAtOnce = 4;
  bool fits = true;
  for (int begin = 0; begin < size; begin += kAtOnce * kWarp) {
    float x[kAtOnce], end[kAtOnce];
    bool fit = true;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int first = begin + i * kWarp;
      x[i] = first < size ? row[first + threadIdx.x % kWarp] : 0.0f;
      end[i] = extreme_of<dtype>(x[i]);
      fit = fit && encodes<dtype>(fabsf(end[i]));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int first = begin + i * kWarp;
      uint8_t* block = reinterpret_cast<uint8_t*>(to) + first / 32 * Block<dtype>::kBytes;
      if (fit && first < size) encode<dtype>(x[i], end[i], block);
    }
    fits = fits && fit;
  }
  return fits;
}

template <uint32_t dtype>
__device__ void store_plain(const float* row, int size, char* to) {
  for (int e = threadIdx.x % kWarp; e < size; e += kWarp) store<dtype>(to, e, row[e]);
}

// A head's values to where they belong, by the warp that has it.
__device__ bool store_head(uint32_t dtype, const float* row, int size, char* to) {
  switch (dtype) {
    case RR_F32:
      store_plain<RR_F32>(row, size, to);
      return true;
    case RR_F16:
      store_plain<RR_F16>(row, size, to);
      return true;
    case RR_BF16:
      store_plain<RR_BF16>(row, size, to);
      return true;
    case RR_Q8_0:
      return store_blocks<RR_Q8_0>(row, size, to);
    default:
      return store_blocks<RR_Q4_0>(row, size, to);
  }
}

// The pairs of a head, in place.
__device__ void turn(const Turning& t, const float2* turns, float* row) {
  for (int i = threadIdx.x % kWarp; i < t.pairs; i += kWarp) {
    const int first = t.first(i), second = t.second(i);
    const float a = row[first], b = row[second], c = turns[i].x, s = turns[i].y;
    row[first] = a * c - b * s;
    row[second] = a * s + b * c;
  }
}

// Weights come from far away.
__device__ void fetch_weights(const Part& part) {
  if (part.norm) fetch_ahead(part.norm, int64_t{4} * part.size);
}

// The head of this warp, normalised, in shared memory.
__device__ void fetch_head(const Part& part, const RootMeanSquare& length, const float* x,
                           float* to) {
  if (part.norm)
    divide_safely<kWarp>(LengthRow{x, part.norm, to, part.size}, length);
  else
    for (int e = threadIdx.x % kWarp; e < part.size; e += kWarp) to[e] = x[e];
}

__global__ void __launch_bounds__(kThreads) prepare_heads(Task task) {
  __shared__ float2 turns[kMostValues / 2];
  __shared__ __align__(16) float rows[kHeads][kMostValues];
  release_grid();
  const Turning& t = task.turning;
  const int64_t token = blockIdx.x / task.groups;
  const int begin = static_cast<int>(blockIdx.x % task.groups) * kHeads;
  const int pair = threadIdx.x;
  fetch_weights(task.q);
  fetch_weights(task.k);
  if (!task.early) await_grid();
  if (pair < t.pairs) turns[pair] = turned(t, token, pair, turns_each(t, pair));
  const bool enter = begin + kHeads > task.q.heads && enters(task.entering, token);
  if (task.early) await_grid();
  const int turning = task.q.heads + task.k.heads;
  int head = begin + threadIdx.x / kWarp;
  const bool turns_here = head < turning, query = head < task.q.heads;
  const Part part = query ? task.q : turns_here ? task.k : task.v;
  head -= query ? 0 : turns_here ? task.q.heads : turning;
  float* row = rows[threadIdx.x / kWarp];
  if (head < part.heads)
    fetch_head(part, task.length, part.x + token * part.token_step + head * part.head_step, row);
  __syncthreads();
  if (head >= part.heads || !(query || enter)) return;
  if (turns_here) turn(t, turns, row);
  __syncwarp();
  const int64_t place = query ? token : task.entering.idx[token];
  char* to = part.to + place * part.row_bytes + head * part.head_bytes;
  if (!store_head(part.dtype, row, part.size, to) && threadIdx.x % kWarp == 0)
    report(task.fit, token, task.entering.n);
}

Part read_part(const rr_tensor& x, const rr_tensor* norm, const rr_tensor& to) {
  const int64_t head = pool_bytes(to.dtype, to.shape[2]);
  const int64_t bytes = sizeof(float);
  return {data<const float>(x),
          x.strides[0] / bytes,
          x.strides[1] / bytes,
          static_cast<int>(x.shape[1]),
          static_cast<int>(x.shape[2]),
          norm && present(*norm) ? data<const float>(*norm) : nullptr,
          data<char>(to),
          head * to.shape[1],
          head,
          to.dtype};
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor *in = node->inputs, *out = node->outputs;
  const int64_t n = in[kQ].shape[0], heads = in[kQ].shape[1] + 2 * in[kK].shape[1];
  if (n == 0 || heads == 0) return;
  const Task task = {read_part(in[kQ], &in[kQueryNorm], out[0]),
                     read_part(in[kK], &in[kKeyNorm], in[kKeyPool]),
                     read_part(in[kV], nullptr, in[kValuePool]),
                     read_turning(node, in[kPositions], in[kFactors]),
                     entering(exec, in[kIdx], in[kKeyPool].shape[0]),
                     {in[kQ].shape[2], attr_float(node, "eps", 0.0)},
                     check(exec,
                           "'k' and 'v' should be finite and small enough for a block's f16 "
                           "scale, row %lld of %lld is not"),
                     static_cast<int>(blocks_for(heads, kHeads)),
                     in[kPositions].constant && in[kIdx].constant &&
                         (!present(in[kFactors]) || in[kFactors].constant)};
  const dim3 grid(static_cast<unsigned>(n * task.groups));
  RR_LAUNCH(exec, prepare_heads, grid, kThreads, 0, task);
}

}  // namespace

RR_CUDA_KERNEL(attention_prepare, RR_ROW_EXACT, "attention_prepare", "cuda", "", 0, supports,
               nullptr, run)
