// Products with block-quantised weights in the ROWS16 layout: what all formats share.
//
// A weight is cut into groups of 16 rows; a format's own file says how a group's bytes lie. Rows of
// x are quantised once a call to int8 with one f32 scale per 32 values. A tile is one group times
// up to kTile columns (rows of x); every element of a tile is an exact integer sum per block, then
// f32 fused multiply-adds in ascending k, cut at absolute multiples of kChunk. So a row's result
// does not depend on the other rows, nor on threads.
#pragma once

#include "block_types.hpp"
#include "mul_mat_id.hpp"
#include "products.hpp"
#include "quantise.hpp"

namespace {

using riverrun::kProductBlock;
using riverrun::kProductGroup;
using riverrun::kProductRows;
using riverrun::PreparedRows;
using riverrun::ProductRows;

constexpr int kLanes = kProductGroup;
static_assert(kBlock == kProductBlock);
constexpr int64_t kChunk = 1024;  // values of k whose weights stay in the first-level cache
constexpr int64_t kColumns = kProductRows;
constexpr int64_t kPairs = 1024;      // the same of mul_mat_id
constexpr int64_t kManyColumns = 32;  // above: chunks outside, groups inside
static_assert(kSegmentColumns <= kColumns);
// Bytes that weights are asked for in advance. Processors that have AVX2 alone have smaller caches.
constexpr int64_t kNear = kAvx2Alone ? 2048 : 8192, kFar = kAvx2Alone ? 16384 : 32768;
// Bytes of weights and values of x below which one thread finishes the product before two threads
// could synchronise.
constexpr int64_t kSmallWeight = 1 << 16, kSmallRows = 1 << 15;

// One tile's work on blocks [begin, end) of k.
struct TileJob {
  const uint8_t* group;
  const uint8_t* x;  // quantised columns, at block 0
  int64_t blocks;    // of the whole row
  int64_t begin, end;
  float* y[kTile];
  int rows;           // of the group that exist
  bool stream;        // ask for weights in advance,
  int64_t near, far;  // that many bytes ahead: for the first-level cache, and for the second
};

// One core keeps more of the memory system busy with requests at two distances than with either
// alone, and goes on doing so while it computes. STEP is how far apart the far ones are: where the
// arithmetic of a block takes as long as its bytes, every third cache line is best, and the
// hardware's own prefetch does the rest.
template <int BYTES, int STEP>
RR_INLINE void fetch_ahead(const TileJob& job, const uint8_t* at) {
  if (!job.stream) return;
#pragma GCC unroll 64
  for (int i = 0; i < BYTES; i += 64) {
    __builtin_prefetch(at + i + job.near, 0, 3);
    if (i % STEP == 0) __builtin_prefetch(at + i + job.far, 0, 2);
  }
}

template <int C>
RR_INLINE void clear(Floats (&sums)[C]) {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) sums[c] = f_splat(0.0f);
}

// Adds a tile's sums to y, or starts y with them.
template <int C>
RR_INLINE void finish(const Floats* sums, const TileJob& job) {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    Floats sum = sums[c];
    if (job.begin > 0) sum = f_add(f_load_part(job.y[c], job.rows), sum);
    f_store_part(job.y[c], sum, job.rows);
  }
}

// Adds the products of a block whose halves of 16 values have scales of their own, first and
// second; low and high: their weights, of for_tile.
template <class W, int C, class Low, class High>
RR_INLINE void add_scaled_halves(const Low& low, const High& high, Floats first, Floats second,
                                 const XBlock<W, C>& x, Floats (&sums)[C]) {
  const Floats first_taken = surplus(first), second_taken = surplus(second);
  each_part<C>([&](auto part) RR_INLINE_BODY {
    constexpr int kFirst = decltype(part)::kFirst, kN = decltype(part)::kN;
    Ints a[kN], b[kN];
    dots<W::kBits, 4>(
        low, x.q(kFirst, 0), [&](int c) { return i_splat(x.word(0, kFirst + c)); }, a);
    dots<W::kBits, 4>(
        high, x.q(kFirst, 1), [&](int c) { return i_splat(x.word(1, kFirst + c)); }, b);
#pragma GCC unroll 8
    for (int i = 0, c = kFirst; i < kN; ++i, ++c) {
      const Floats both =
          f_add(i_scaled(a[i], first, first_taken), i_scaled(b[i], second, second_taken));
      sums[c] = f_fma(both, f_splat(x.scale(c)), sums[c]);
    }
  });
}

