// mul_mat with f32, f16 and bf16 weights in the ROWS16 layout: groups of 16 rows, [k][row].
//
// A tile is up to four groups times up to kTile rows of x, one running sum each, in ascending k,
// cut at absolute multiples of kChunk: a row's result does not depend on the tile it is in.

#include "kernel.hpp"
#include "lanes.hpp"
#include "mul_mat_id.hpp"
#include "products.hpp"

namespace {

using riverrun::kProductBlock;
using riverrun::PreparedRows;
using riverrun::ProductRows;

constexpr int kLanes = riverrun::kProductGroup;
constexpr int64_t kChunk = 512;  // values of k whose weights stay in cache
constexpr int64_t kColumns = riverrun::kProductRows;
constexpr int64_t kManyColumns = 32;  // above: chunks outside, groups inside
static_assert(kSegmentColumns <= kColumns);
// Bytes of weights, alone and times rows of x, that one thread is through with before two have met.
constexpr int64_t kSmallWeight = 1 << 16, kSmallWork = 1 << 20;

// Running sums that the registers hold, and rows of x in a tile.
#if defined(__AVX512BW__)
constexpr int kSums = 16, kTile = 8;
#else
constexpr int kSums = 4, kTile = 4;
#endif

struct F32 {
  static constexpr uint32_t kType = RR_F32;
  static constexpr const char* kRefusal = "w is not packed f32";
  static constexpr int64_t kBytes = 4;
  RR_INLINE static Floats load(const uint8_t* p) { return f_load(p); }
};

struct F16 {
  static constexpr uint32_t kType = RR_F16;
  static constexpr const char* kRefusal = "w is not packed f16";
  static constexpr int64_t kBytes = 2;
  RR_INLINE static Floats load(const uint8_t* p) { return f_from_f16(p); }
};

struct BF16 {
  static constexpr uint32_t kType = RR_BF16;
  static constexpr const char* kRefusal = "w is not packed bf16";
  static constexpr int64_t kBytes = 2;
  RR_INLINE static Floats load(const uint8_t* p) { return f_from_bf16(p); }
};

struct TileJob {
  const uint8_t* groups;  // the first group's weights, at begin
  int64_t group_bytes;
  int64_t begin, end;  // of k
  const float* x[kTile];
  float* y[kTile];
  int64_t rows;  // that exist from the first group's first on
  bool stream;   // the weights come from memory
};

// Steps of k from k on.
template <class W, int R, int C, int STEPS>
RR_INLINE void advance(const TileJob& job, const uint8_t* at, int64_t k, Floats (&sums)[R][C]) {
#pragma GCC unroll 8
  for (int s = 0; s < STEPS; ++s) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Floats w = W::load(at + r * job.group_bytes + s * kLanes * W::kBytes);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r][c] = f_fma(w, f_splat(job.x[c][k + s]), sums[r][c]);
    }
  }
}

template <class W, int R, int C>
void tile(const TileJob& job) {
  constexpr int kSteps = 4;
  constexpr int64_t kBytes = kLanes * W::kBytes;
  Floats sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[r][c] = f_splat(0.0f);
  const uint8_t* at = job.groups;
  int64_t k = job.begin;
  for (; k + kSteps <= job.end; k += kSteps, at += kSteps * kBytes) {
    if (job.stream)
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < kSteps * kBytes; i += 64) {
          __builtin_prefetch(at + r * job.group_bytes + i + 2048, 0, 3);
          __builtin_prefetch(at + r * job.group_bytes + i + 16384, 0, 2);
        }
    advance<W, R, C, kSteps>(job, at, k, sums);
  }
  for (; k < job.end; ++k, at += kBytes) advance<W, R, C, 1>(job, at, k, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const int64_t left = job.rows - r * kLanes;
    const int rows = static_cast<int>(left < kLanes ? left : kLanes);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      float* y = job.y[c] + r * kLanes;
      Floats sum = sums[r][c];
      if (job.begin > 0) sum = f_add(f_load_part(y, rows), sum);
      f_store_part(y, sum, rows);
    }
  }
}

// Groups of a tile with `width` rows of x.
inline int64_t groups_at_once(int64_t width) {
  const int64_t fit = kSums / width;
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

template <class W, int C = kTile>
inline void run_tile(int64_t groups, int64_t width, const TileJob& job) {
  if (width == C) {
    if (groups == 1) return tile<W, 1, C>(job);
    if constexpr (kSums / C >= 2)
      if (groups == 2) return tile<W, 2, C>(job);
    if constexpr (kSums / C >= 4) return tile<W, 4, C>(job);
  }
  if constexpr (C > 1) run_tile<W, C - 1>(groups, width, job);
}

template <class W>
size_t packed_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>((rows + kLanes - 1) / kLanes * kLanes * cols * W::kBytes);
}

