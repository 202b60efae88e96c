// argmax and top_k. NaN counts as minus infinity; of equal elements the first one comes first.

#include "kernel.hpp"
#include "native_vec.hpp"

namespace {

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor& x = node->inputs[0];
  if (x.dtype != RR_F32 || !dense_tail(x, 1)) return refuse(why, size, "x needs dense f32 rows");
  if (x.shape[x.rank - 1] > INT32_MAX) return refuse(why, size, "a row exceeds i32 indices");
  return 1;
}

// Each lane keeps its largest element so far and that one's index, 0 while there is none above
// minus infinity.
int32_t first_largest(const float* x, int64_t n) {
  vec best = vec_of(-INFINITY);
  ivec where = {}, index;
  for (int lane = 0; lane < kLanes; ++lane) index[lane] = lane;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const vec v = load_vec(x + i);
    const ivec better = v > best;
    best = better ? v : best;
    where = better ? index : where;
    index += kLanes;
  }
  float top = best[0];
  int32_t at = where[0];
  for (int lane = 1; lane < kLanes; ++lane) {
    if (best[lane] > top || (best[lane] == top && where[lane] < at)) {
      top = best[lane];
      at = where[lane];
    }
  }
  for (; i < n; ++i) {
    if (x[i] > top) {
      top = x[i];
      at = static_cast<int32_t>(i);
    }
  }
  return at;
}

void run_argmax(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  auto* y = static_cast<int32_t*>(node->outputs[0].data);
  const Range rows = split(exec, real_rows(node, x));
  for (int64_t r = rows.begin; r < rows.end; ++r)
    y[r] = first_largest(reinterpret_cast<const float*>(row_ptr(x, r)), x.shape[x.rank - 1]);
}

// Larger means earlier in the result: the value in the order of floats, then the lower index.
uint64_t rank_key(float value, int64_t index) {
  if (!(value == value)) value = -INFINITY;
  if (value == 0.0f) value = 0.0f;  // both zeros are equal
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
  return static_cast<uint64_t>(bits) << 32 | static_cast<uint32_t>(~index);
}

int32_t key_index(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

// Restores the heap (smallest on top) after its element `at` has grown.
void sift_down(uint64_t* heap, int64_t n, int64_t at) {
  const uint64_t moved = heap[at];
  for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
    if (child + 1 < n && heap[child + 1] < heap[child]) ++child;
    if (moved <= heap[child]) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = moved;
}

float heap_bound(const float* x, const uint64_t* heap) {
  const float value = x[key_index(heap[0])];
  return value == value ? value : -INFINITY;
}

// Whether one of 64 elements is above the bound.
bool any_above(const float* x, float bound) {
  ivec above = {};
  for (int i = 0; i < 64; i += kLanes) above |= load_vec(x + i) > bound;
  uint64_t words[kLanes / 2], any = 0;
  memcpy(words, &above, sizeof words);
  for (const uint64_t word : words) any |= word;
  return any != 0;
}

// The k best keys, best first. An element behind the heap's smallest one cannot displace it by
// its index, hence blocks without larger values are passed over.
void select(const float* x, int64_t n, int64_t k, uint64_t* heap) {
  for (int64_t i = 0; i < k; ++i) heap[i] = rank_key(x[i], i);
  for (int64_t i = k / 2; i-- > 0;) sift_down(heap, k, i);
  float bound = heap_bound(x, heap);
  for (int64_t i = k; i < n;) {
    const int64_t end = n - i < 64 ? n : i + 64;
    if (end - i == 64 && !any_above(x + i, bound)) {
      i = end;
      continue;
    }
    for (; i < end; ++i) {
      if (!(x[i] > bound)) continue;
      heap[0] = rank_key(x[i], i);
      sift_down(heap, k, 0);
      bound = heap_bound(x, heap);
    }
  }
  for (int64_t left = k - 1; left > 0; --left) {
    const uint64_t smallest = heap[0];
    heap[0] = heap[left];
    heap[left] = smallest;
    sift_down(heap, left, 0);
  }
}

void run_top_k(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  const int64_t k = attr_int(node, "k", 1), n = x.shape[x.rank - 1];
  auto* values = static_cast<float*>(node->outputs[0].data);
  auto* indices = static_cast<int32_t*>(node->outputs[1].data);
  uint64_t* heap = static_cast<uint64_t*>(exec->workspace) + exec->thread * k;
  const Range rows = split(exec, real_rows(node, x));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* in = reinterpret_cast<const float*>(row_ptr(x, r));
    select(in, n, k, heap);
    for (int64_t i = 0; i < k; ++i) {
      indices[r * k + i] = key_index(heap[i]);
      values[r * k + i] = in[indices[r * k + i]];
    }
  }
}

int supports_top_k(const rr_node* node, char* why, size_t size) {
  const rr_tensor& x = node->inputs[0];
  const int64_t k = attr_int(node, "k", 0);
  if (k < 1 || k > x.shape[x.rank - 1]) return refuse(why, size, "k is not within a row");
  return supports(node, why, size);
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  return static_cast<size_t>(attr_int(node, "k", 1) * n_threads) * sizeof(uint64_t);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& x = node->inputs[0];
  const int64_t rows = n_rows(x);
  return numel(x) < 16384 ? 1 : static_cast<int32_t>(rows < INT32_MAX ? rows : INT32_MAX);
}

}  // namespace

RR_KERNEL(argmax, RR_ROW_EXACT, "argmax", supports, nullptr, tasks, run_argmax)
RR_KERNEL(top_k, RR_ROW_EXACT, "top_k", supports_top_k, workspace, tasks, run_top_k)