// Each width is a function of its own: inlined into what hands out groups and chunks, the loop of
// one column would lose registers to that, and keep its counters on the stack.
template <class W, int C>
[[gnu::noinline]] void own_tile(const TileJob& job) {
  W::template tile<C>(job);
}

template <class W, int C = kTile>
inline void run_tile(int width, const TileJob& job) {
  if (width == C) return own_tile<W, C>(job);
  if constexpr (C > 1) run_tile<W, C - 1>(width, job);
}

// What a call's threads share: the weight, quantised rows of x, and where their products go.
template <class W>
struct Product {
  const uint8_t* weight;
  int64_t rows, group_bytes;
  Columns<W> columns;
  float* y[kColumns];  // of each column

  Product(const rr_node* node, void* workspace, int64_t first, int64_t n)
      : columns{static_cast<uint8_t*>(workspace), first, n,
                node->inputs[0].shape[node->inputs[0].rank - 1] / kBlock} {
    const rr_tensor &w = node->inputs[1], &out = node->outputs[0];
    weight = static_cast<const uint8_t*>(w.data);
    rows = w.shape[0];
    group_bytes = W::group_bytes(w.shape[1]);
    for (int64_t c = 0; c < n; ++c) y[c] = reinterpret_cast<float*>(row_ptr(out, first + c));
  }

  // One expert's weight and the columns that chose it.
  Product(const Columns<W>& chosen, const uint8_t* matrix, const rr_tensor& out) : columns(chosen) {
    weight = matrix;
    rows = out.shape[out.rank - 1];
    group_bytes = W::group_bytes(columns.blocks * kBlock);
    for (int64_t c = 0; c < columns.n; ++c)
      y[c] = reinterpret_cast<float*>(row_ptr(out, columns.number(c)));
  }

  // A weight beside others of a node.
  Product(const PreparedRows& x, const void* packed, int64_t n_rows, const ProductRows& out)
      : weight(static_cast<const uint8_t*>(packed)),
        rows(n_rows),
        group_bytes(W::group_bytes(x.k)),
        columns{static_cast<uint8_t*>(x.memory), 0, x.n, x.k / kBlock} {
    for (int64_t c = 0; c < x.n; ++c)
      y[c] = reinterpret_cast<float*>(reinterpret_cast<char*>(out.y) + c * out.stride);
  }

  // One chunk of k of one group, times all columns.
  void run_chunk(int64_t group, int64_t chunk) const {
    const int64_t row = group * kLanes, left = rows - row, last = chunk + kChunk / kBlock;
    const bool many = columns.n > kManyColumns;
    TileJob job;
    job.group = weight + group * group_bytes;
    job.blocks = columns.blocks;
    job.begin = chunk;
    job.end = last < job.blocks ? last : job.blocks;
    job.rows = static_cast<int>(left < kLanes ? left : kLanes);
    job.near = many ? group_bytes : kNear;
    job.far = many ? group_bytes : kFar;
    for (int64_t c = 0; c < columns.n; c += kTile) {
      const int width = columns.width(c);
      job.x = columns.tile(c);
      job.stream = c == (many ? kTile : 0);
      for (int i = 0; i < width; ++i) {
        job.y[i] = y[c + i] + row;
        __builtin_prefetch(job.y[i], 1, 3);
      }
      run_tile<W>(width, job);
    }
  }

  void run(Range groups) const {
    const int64_t step = kChunk / kBlock;
    // Few columns: weights are read as one stream. Many: a chunk of x serves all groups.
    if (columns.n <= kManyColumns) {
      for (int64_t g = groups.begin; g < groups.end; ++g)
        for (int64_t at = 0; at < columns.blocks; at += step) run_chunk(g, at);
    } else {
      for (int64_t at = 0; at < columns.blocks; at += step)
        for (int64_t g = groups.begin; g < groups.end; ++g) run_chunk(g, at);
    }
  }
};