// What a call's threads share: the weight, and rows of x and y.
template <class W>
struct Product {
  const uint8_t* weight;
  int64_t rows, k, group_bytes, n;
  const float* x[kColumns];
  float* y[kColumns];

  Product(const rr_node* node, int64_t first, int64_t count) : n(count) {
    const rr_tensor& w = node->inputs[1];
    weight = static_cast<const uint8_t*>(w.data);
    rows = w.shape[0];
    k = w.shape[1];
    group_bytes = k * kLanes * W::kBytes;
    for (int64_t c = 0; c < n; ++c) {
      x[c] = reinterpret_cast<const float*>(row_ptr(node->inputs[0], first + c));
      y[c] = reinterpret_cast<float*>(row_ptr(node->outputs[0], first + c));
    }
  }

  // One expert's weight and the rows of x that chose it.
  Product(const rr_tensor& of_pairs, const rr_tensor& w, const rr_tensor& out,
          const Routing& routing, Segment s)
      : rows(w.shape[1]), k(w.shape[2]), group_bytes(k * kLanes * W::kBytes), n(s.n) {
    weight = static_cast<const uint8_t*>(w.data) +
             s.expert * static_cast<int64_t>(packed_bytes<W>(rows, k));
    for (int64_t c = 0; c < n; ++c) {
      const int64_t pair = routing.order[s.first + c];
      x[c] = reinterpret_cast<const float*>(row_ptr(of_pairs, pair));
      y[c] = reinterpret_cast<float*>(row_ptr(out, pair));
    }
  }

  // A weight beside others of a node.
  Product(const PreparedRows& of, const void* packed, int64_t n_rows, const ProductRows& out)
      : weight(static_cast<const uint8_t*>(packed)),
        rows(n_rows),
        k(of.k),
        group_bytes(k * kLanes * W::kBytes),
        n(of.n) {
    for (int64_t c = 0; c < n; ++c) {
      x[c] = static_cast<const float*>(of.memory) + c * k;
      y[c] = reinterpret_cast<float*>(reinterpret_cast<char*>(out.y) + c * out.stride);
    }
  }

  // One chunk of k of up to four groups, times all rows of x.
  void run_chunk(Range groups, int64_t begin) const {
    TileJob job;
    job.group_bytes = group_bytes;
    job.begin = begin;
    job.end = begin + kChunk < k ? begin + kChunk : k;
    for (int64_t c = 0; c < n; c += kTile) {
      const int64_t width = n - c < kTile ? n - c : kTile;
      job.stream = c == 0;
      for (int64_t g = groups.begin; g < groups.end;) {
        int64_t count = groups_at_once(width);
        while (count > groups.end - g) count /= 2;
        job.groups = weight + g * group_bytes + begin * kLanes * W::kBytes;
        job.rows = rows - g * kLanes;
        for (int64_t i = 0; i < width; ++i) {
          job.x[i] = x[c + i];
          job.y[i] = y[c + i] + g * kLanes;
        }
        run_tile<W>(count, width, job);
        g += count;
      }
    }
  }

  // Few rows of x: weights are read as streams. Many: a chunk of x serves all groups.
  void run(Range groups) const {
    const auto four = [&](int64_t g) { return Range{g, g + 4 < groups.end ? g + 4 : groups.end}; };
    if (n <= kManyColumns) {
      for (int64_t g = groups.begin; g < groups.end; g += 4)
        for (int64_t at = 0; at < k; at += kChunk) run_chunk(four(g), at);
    } else {
      for (int64_t at = 0; at < k; at += kChunk)
        for (int64_t g = groups.begin; g < groups.end; g += 4) run_chunk(four(g), at);
    }
  }
};

template <class W>
void run(const rr_node* node, const rr_exec* exec) {
  const int64_t n = real_rows(node, node->inputs[0]);
  const Pieces pieces(exec, (node->inputs[1].shape[0] + kLanes - 1) / kLanes);
  for (Range piece; pieces.next(piece);)
    for (int64_t first = 0; first < n; first += kColumns)
      Product<W>(node, first, n - first < kColumns ? n - first : kColumns).run(piece);
}

template <class W>
int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  if (w.dtype != W::kType || w.layout != RR_LAYOUT_ROWS16) return refuse(why, size, W::kRefusal);
  if (x.dtype != RR_F32 || !dense_tail(x, 1) || !dense_tail(y, 1))
    return refuse(why, size, "x and y need dense f32 rows");
  return 1;
}

