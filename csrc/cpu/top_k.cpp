// top_k: the maxima of groups of elements give a bound that k elements reach, and the few that do
// pass through a heap. With fewer rows than threads a row goes in pieces, whose best are merged.

#include "ops/top_k.hpp"

#include "kernel.hpp"
#include "native_vec.hpp"

namespace {

constexpr int64_t kDepth = 32;  // elements of a group, which is a lane of a block
constexpr int64_t kBlock = kDepth * kLanes;
constexpr int64_t kSlice = 64;  // elements that are compared before one is looked at
// Elements of a piece of a row at least: reading them takes as long as a barrier. One thread merges
// the pieces of a row.
constexpr int64_t kPiece = 16384, kMostPieces = 8;
// The bound is the k-th largest of the maxima of 4 k groups: some 1.15 k elements reach it where
// their order is random, and with more groups finding it takes longer than what that saves.
constexpr int64_t kGroups = 4;

// Larger means earlier in the result: NaN, then larger values, of equals the lower index.
uint64_t rank_key(float value, int64_t index) {
  if (value == 0.0f) value = 0.0f;  // both zeros are equal
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = value == value ? bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u) : 0xffffffffu;
  return static_cast<uint64_t>(bits) << 32 | static_cast<uint32_t>(~index);
}

int32_t key_index(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

// Of a key whose value is no NaN.
float key_value(uint64_t key) {
  uint32_t bits = static_cast<uint32_t>(key >> 32);
  bits ^= bits >> 31 ? 0x80000000u : 0xffffffffu;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
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

void make_heap(uint64_t* heap, int64_t n) {
  for (int64_t i = n / 2; i-- > 0;) sift_down(heap, n, i);
}

void sort_heap(uint64_t* heap, int64_t n) {
  for (int64_t left = n - 1; left > 0; --left) {
    const uint64_t smallest = heap[0];
    heap[0] = heap[left];
    heap[left] = smallest;
    sift_down(heap, left, 0);
  }
}

bool any(ivec lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)lanes, (__m256i)lanes);
#else
  uint64_t words[kLanes / 2], found = 0;
  memcpy(words, &lanes, sizeof words);
  for (const uint64_t word : words) found |= word;
  return found != 0;
#endif
}

// Whether one of n elements, whole vectors, is above the bound, or equal to it where that counts.
bool any_above(const float* x, int64_t n, float bound, bool or_equal) {
  ivec above = {};
  if (or_equal)
    for (int64_t i = 0; i < n; i += kLanes) above |= load_vec(x + i) >= bound;
  else
    for (int64_t i = 0; i < n; i += kLanes) above |= load_vec(x + i) > bound;
  return any(above);
}

// The k best keys of elements without NaN that are offered by ascending index. Until there are k,
// those from the bound up are taken; then it is the smallest one taken, and an equal one behind it
// comes too late.
struct Best {
  uint64_t* heap;
  int64_t k;
  float bound;
  int64_t count = 0;

  bool wants(const float* x, int64_t n) const { return any_above(x, n, bound, count < k); }

  void offer(float value, int64_t index) {
    if (count == k) {
      if (!(value > bound)) return;
      heap[0] = rank_key(value, index);
      sift_down(heap, k, 0);
    } else {
      if (!(value >= bound)) return;
      heap[count++] = rank_key(value, index);
      if (count < k) return;
      make_heap(heap, k);
    }
    bound = key_value(heap[0]);
  }

  void offer(const float* x, int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + kSlice <= end; i += kSlice) {
      if (!wants(x + i, kSlice)) continue;
      for (int64_t j = i; j < i + kSlice; j += kLanes)
        if (wants(x + j, kLanes))
          for (int64_t lane = j; lane < j + kLanes; ++lane) offer(x[lane], lane);
    }
    for (; i < end; ++i) offer(x[i], i);
  }
};

// maxima: [blocks, kLanes], each lane's of each block. Returns whether an element is NaN; it counts
// in no maximum.
bool group_maxima(const float* x, int64_t blocks, float* maxima) {
  ivec nan = {};
  for (int64_t b = 0; b < blocks; ++b, x += kBlock) {
    vec most[4];
    for (vec& lanes : most) lanes = vec_of(-INFINITY);
    for (int64_t i = 0; i < kBlock; i += 4 * kLanes) {
      for (int j = 0; j < 4; ++j) {
        const vec v = load_vec(x + i + j * kLanes);
        most[j] = v > most[j] ? v : most[j];
        nan |= v != v;
      }
    }
    for (int j = 1; j < 4; ++j) most[0] = most[j] > most[0] ? most[j] : most[0];
    store_vec(maxima + b * kLanes, most[0]);
  }
  return any(nan);
}

// Floats that `bound_of` needs for merged groups.
int64_t merged_floats(int64_t k) {
  return kGroups * k + kLanes;
}

