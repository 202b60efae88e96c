// Products with weights of f32, f16 and bf16, row-exact for every number of rows.
//
// A row of w is taken by a warp, or by all warps of a block where w has few rows. In each step a
// thread takes the 16 bytes of w that are its own by their place in the row, and adds their
// products one by one; then threads are summed by a fixed tree. Bytes are read one value at a time
// where w or x does not lie on multiples of 16, which changes no sum.
//
// A format W tells kType, kRefusal, kBytes of a value, and four(16 bytes, i), which are
// values i to i + 3.
#pragma once

#include "mul_mat_group.cuh"

namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int64_t kFewRows = 1024;  // of w, up to which a block takes a row

// Blocks of a multiprocessor, by the registers that they need.
template <int columns>
constexpr int kBlocksAtOnce = columns <= 2 ? 3 : 2;

// The 16 bytes of a row of n values from value i on, zeros behind its end.
template <class W>
__device__ inline uint4 load_weights(const unsigned char* row, int i, int n, bool wide) {
  constexpr int kEach = 16 / W::kBytes;
  if (wide && i + kEach <= n) return *reinterpret_cast<const uint4*>(row + i * W::kBytes);
  unsigned words[4] = {};
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (i + k >= n) continue;
    if constexpr (W::kBytes == 4)
      words[k] = reinterpret_cast<const unsigned*>(row)[i + k];
    else
      words[k / 2] |= unsigned{reinterpret_cast<const uint16_t*>(row)[i + k]} << k % 2 * 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Four values of a row of `end` values from value i on, zeros behind its end.
__device__ inline float4 load_x(const float* row, int i, int end, bool wide) {
  if (wide && i + 4 <= end) return *reinterpret_cast<const float4*>(row + i);
  const auto at = [=](int k) { return k < end ? row[k] : 0.0f; };
  return make_float4(at(i), at(i + 1), at(i + 2), at(i + 3));
}

struct FloatMatrix {
  const unsigned char* data;
  int64_t row_bytes;
  int rows, k;
};

__device__ inline bool on_16(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// Sums of a thread's products of `rows` rows of w with `columns` rows of x.
template <class W, int columns, int rows, int threads>
__device__ inline void add_products(const unsigned char* const (&w)[rows],
                                    const float* const (&x)[columns], int k, bool wide_w,
                                    bool wide_x, float (&sums)[rows * columns]) {
  constexpr int kEach = 16 / W::kBytes, kStride = threads * kEach;
  constexpr int kSteps = 4 / rows;  // whose weights are read ahead
  for (int first = static_cast<int>(threadIdx.x) % threads * kEach; first < k;
       first += kSteps * kStride) {
    uint4 raw[kSteps][rows];
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int r = 0; r < rows; ++r)
        if (first + s * kStride < k)
          raw[s][r] = load_weights<W>(w[r], first + s * kStride, k, wide_w);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = first + s * kStride;
      if (i >= k) break;
#pragma unroll
      for (int piece = 0; piece < kEach; piece += 4) {
        float4 values[rows];
#pragma unroll
        for (int r = 0; r < rows; ++r) values[r] = W::four(raw[s][r], piece);
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const float4 of_x = load_x(x[c], i + piece, k, wide_x);
#pragma unroll
          for (int r = 0; r < rows; ++r) {
            float& sum = sums[r * columns + c];
            sum = fmaf(values[r].x, of_x.x, sum);
            sum = fmaf(values[r].y, of_x.y, sum);
            sum = fmaf(values[r].z, of_x.z, sum);
            sum = fmaf(values[r].w, of_x.w, sum);
          }
        }
      }
    }
  }
}

