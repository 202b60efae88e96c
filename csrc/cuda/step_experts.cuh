// Experts of steps with weights of block types: products of gate and up at once, and products whose
// weighted sum over a token's experts is formed as they come.
#pragma once

#include "mul_mat_quant_chosen.cuh"

namespace {

constexpr int kSumStages = 8;

template <class W>
constexpr int kSumBytes = kWarps * kSumStages * kStageBytes<W>;

// What a warp fetches next of row after row of w: the spans of the first pair's expert, of the
// second's, ..
template <class W>
struct FetchingPairs {
  const Matrix& w;
  const int* experts;
  int pairs, step, row, pair = 0, begin = 0;

  __device__ const unsigned char* at() const {
    return w.data + (int64_t{experts[pair]} * w.rows + row) * w.row_bytes;
  }

  __device__ void next(unsigned char* stage) {
    if (row < w.rows) {
      const int bytes = min(kSpanBytes<W>, static_cast<int>(w.row_bytes) - begin);
      if (experts[pair] >= 0) fetch<W>(stage, at() + begin, bytes, w.end);
      begin += kSpanBytes<W>;
      if (begin >= w.row_bytes) {
        begin = 0;
        if (++pair == pairs) pair = 0, row += step;
      }
    }
    async_copy_commit();
  }
};

// Of one token, whose pairs have a row of x each. Sums are those of multiply, and are added in the
// order of pairs.
template <class W, int most>
__global__ __launch_bounds__(kThreads, 4) void add_up_pairs(Matrix w, Quantised x, Routing r,
                                                            const float* weights, float* sum) {
  enter_grid();
  __shared__ int experts[most];
  const int lane = threadIdx.x % kWarp, pairs = static_cast<int>(r.pairs);
  for (int p = threadIdx.x; p < pairs; p += kThreads) {
    const int64_t expert = bucket(r, p);
    experts[p] = expert == r.experts ? -1 : static_cast<int>(expert);
  }
  prepare<W>(0);
  __syncthreads();
  constexpr int kRecords = kSpan<W> * kRecordBytes<W::kApart>, kShare = kWarp / most;
  unsigned char* stages = dynamic_shared() + threadIdx.x / kWarp * kSumStages * kStageBytes<W>;
  const int pair = lane / kShare;
  const float weight = pair < pairs && experts[pair] >= 0 ? weights[pair] : 0.0f;
  FetchingPairs<W> fetching = {w, experts, pairs, all_warps(), own_warp()};
#pragma unroll
  for (int s = 0; s < kSumStages; ++s) fetching.next(stages + s * kStageBytes<W>);
  int stage = 0;
  for (int row = own_warp(); row < w.rows; row += all_warps()) {
    float sums[most] = {};
#pragma unroll
    for (int p = 0; p < most; ++p) {
      if (p >= pairs) continue;
      const unsigned none[1] = {};
      const unsigned char* at = x.data + p * x.stride + 16 * lane;
      unsigned shift[1] = {
          static_cast<unsigned>((reinterpret_cast<uintptr_t>(w.data) +
                                 (int64_t{max(experts[p], 0)} * w.rows + row) * w.row_bytes) %
                                16)};
      for (int slices = w.slices; slices > 0; slices -= kSpan<W> * kChunkSlices) {
        async_copy_wait<kSumStages - 1>();
        __syncwarp();
        float own[1] = {sums[p]};
        unsigned char* set = stages + stage * kStageBytes<W>;
        if (experts[p] >= 0) add_span<W, 1, 1>(set, shift, slices, at, none, own);
        sums[p] = own[0];
        __syncwarp();
        fetching.next(set);
        stage = stage + 1 == kSumStages ? 0 : stage + 1;
        at += kRecords;
        if constexpr (!kEven<W>) shift[0] = (shift[0] + kSpanBytes<W>) % 16;
      }
    }
    const float weighted = warp_sums<most>(sums) * weight;
    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < most; ++p)
      if (const float each = __shfl_sync(kAllLanes, weighted, p * kShare); p < pairs) total += each;
    if (lane == 0) sum[row] = total;
  }
}

template <class W>
void add_up_chosen(const rr_exec* exec, const riverrun::SummedProduct& product) {
  const riverrun::ChosenProduct& of = product.of;
  const Routing r = routing(exec, of.ids, of.w.shape[0], of.routes);
  const Quantised q = quantised<W>(of.x, of.rows);
  const Matrix w = matrix_of<W>(of.w);
  RR_LAUNCH(exec, (quantise_rows<W::kApart, W::kSums>),
            dim3(static_cast<unsigned>(quantise_blocks(of.x))), kQuantiseThreads, 0,
            floats_of(of.x), q);
  const dim3 grid(1, row_blocks(exec, w.rows, kWarps, 1, 4));
  const auto launch = [&](auto kernel) {
    allow_shared(kernel, kSumBytes<W>);
    RR_LAUNCH(exec, kernel, grid, kThreads, kSumBytes<W>, w, q, r, product.weights, product.sum);
  };
  if (r.pairs <= 8)
    launch(add_up_pairs<W, 8>);
  else
    launch(add_up_pairs<W, riverrun::kMostSummed>);
}

template <class W>
void multiply_experts(const rr_exec* exec, const riverrun::ChosenProduct& product) {
  product.gate ? multiply_chosen<W, true>(exec, product) : multiply_chosen<W, false>(exec, product);
}

template <class W>
int64_t expert_row_bytes(int64_t rows, int64_t k) {
  return rows * quantised_bytes<W::kApart>(k);
}

template <class W>
bool takes_experts(const rr_tensor& w) {
  return whole_rows<W>(w);
}

}  // namespace

// Beside RR_QUANT_PRODUCT.
#define RR_STEP_EXPERTS(W)                                                             \
  namespace {                                                                          \
  riverrun::StepExperts experts_##W = {W::kType,         expert_row_bytes<W>,          \
                                       takes_experts<W>, multiply_experts<W>,          \
                                       add_up_chosen<W>, nullptr};                     \
  [[maybe_unused]] const int experts_##W##_added = riverrun::add_kernels(experts_##W); \
  }