// A value that k elements at least reach, or minus infinity where there are too few groups.
float bound_of(const float* maxima, int64_t blocks, int64_t k, float* merged, uint64_t* heap) {
  if (blocks * kLanes < 2 * k) return -INFINITY;
  const int64_t wanted = (kGroups * k + kLanes - 1) / kLanes;
  const int64_t across = wanted < blocks ? wanted : blocks;
  memcpy(merged, maxima, static_cast<size_t>(across * kLanes) * sizeof(float));
  for (int64_t b = across, to = 0; b < blocks; ++b, to = to + 1 < across ? to + 1 : 0) {
    const vec v = load_vec(maxima + b * kLanes), most = load_vec(merged + to * kLanes);
    store_vec(merged + to * kLanes, v > most ? v : most);
  }
  Best best = {heap, k, -INFINITY};
  best.offer(merged, 0, across * kLanes);
  return best.bound;
}

// The k best keys of elements begin .. end - 1, unsorted, whatever they are.
void select_any(const float* x, int64_t begin, int64_t end, int64_t k, uint64_t* heap) {
  for (int64_t i = 0; i < k; ++i) heap[i] = rank_key(x[begin + i], begin + i);
  make_heap(heap, k);
  for (int64_t i = begin + k; i < end; ++i) {
    const uint64_t key = rank_key(x[i], i);
    if (key < heap[0]) continue;
    heap[0] = key;
    sift_down(heap, k, 0);
  }
}

// The k best keys of elements begin .. end - 1, best first. work: work_floats() of them.
void select(const float* x, int64_t begin, int64_t end, int64_t k, float* work, uint64_t* heap) {
  const int64_t blocks = (end - begin) / kBlock, rest = begin + blocks * kBlock;
  float* maxima = work + merged_floats(k);
  bool nan = group_maxima(x + begin, blocks, maxima);
  for (int64_t i = rest; i < end; ++i) nan |= x[i] != x[i];
  if (nan) {
    select_any(x, begin, end, k, heap);
  } else {
    Best best = {heap, k, bound_of(maxima, blocks, k, work, heap)};
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = begin + b * kBlock;
      if (best.wants(maxima + b * kLanes, kLanes)) best.offer(x, first, first + kBlock);
    }
    best.offer(x, rest, end);
  }
  sort_heap(heap, k);
}

// The k best of the pieces' keys, [pieces, k], best first.
template <typename Put>
void merge(const uint64_t* keys, int64_t pieces, int64_t k, const Put& put) {
  const uint64_t* heads[kMostPieces];
  for (int64_t p = 0; p < pieces; ++p) heads[p] = keys + p * k;
  for (int64_t i = 0; i < k; ++i) {
    // No list is used up before k keys are taken.
    int64_t from = 0;
    for (int64_t p = 1; p < pieces; ++p)
      if (*heads[p] > *heads[from]) from = p;
    put(i, *heads[from]++);
  }
}

int64_t most_pieces(int64_t n, int64_t k) {
  const int64_t least = kPiece > kGroups * k ? kPiece : kGroups * k, pieces = n / least;
  return pieces < 1 ? 1 : pieces < kMostPieces ? pieces : kMostPieces;
}

int64_t work_floats(int64_t n, int64_t k) {
  return merged_floats(k) + n / kBlock * kLanes;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  const int64_t k = attr_int(node, "k", 1), n = x.shape[x.rank - 1], rows = real_rows(node, x);
  if (rows == 0) return;
  const int64_t most = most_pieces(n, k), fair = exec->n_threads / rows;
  const int64_t pieces = fair < 1 ? 1 : fair < most ? fair : most;
  auto* keys = static_cast<uint64_t*>(exec->workspace);
  float* work = reinterpret_cast<float*>(keys + exec->n_threads * k);
  work += exec->thread * work_floats(n, k);
  const auto row = [&](int64_t r) { return reinterpret_cast<const float*>(row_ptr(x, r)); };
  const auto finish = [&](int64_t r, const uint64_t* found, int64_t lists) {
    float* values = static_cast<float*>(node->outputs[0].data) + r * k;
    int32_t* indices = static_cast<int32_t*>(node->outputs[1].data) + r * k;
    const float* in = row(r);
    merge(found, lists, k, [&](int64_t i, uint64_t key) {
      indices[i] = key_index(key);
      values[i] = in[indices[i]];
    });
  };
  const Range own = split(exec, rows * pieces);
  for (int64_t i = own.begin; i < own.end; ++i) {
    const int64_t r = i / pieces, p = i % pieces;
    uint64_t* found = keys + (pieces == 1 ? exec->thread : i) * k;
    select(row(r), n * p / pieces, n * (p + 1) / pieces, k, work, found);
    if (pieces == 1) finish(r, found, 1);
  }
  if (pieces == 1) return;
  exec->barrier(exec);
  const Range merged = split(exec, rows);
  for (int64_t r = merged.begin; r < merged.end; ++r) finish(r, keys + r * pieces * k, pieces);
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  const rr_tensor& x = node->inputs[0];
  const int64_t k = attr_int(node, "k", 1), n = x.shape[x.rank - 1];
  const size_t keys = static_cast<size_t>(k) * sizeof(uint64_t);
  const size_t work = static_cast<size_t>(work_floats(n, k)) * sizeof(float);
  return static_cast<size_t>(n_threads) * (keys + work);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& x = node->inputs[0];
  if (numel(x) < kPiece) return 1;
  const int64_t all = n_rows(x) * most_pieces(x.shape[x.rank - 1], attr_int(node, "k", 1));
  return static_cast<int32_t>(all < INT32_MAX ? all : INT32_MAX);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "top_k", supports, workspace, tasks, run)
