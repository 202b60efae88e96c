// sample: a warp a row. Lanes form the weights of 32 candidates at a time; all of them then add
// these up in the candidates' order, so each knows where a sum passes its mark.

#include "ops/sample.hpp"
#include "rows.cuh"

namespace {

struct Sampling {
  Rows logits, ids;
  const int32_t* top_k;
  const double *temperature, *top_p, *min_p;
  const unsigned *seed, *position;
  int32_t* tokens;
  int64_t rows, candidates;
};

// The number in [0, 1) of a seed and a position: Philox4x32-10, see graph/random.py.
__device__ inline double uniform(unsigned seed_low, unsigned seed_high, unsigned position) {
  unsigned c0 = position, c1 = 0, c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ seed_low;
    c1 = low1;
    c2 = high0 ^ c3 ^ seed_high;
    c3 = low0;
    seed_low += 0x9E3779B9u;
    seed_high += 0xBB67AE85u;
  }
  const unsigned long long bits = (static_cast<unsigned long long>(c1) << 32 | c0) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// The first candidates of a row, at a temperature.
struct Weights {
  const float* logits;
  double temperature;

  __device__ double operator()(int64_t i) const {
    const double below = static_cast<double>(logits[i]) - static_cast<double>(logits[0]);
    return below == below ? exp(below / temperature) : 0.0;
  }
};

struct Sums {
  double total;
  int64_t passed;  // the first candidate whose sum reaches the mark, or exceeds it; or -1
  int64_t last;    // the one that brings the sum to what it is
};

// Running sums of n weights, as far as the mark. All lanes of a warp, with the same result.
__device__ inline Sums add_up(const Weights& weight, int64_t n, double mark, bool exceeds) {
  Sums sums = {0.0, -1, 0};
  for (int64_t start = 0; start < n; start += kWarp) {
    const int64_t own = start + threadIdx.x % kWarp;
    const double mine = own < n ? weight(own) : 0.0;
    for (int j = 0; j < kWarp && start + j < n; ++j) {
      const double before = sums.total;
      sums.total += __shfl_sync(kAllLanes, mine, j);
      if (sums.total > before) sums.last = start + j;
      if (exceeds ? sums.total > mark : sums.total >= mark) {
        sums.passed = start + j;
        return sums;
      }
    }
  }
  return sums;
}

__device__ inline double total_of(const Weights& weight, int64_t n) {
  return add_up(weight, n, INFINITY, true).total;
}

// How many of n leading candidates have at least min_p of the first one's weight, but one at least.
__device__ inline int64_t likely(const float* logits, int64_t n, double min_p) {
  const float least = static_cast<float>(static_cast<double>(logits[0]) + log(min_p));
  for (int64_t start = 0; start < n; start += kWarp) {
    const int64_t own = start + threadIdx.x % kWarp;
    const unsigned less = __ballot_sync(kAllLanes, own < n && !(logits[own] >= least));
    if (less == 0) continue;
    const int64_t first = start + __ffs(static_cast<int>(less)) - 1;
    return first < 1 ? 1 : first;
  }
  return n;
}

__device__ inline int64_t chosen(const Sampling& s, int64_t r) {
  const double temperature = s.temperature[r], top_p = s.top_p[r];
  if (!(temperature > 0.0)) return 0;
  const float* logits = row_at<const float>(s.logits, r);
  int64_t n = min(max(static_cast<int64_t>(s.top_k[r]), int64_t{1}), s.candidates);
  if (top_p < 1.0) {
    const Weights weight = {logits, 1.0};
    const int64_t passed = add_up(weight, n, top_p * total_of(weight, n), false).passed;
    if (passed >= 0) n = passed + 1;
  }
  n = likely(logits, n, s.min_p[r]);
  const Weights weight = {logits, temperature};
  const double u = uniform(s.seed[2 * r], s.seed[2 * r + 1], s.position[r]);
  const Sums sums = add_up(weight, n, u * total_of(weight, n), true);
  return sums.passed >= 0 ? sums.passed : sums.last;
}

__global__ void __launch_bounds__(kWarpsOfRows* kWarp) sample_rows(Sampling s) {
  enter_grid();
  const int64_t r = own_row<kWarp>();
  if (r >= s.rows) return;
  const int64_t at = chosen(s, r);
  if (threadIdx.x % kWarp == 0) s.tokens[r] = row_at<const int32_t>(s.ids, r)[at];
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor* in = node->inputs;
  if (numel(in[kLogits]) == 0) return;
  const Sampling s = {rows_of(in[kLogits]),
                      rows_of(in[kIds]),
                      data<const int32_t>(in[kTopK]),
                      data<const double>(in[kTemperature]),
                      data<const double>(in[kTopP]),
                      data<const double>(in[kMinP]),
                      data<const unsigned>(in[kSeed]),
                      data<const unsigned>(in[kPosition]),
                      data<int32_t>(node->outputs[0]),
                      in[kLogits].shape[0],
                      in[kLogits].shape[1]};
  const dim3 grid(static_cast<unsigned>(blocks_for(s.rows, kWarpsOfRows)));
  RR_LAUNCH(exec, sample_rows, grid, kWarpsOfRows * kWarp, 0, s);
}

}  // namespace

RR_CUDA_KERNEL(sample, RR_ROW_EXACT, "sample", "cuda", "", 0, supports, nullptr, run)