template <class W>
void run_quantised(const rr_node* node, const rr_exec* exec) {
  const int64_t n = real_rows(node, node->inputs[0]);
  const int64_t groups = (node->inputs[1].shape[0] + kLanes - 1) / kLanes;
  for (int64_t first = 0; first < n; first += kColumns) {
    const int64_t count = n - first < kColumns ? n - first : kColumns;
    const Product<W> product(node, exec->workspace, first, count);
    if (first > 0) exec->barrier(exec);
    product.columns.quantise(node->inputs[0], split(exec, count * product.columns.blocks));
    exec->barrier(exec);
    const Pieces pieces(exec, groups, 8, first / kColumns);
    for (Range piece; pieces.next(piece);) product.run(piece);
  }
}

template <class W>
int supports_quantised(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  if (w.dtype != W::kType || w.layout != RR_LAYOUT_ROWS16) return refuse(why, size, W::kRefusal);
  if (x.dtype != RR_F32 || !dense_tail(x, 1) || !dense_tail(y, 1))
    return refuse(why, size, "x and y need dense f32 rows");
  if (w.shape[1] % Block<W::kType>::kValues != 0)
    return refuse(why, size, "K needs to be whole blocks");
  return 1;
}

template <class W>
int64_t prepared_bytes(int64_t n, int64_t k) {
  return n * (k / kBlock) * Columns<W>::kRecord;
}

template <class W>
size_t workspace_quantised(const rr_node* node, int32_t) {
  const rr_tensor& x = node->inputs[0];
  const int64_t n = n_rows(x);
  return static_cast<size_t>(prepared_bytes<W>(n < kColumns ? n : kColumns, x.shape[x.rank - 1]));
}

template <class W>
int64_t packed_size(int64_t rows, int64_t cols) {
  return (rows + kLanes - 1) / kLanes * W::group_bytes(cols);
}

template <class W>
int32_t tasks_quantised(const rr_node* node) {
  const rr_tensor& w = node->inputs[1];
  const int64_t n = n_rows(node->inputs[0]), groups = (w.shape[0] + kLanes - 1) / kLanes;
  if (packed_size<W>(w.shape[0], w.shape[1]) < kSmallWeight && n * w.shape[1] < kSmallRows)
    return 1;
  return static_cast<int32_t>(groups > n ? groups : n);
}

template <class W>
void prepare(const PreparedRows& x, int64_t c, const float* values, int64_t begin, int64_t end) {
  const Columns<W> columns = {static_cast<uint8_t*>(x.memory), 0, x.n, x.k / kBlock};
  columns.quantise(c, values, begin, end);
}

template <class W>
void multiply(const PreparedRows& x, const void* weight, int64_t rows, const ProductRows& y,
              int64_t begin, int64_t end) {
  Product<W>(x, weight, rows, y).run({begin, end});
}

// Of mul_mat_id: bytes of quantised columns, all of one part, in whole cache lines.
template <class W>
int64_t chosen_bytes(const rr_node* node) {
  const int64_t pairs = numel(node->inputs[2]), blocks = node->inputs[1].shape[2] / kBlock;
  return ((pairs < kPairs ? pairs : kPairs) * blocks * Columns<W>::kRecord + 63) / 64 * 64;
}

template <class W>
size_t workspace_chosen(const rr_node* node, int32_t n_threads) {
  return static_cast<size_t>(chosen_bytes<W>(node)) +
         static_cast<size_t>(n_threads) * routing_bytes(node);
}

// Products of the pairs of `part`: each expert's columns are quantised for themselves, so that
// they lie together.
template <class W>
struct Chosen {
  const Routing& routing;
  Range part;
  rr_tensor x, w, y;
  uint8_t* memory;

  Columns<W> columns(Segment s) const {
    const int64_t blocks = w.shape[2] / kBlock;
    uint8_t* at = memory + (s.first - part.begin) * blocks * Columns<W>::kRecord;
    return {at, s.first, s.n, blocks, routing.order};
  }

  void quantise(const rr_exec* exec) const {
    const int64_t blocks = w.shape[2] / kBlock;
    const Range units = split(exec, (part.end - part.begin) * blocks);
    routing.each_segment(part, [&](Segment s) {
      const int64_t start = (s.first - part.begin) * blocks, end = start + s.n * blocks;
      const int64_t from = units.begin > start ? units.begin : start;
      const int64_t to = units.end < end ? units.end : end;
      if (from < to) columns(s).quantise(x, {from - start, to - start});
    });
  }

