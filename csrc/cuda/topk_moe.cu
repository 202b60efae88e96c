// topk_moe: a warp a row. Each lane holds the best of its experts that are not chosen yet; after a
// choice only the lane that lost one looks again. Up to 1024 experts are kept in registers; of
// more, shares are formed anew where they are wanted.

#include "ops/topk_moe.hpp"
#include "rows.cuh"

namespace {

constexpr float kLeastSum = 6.103515625e-5f;  // the smallest normal f16

struct Routing {
  Rows logits, weights, ids;
  const float* bias;  // or null
  int64_t rows, experts, k;
  float scale;
  bool softmax, normalize;
};

// An expert and what it is chosen by; f64 because it may be a sum.
struct Candidate {
  double key;
  int64_t id;

  __device__ bool before(const Candidate& other) const {
    return key > other.key || (key == other.key && id < other.id);
  }
};

// The experts' shares of a row.
struct Shares {
  const float* logits;
  float top, total;  // of softmax
  bool softmax;

  __device__ float operator()(int64_t i) const { return of(logits[i]); }

  __device__ float of(float x) const {
    if (softmax) return expf(x - top) / total;
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
  }
};

__device__ inline Shares shares_of(const Routing& routing, const float* logits) {
  Shares p = {logits, 0.0f, 1.0f, routing.softmax};
  if (!routing.softmax) return p;
  const int lane = threadIdx.x % kWarp;
  float top = -INFINITY, sum = 0.0f;
  for (int64_t i = lane; i < routing.experts; i += kWarp) top = fmaxf(top, logits[i]);
  p.top = warp_max(top);
  for (int64_t i = lane; i < routing.experts; i += kWarp) sum += expf(logits[i] - p.top);
  p.total = warp_sum(sum);
  return p;
}

// The best of this lane's experts that come after `last`.
__device__ inline Candidate best_after(const Routing& routing, const Shares& p, Candidate last) {
  Candidate best = {-INFINITY, INT64_MAX};
  for (int64_t i = threadIdx.x % kWarp; i < routing.experts; i += kWarp) {
    Candidate c = {static_cast<double>(p.logits[i]), i};
    if (routing.bias) c.key = static_cast<double>(p(i)) + static_cast<double>(routing.bias[i]);
    if (!(c.key == c.key)) c.key = -INFINITY;
    if (last.before(c) && c.before(best)) best = c;
  }
  return best;
}

__device__ inline Candidate warp_best(Candidate c) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Candidate other = {__shfl_xor_sync(kAllLanes, c.key, step),
                             __shfl_xor_sync(kAllLanes, c.id, step)};
    if (other.before(c)) c = other;
  }
  return c;
}

__global__ void __launch_bounds__(kWarpsOfRows* kWarp) route(Routing routing) {
  enter_grid();
  const int64_t r = own_row<kWarp>();
  if (r >= routing.rows) return;
  const int lane = threadIdx.x % kWarp;
  const Shares p = shares_of(routing, row_at(routing.logits, r));
  int32_t* ids = row_at<int32_t>(routing.ids, r);
  float* weights = row_at(routing.weights, r);
  Candidate own = best_after(routing, p, {INFINITY, -1});
  float sum = 0.0f;
  for (int64_t j = 0; j < routing.k; ++j) {
    const Candidate chosen = warp_best(own);
    if (routing.normalize) sum += p(chosen.id);
    if (lane == 0) ids[j] = static_cast<int32_t>(chosen.id);
    if (own.id == chosen.id) own = best_after(routing, p, chosen);
  }
  __syncwarp();
  const float whole = !routing.normalize ? 1.0f : sum < kLeastSum ? kLeastSum : sum;
  for (int64_t j = lane; j < routing.k; j += kWarp) weights[j] = p(ids[j]) / whole * routing.scale;
}

// Numbers that are in order as what they are made of is; NaN comes last, 0 is none.
__device__ inline unsigned long long order_of(double key) {
  if (!(key == key)) key = -INFINITY;
  key += 0.0;  // one zero
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(key));
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}

// A lane's experts: lane, lane + 32, .., `each` of them at most.
template <int each>
struct Kept {
  unsigned long long key[each], best;
  float share[each], best_share;
  int best_at;