// Rows of w, `rows` at a time, with a group of up to `columns` rows of x, by teams of `threads`:
// warps, or the whole block. All threads of the block come here.
template <class W, int columns, int rows, int threads, class Group>
__device__ inline void multiply(const FloatMatrix& w, const Rows& x, const Rows& y,
                                const Group& group) {
  constexpr int kTeams = kThreads / threads, kSums = rows * columns, kShare = kWarp / kSums;
  __shared__ float parts[kWarps][kSums];
  const float* x_rows[columns];
  bool wide_x = true;
#pragma unroll
  for (int c = 0; c < columns; ++c) {
    x_rows[c] = row_at<const float>(x, group.x_row(min(c, group.count - 1)));
    wide_x = wide_x && on_16(x_rows[c]);
  }
  const bool wide_w = on_16(w.data) && w.row_bytes % 16 == 0;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int own = threads == kWarp ? lane / kShare : static_cast<int>(threadIdx.x) % kSums;
  const bool writes =
      (threads == kWarp ? lane % kShare == 0 : threadIdx.x < kSums) && own % columns < group.count;
  float* out = writes ? row_at(y, group.y_row(own % columns)) : nullptr;
  const int step = static_cast<int>(gridDim.y) * kTeams * rows;
  for (int first = static_cast<int>(blockIdx.y) * kTeams * rows; first < w.rows; first += step) {
    const int row = first + (threads == kWarp ? warp * rows : 0);
    const unsigned char* w_rows[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) w_rows[r] = w.data + min(row + r, w.rows - 1) * w.row_bytes;
    float sums[kSums] = {};
    add_products<W, columns, rows, threads>(w_rows, x_rows, w.k, wide_w, wide_x, sums);
    float sum = warp_sums<kSums>(sums);
    if (threads > kWarp) {
      if (lane % kShare == 0) parts[warp][lane / kShare] = sum;
      __syncthreads();
      sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) sum += parts[i][own];
      __syncthreads();
    }
    if (writes && row + own / columns < w.rows) out[row + own / columns] = sum;
  }
}

template <int columns, int threads>
constexpr int kRowsAtOnce = columns == 1 || threads > kWarp ? 1 : 2;

template <class W, int columns, int threads>
__global__ __launch_bounds__(kThreads, kBlocksAtOnce<columns>) void multiply_dense(FloatMatrix w,
                                                                                   Rows x, Rows y,
                                                                                   int64_t count) {
  enter_grid();
  const int64_t first = int64_t{blockIdx.x} * columns;
  const DenseGroup group = {first, static_cast<int>(min(count - first, int64_t{columns}))};
  multiply<W, columns, kRowsAtOnce<columns, threads>, threads>(w, x, y, group);
}

inline FloatMatrix matrix_of(const rr_tensor& w) {
  const int64_t k = w.shape[w.rank - 1];
  return {static_cast<const unsigned char*>(w.data), k * element_bytes(w.dtype),
          static_cast<int>(w.shape[w.rank - 2]), static_cast<int>(k)};
}

inline unsigned blocks_of_rows(const rr_exec* exec, const FloatMatrix& w, int at_once, bool few,
                               int64_t groups) {
  const int64_t teams = few ? 1 : kWarps;
  return row_blocks(exec, blocks_for(w.rows, at_once), teams, groups, 2);
}

template <class W, int columns>
inline void launch_dense(const rr_exec* exec, const FloatMatrix& w, const Rows& x, const Rows& y,
                         int64_t count) {
  const bool few = w.rows <= kFewRows;
  const int64_t groups = blocks_for(count, columns);
  const int at_once = few ? kRowsAtOnce<columns, kThreads> : kRowsAtOnce<columns, kWarp>;
  const dim3 grid(static_cast<unsigned>(groups), blocks_of_rows(exec, w, at_once, few, groups));
  if (few)
    RR_LAUNCH(exec, (multiply_dense<W, columns, kThreads>), grid, kThreads, 0, w, x, y, count);
  else
    RR_LAUNCH(exec, (multiply_dense<W, columns, kWarp>), grid, kThreads, 0, w, x, y, count);
}

template <class W>
void run_dense(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (numel(y) == 0) return;
  const FloatMatrix w = matrix_of(node->inputs[1]);
  const int64_t count = n_rows(x);
  const Rows in = rows_of(x), out = rows_of(y);
  if (count == 1) return launch_dense<W, 1>(exec, w, in, out, count);
  if (count == 2) return launch_dense<W, 2>(exec, w, in, out, count);
  if (count <= 4) return launch_dense<W, 4>(exec, w, in, out, count);
  launch_dense<W, 8>(exec, w, in, out, count);
}