  void run(const rr_exec* exec, int64_t round) const {
    const int64_t expert_bytes = packed_size<W>(w.shape[1], w.shape[2]);
    const int64_t groups = (w.shape[1] + kLanes - 1) / kLanes;
    routing.share(exec, part, groups, round, [&](Segment s, Range mine) {
      const auto* matrix = static_cast<const uint8_t*>(w.data) + s.expert * expert_bytes;
      Product<W>(columns(s), matrix, y).run(mine);
    });
  }
};

template <class W>
void run_chosen(const rr_node* node, const rr_exec* exec) {
  auto* memory = static_cast<uint8_t*>(exec->workspace);
  Routing routing;
  if (!route(
          node, exec,
          memory + chosen_bytes<W>(node) + static_cast<size_t>(exec->thread) * routing_bytes(node),
          &routing))
    return;
  clear_unrouted(node, exec);
  for (int64_t first = 0; first < routing.pairs; first += kPairs) {
    const int64_t left = routing.pairs - first;
    const Chosen<W> chosen = {routing,
                              {first, first + (left < kPairs ? left : kPairs)},
                              rows_of_pairs(node),
                              node->inputs[1],
                              node->outputs[0],
                              memory};
    if (first > 0) exec->barrier(exec);
    chosen.quantise(exec);
    exec->barrier(exec);
    chosen.run(exec, first / kPairs);
  }
}

template <class W>
int supports_chosen(const rr_node* node, char* why, size_t size) {
  const rr_tensor& w = node->inputs[1];
  if (!supports_routing(node, why, size)) return 0;
  if (w.dtype != W::kType || w.layout != RR_LAYOUT_ROWS16) return refuse(why, size, W::kRefusal);
  if (w.shape[2] % Block<W::kType>::kValues != 0)
    return refuse(why, size, "K needs to be whole blocks");
  return 1;
}

template <class W>
int32_t tasks_chosen(const rr_node* node) {
  const rr_tensor& w = node->inputs[1];
  const int64_t weight = most_experts(node) * packed_size<W>(w.shape[1], w.shape[2]);
  const bool small = numel(node->inputs[2]) * w.shape[2] < kSmallRows && weight < kSmallWeight;
  return small ? 1 : INT32_MAX;
}

template <class W>
size_t packed_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(packed_size<W>(rows, cols));
}

// Rows beyond the last are zero: zero scales make zero products.
template <class W>
void pack(const void* plain, void* packed, int64_t rows, int64_t cols) {
  const int64_t blocks = cols / Block<W::kType>::kValues, bytes = blocks * Block<W::kType>::kBytes;
  const uint8_t* from = static_cast<const uint8_t*>(plain);
  uint8_t* to = static_cast<uint8_t*>(packed);
  memset(to, 0, packed_bytes<W>(rows, cols));
  for (int64_t r = 0; r < rows; ++r)
    W::pack_row(from + r * bytes, to + r / kLanes * W::group_bytes(cols), r % kLanes, blocks);
}

// Bytes of a group's leading table of one f16 per row and block, in whole cache lines.
RR_INLINE int64_t scale_table(int64_t blocks) {
  return (blocks * 2 * kLanes + 63) / 64 * 64;
}

}  // namespace

#if RR_PRIORITY == 0
#define RR_QUANTISED_PACKER(W) \
  RR_PACKER(packer, W::kType, RR_LAYOUT_ROWS16, packed_bytes<W>, pack<W>)
#else
#define RR_QUANTISED_PACKER(W)
#endif

#define RR_QUANTISED_PRODUCT(W)                                                               \
  RR_KERNEL(kernel, RR_ROW_EXACT | riverrun::kReadsInParts, "mul_mat", supports_quantised<W>, \
            workspace_quantised<W>, tasks_quantised<W>, run_quantised<W>)                     \
  RR_PRODUCT(product, W::kType, packed_size<W>, prepared_bytes<W>, prepare<W>, multiply<W>)   \
  RR_KERNEL(kernel_id, RR_ROW_EXACT, "mul_mat_id", supports_chosen<W>, workspace_chosen<W>,   \
            tasks_chosen<W>, run_chosen<W>)                                                   \
  RR_QUANTISED_PACKER(W)