  // The first of the largest.
  __device__ void look() {
    best = 0;
    best_at = 0;
    best_share = 0.0f;
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (key[i] > best) best = key[i], best_at = i, best_share = share[i];
  }

  __device__ void drop() {
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (i == best_at) key[i] = 0;
    look();
  }

  // The expert with the largest key of all lanes' best, the lowest of several.
  __device__ int choose() const {
    const auto high = static_cast<unsigned>(best >> 32), low = static_cast<unsigned>(best);
    const unsigned most = __reduce_max_sync(kAllLanes, high);
    const unsigned rest = __reduce_max_sync(kAllLanes, high == most ? low : 0);
    const bool mine = high == most && low == rest;
    const unsigned expert = threadIdx.x % kWarp + best_at * kWarp;
    return static_cast<int>(~__reduce_max_sync(kAllLanes, mine ? ~expert : 0));
  }
};

// With k up to 32: lane j has the one chosen after j others.
template <int each>
__global__ void __launch_bounds__(kWarpsOfRows* kWarp) route_kept(Routing routing) {
  enter_grid();
  const int64_t r = own_row<kWarp>();
  if (r >= routing.rows) return;
  const int lane = threadIdx.x % kWarp, experts = static_cast<int>(routing.experts);
  const float* logits = row_at(routing.logits, r);
  float x[each];
  Shares p = {logits, -INFINITY, 0.0f, routing.softmax};
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int e = lane + i * kWarp;
    x[i] = e < experts ? logits[e] : -INFINITY;
    p.top = fmaxf(p.top, x[i]);
  }
  p.top = warp_max(p.top);
  Kept<each> own;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int e = lane + i * kWarp;
    if (routing.softmax && e < experts) p.total += expf(x[i] - p.top);
  }
  p.total = warp_sum(p.total);
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int e = lane + i * kWarp;
    own.share[i] = p.of(x[i]);
    double key = static_cast<double>(x[i]);
    if (routing.bias && e < experts)
      key = static_cast<double>(own.share[i]) + static_cast<double>(routing.bias[e]);
    own.key[i] = e < experts ? order_of(key) : 0;
  }
  own.look();
  int id = 0;
  float share = 0.0f, sum = 0.0f;
  for (int j = 0; j < static_cast<int>(routing.k); ++j) {
    const int chosen = own.choose();
    const float of_chosen = __shfl_sync(kAllLanes, own.best_share, chosen % kWarp);
    sum += of_chosen;
    if (lane == j) id = chosen, share = of_chosen;
    if (lane == chosen % kWarp) own.drop();
  }
  if (lane >= routing.k) return;
  const float whole = !routing.normalize ? 1.0f : sum < kLeastSum ? kLeastSum : sum;
  row_at<int32_t>(routing.ids, r)[lane] = id;
  row_at(routing.weights, r)[lane] = share / whole * routing.scale;
}

void launch(const rr_exec* exec, const Routing& routing) {
  const dim3 grid(static_cast<unsigned>(blocks_for(routing.rows, kWarpsOfRows)));
  constexpr int kThreads = kWarpsOfRows * kWarp;
  if (routing.k > kWarp || routing.experts > 32 * kWarp)
    RR_LAUNCH(exec, route, grid, kThreads, 0, routing);
  else if (routing.experts <= 4 * kWarp)
    RR_LAUNCH(exec, route_kept<4>, grid, kThreads, 0, routing);
  else if (routing.experts <= 16 * kWarp)
    RR_LAUNCH(exec, route_kept<16>, grid, kThreads, 0, routing);
  else
    RR_LAUNCH(exec, route_kept<32>, grid, kThreads, 0, routing);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &bias = node->inputs[1];
  if (numel(x) == 0) return;
  const Routing routing = {rows_of(x),
                           rows_of(node->outputs[0]),
                           rows_of(node->outputs[1]),
                           present(bias) ? data<const float>(bias) : nullptr,
                           x.shape[0],
                           x.shape[1],
                           attr_int(node, "k", 1),
                           static_cast<float>(attr_float(node, "scale", 1.0)),
                           attr_is(node, "gating", "softmax"),
                           attr_int(node, "normalize", 0) != 0};
  launch(exec, routing);
}

}  // namespace

RR_CUDA_KERNEL(topk_moe, RR_ROW_EXACT, "topk_moe", "cuda", "", 0, supports, nullptr, run)