constexpr int kRouteThreads = 256;

__global__ void route_pairs(Routing r) {
  enter_grid();
  route(r);
}

// Of mul_mat_id.
template <class W, int threads>
__global__ __launch_bounds__(kThreads,
                             kBlocksAtOnce<kColumns>) void multiply_tiles(FloatMatrix w, Rows x,
                                                                          Rows y, Routing r,
                                                                          int64_t per_row) {
  enter_grid();
  if (static_cast<int>(blockIdx.x) >= *r.n_tiles) return;
  const Tile& tile = r.tiles[blockIdx.x];
  if (tile.expert < 0) return clear_share(y, tile, w.rows, blockIdx.y, gridDim.y);
  w.data += tile.expert * (w.rows * w.row_bytes);
  const ChosenGroup group = {tile, per_row, tile.count};
  if (tile.count == 1) return multiply<W, 1, 1, threads>(w, x, y, group);
  if (tile.count <= 4) return multiply<W, 4, 1, threads>(w, x, y, group);
  multiply<W, 8, 1, threads>(w, x, y, group);
}

size_t workspace_chosen(const rr_node* node, int32_t) {
  return static_cast<size_t>(routing_bytes(node));
}

template <class W>
void run_chosen(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (numel(y) == 0) return;
  const rr_tensor &of = node->inputs[1], &ids = node->inputs[2];
  const Routing r = routing(exec, ids, of.shape[0], exec->workspace);
  const FloatMatrix w = matrix_of(of);
  const int64_t per_row = r.pairs / n_rows(x), tiles = most_tiles(r.experts, r.pairs);
  const bool few = w.rows <= kFewRows;
  const dim3 grid(static_cast<unsigned>(tiles), blocks_of_rows(exec, w, 1, few, tiles));
  RR_LAUNCH(exec, route_pairs, 1, kRouteThreads, 0, r);
  if (few)
    RR_LAUNCH(exec, (multiply_tiles<W, kThreads>), grid, kThreads, 0, w, rows_of(x), rows_of(y), r,
              per_row);
  else
    RR_LAUNCH(exec, (multiply_tiles<W, kWarp>), grid, kThreads, 0, w, rows_of(x), rows_of(y), r,
              per_row);
}

template <class W>
bool fits(const rr_tensor& w, char* why, size_t size) {
  if (w.dtype != W::kType || w.layout != RR_LAYOUT_PLAIN) return refuse(why, size, W::kRefusal);
  if (!dense(w)) return refuse(why, size, "w needs to be dense");
  for (int i = w.rank - 2; i < w.rank; ++i)
    if (w.shape[i] > INT32_MAX / 8)
      return refuse(why, size, "w has more than 2^28 rows or columns");
  return true;
}

template <class W>
int supports_dense(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  if (w.rank != 2) return refuse(why, size, "w needs rank 2");
  if (!fits<W>(w, why, size)) return 0;
  if (x.dtype != RR_F32 || !dense_tail(x, 1) || !dense_tail(y, 1))
    return refuse(why, size, "x and y need dense f32 rows");
  return 1;
}

template <class W>
int supports_chosen(const rr_node* node, char* why, size_t size) {
  return supports_routing(node, why, size) && fits<W>(node->inputs[1], why, size);
}

}  // namespace

#define RR_FLOAT_PRODUCT(W)                                                                     \
  RR_CUDA_KERNEL(dense_##W, RR_ROW_EXACT, "mul_mat", "cuda", "", 0, supports_dense<W>, nullptr, \
                 run_dense<W>)                                                                  \
  RR_CUDA_KERNEL(chosen_##W, RR_ROW_EXACT, "mul_mat_id", "cuda", "", 0, supports_chosen<W>,     \
                 workspace_chosen, run_chosen<W>)