template <class W>
int32_t tasks(const rr_node* node) {
  const rr_tensor& w = node->inputs[1];
  const int64_t n = n_rows(node->inputs[0]), size = (w.shape[0] + kLanes) * w.shape[1] * W::kBytes;
  if (size < kSmallWeight && n * size < kSmallWork) return 1;
  return static_cast<int32_t>((w.shape[0] + kLanes - 1) / kLanes);
}

template <class W>
int64_t weight_bytes(int64_t rows, int64_t k) {
  return static_cast<int64_t>(packed_bytes<W>(rows, k));
}

int64_t prepared_bytes(int64_t n, int64_t k) {
  return n * k * static_cast<int64_t>(sizeof(float));
}

void prepare(const PreparedRows& x, int64_t c, const float* values, int64_t begin, int64_t end) {
  memcpy(static_cast<float*>(x.memory) + c * x.k + begin * kProductBlock, values,
         static_cast<size_t>((end - begin) * kProductBlock) * sizeof(float));
}

template <class W>
void multiply(const PreparedRows& x, const void* weight, int64_t rows, const ProductRows& y,
              int64_t begin, int64_t end) {
  Product<W>(x, weight, rows, y).run({begin, end});
}

template <class W>
void run_chosen(const rr_node* node, const rr_exec* exec) {
  const rr_tensor x = rows_of_pairs(node);
  const rr_tensor& w = node->inputs[1];
  Routing routing;
  char* memory = static_cast<char*>(exec->workspace);
  memory += static_cast<size_t>(exec->thread) * routing_bytes(node);
  if (!route(node, exec, memory, &routing)) return;
  clear_unrouted(node, exec);
  const Range all = {0, routing.pairs};
  routing.share(exec, all, (w.shape[1] + kLanes - 1) / kLanes, 0, [&](Segment s, Range groups) {
    Product<W>(x, w, node->outputs[0], routing, s).run(groups);
  });
}

template <class W>
int supports_chosen(const rr_node* node, char* why, size_t size) {
  const rr_tensor& w = node->inputs[1];
  if (!supports_routing(node, why, size)) return 0;
  if (w.dtype != W::kType || w.layout != RR_LAYOUT_ROWS16) return refuse(why, size, W::kRefusal);
  return 1;
}

size_t workspace_chosen(const rr_node* node, int32_t n_threads) {
  return static_cast<size_t>(n_threads) * routing_bytes(node);
}

template <class W>
int32_t tasks_chosen(const rr_node* node) {
  const rr_tensor& w = node->inputs[1];
  const int64_t size = (w.shape[1] + kLanes) * w.shape[2] * W::kBytes;
  const bool small = numel(node->inputs[2]) * size < kSmallWork;
  return small && most_experts(node) * size < kSmallWeight ? 1 : INT32_MAX;
}

// Rows beyond the last are zero.
template <class W>
void pack(const void* plain, void* packed, int64_t rows, int64_t cols) {
  const char* from = static_cast<const char*>(plain);
  char* to = static_cast<char*>(packed);
  memset(to, 0, packed_bytes<W>(rows, cols));
  for (int64_t r = 0; r < rows; ++r) {
    char* out = to + (r / kLanes * kLanes * cols + r % kLanes) * W::kBytes;
    for (int64_t k = 0; k < cols; ++k, from += W::kBytes)
      memcpy(out + k * kLanes * W::kBytes, from, W::kBytes);
  }
}

}  // namespace

#define RR_FLOAT_PRODUCT(id, W)                                                                    \
  RR_KERNEL(id, RR_ROW_EXACT | riverrun::kReadsInParts, "mul_mat", supports<W>, nullptr, tasks<W>, \
            run<W>)                                                                                \
  RR_KERNEL(id##_id, RR_ROW_EXACT, "mul_mat_id", supports_chosen<W>, workspace_chosen,             \
            tasks_chosen<W>, run_chosen<W>)                                                        \
  RR_PRODUCT(id##_part, W::kType, weight_bytes<W>, prepared_bytes, prepare, multiply<W>)

RR_FLOAT_PRODUCT(f32, F32)
RR_FLOAT_PRODUCT(f16, F16)
RR_FLOAT_PRODUCT(bf16, BF16)
#if RR_PRIORITY == 0
RR_PACKER(pack_f32, RR_F32, RR_LAYOUT_ROWS16, packed_bytes<F32>, pack<F32>)
RR_PACKER(pack_f16, RR_F16, RR_LAYOUT_ROWS16, packed_bytes<F16>, pack<F16>)
RR_PACKER(pack_bf16, RR_BF16, RR_LAYOUT_ROWS16, packed_bytes<BF16>, pack<BF16>)
#endif
