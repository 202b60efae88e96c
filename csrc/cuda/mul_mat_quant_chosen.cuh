// mul_mat_id with weights of block types in the file's own order: as mul_mat_quant.cuh, for the
// pairs of a token and one of its experts. Those of one expert meet its rows together.
#pragma once

#include "expert_products.hpp"
#include "mul_mat_quant.cuh"

namespace {

// Blocks of a multiprocessor with tiles of up to so many columns.
template <int columns>
constexpr int kTileBlocks = columns <= kFewColumns ? 5 : 3;

// Of one token: a pair for each blockIdx.x.
template <class W, bool gated>
__global__ __launch_bounds__(kThreads, (gated ? 5 : kBlocksAtOnce<W, 1>)) void multiply_pairs(
    Matrix w, Quantised x, Rows y, Routing r, int64_t per_row) {
  enter_grid();
  const int pair = static_cast<int>(blockIdx.x);
  const int64_t expert = bucket(r, pair);
  const Tile tile = {0, 1, {pair}};
  if (expert == r.experts) return clear_share(y, tile, w.rows, blockIdx.y, gridDim.y);
  w.advance(expert);
  multiply<W, 1, gated ? 2 : 1, gated>(w, x, y, ChosenGroup{tile, per_row, 1}, own_warp(),
                                       all_warps());
}

// Blocks share out the tiles, and the rows of w of each where there are fewer tiles than blocks.
template <class W, int columns, bool gated>
__global__ __launch_bounds__(kThreads, (kTileBlocks<columns>)) void multiply_tiles(
    const Matrix matrix, Quantised x, Rows y, Routing r, int64_t per_row) {
  enter_grid();
  const int tiles = *r.n_tiles, blocks = static_cast<int>(gridDim.x);
  const int parts = gated ? matrix.rows : (matrix.rows + 1) / 2;
  const int shares = max(1, min(blocks / tiles, (parts + kWarps - 1) / kWarps));
  for (int i = static_cast<int>(blockIdx.x); i < tiles * shares; i += blocks) {
    const Tile& tile = r.tiles[i / shares];
    const int share = i % shares, first = share * kWarps + static_cast<int>(threadIdx.x) / kWarp;
    if (tile.expert < 0) {
      clear_share(y, tile, matrix.rows, share, shares);
      continue;
    }
    Matrix w = matrix;
    w.advance(tile.expert);
    const ChosenGroup group = {tile, per_row, tile.count};
    const int step = shares * kWarps;
    if (tile.count == 1)
      multiply<W, 1, gated ? 2 : 1, gated>(w, x, y, group, first, step);
    else if (columns == kFewColumns || tile.count == 2)
      multiply<W, 2, 2, gated>(w, x, y, group, first, step);
    else if (tile.count <= 4)
      multiply<W, 4, 2, gated>(w, x, y, group, first, step);
    else
      multiply<W, 8, 2, gated>(w, x, y, group, first, step);
  }
}

template <class W>
__global__ void quantise_and_route(Floats x, Quantised out, Routing r) {
  enter_grid();
  if (blockIdx.x == 0) return route(r);
  quantise_part<W::kApart, W::kSums>(x, out,
                                     (int64_t{blockIdx.x} - 1) * kQuantiseThreads + threadIdx.x);
}

template <class W, int columns, bool gated>
void launch_tiles(const rr_exec* exec, const Matrix& w, const Quantised& q, const Rows& y,
                  const Routing& r) {
  const int blocks = cuda(exec).multiprocessors * kTileBlocks<columns>;
  allow_shared(multiply_tiles<W, columns, gated>, kSharedBytes<W, 2>);
  RR_LAUNCH(exec, (multiply_tiles<W, columns, gated>), blocks, kThreads, (kSharedBytes<W, 2>), w, q,
            y, r, r.pairs / q.rows);
}

template <class W, bool gated>
void multiply_chosen(const rr_exec* exec, const riverrun::ChosenProduct& product) {
  const Rows y = rows_of(product.y);
  const Routing r = routing(exec, product.ids, product.w.shape[0], product.routes);
  const Quantised q = quantised<W>(product.x, product.rows);
  const auto of_x = static_cast<unsigned>(quantise_blocks(product.x));
  Matrix w = matrix_of<W>(gated ? *product.gate : product.w);
  if (gated) w.apart = data<const char>(product.w) - data<const char>(*product.gate);
  const bool alone = product.ids.shape[0] == 1;
  if (alone || product.routed)
    RR_LAUNCH(exec, (quantise_rows<W::kApart, W::kSums>), dim3(of_x), kQuantiseThreads, 0,
              floats_of(product.x), q);
  else
    RR_LAUNCH(exec, quantise_and_route<W>, dim3(of_x + 1), kQuantiseThreads, 0,
              floats_of(product.x), q, r);
  if (alone) {
    constexpr int kAtOnce = gated ? 5 : kBlocksAtOnce<W, 1>;
    constexpr int kBytes = kSharedBytes < W, gated ? 2 : 1 > ;
    const dim3 grid(static_cast<unsigned>(r.pairs),
                    row_blocks(exec, w.rows, kWarps, r.pairs, kAtOnce));
    allow_shared(multiply_pairs<W, gated>, kBytes);
    RR_LAUNCH(exec, (multiply_pairs<W, gated>), grid, kThreads, kBytes, w, q, y, r,
              r.pairs / q.rows);
  } else if (r.columns == kFewColumns) {
    launch_tiles<W, kFewColumns, gated>(exec, w, q, y, r);
  } else {
    launch_tiles<W, kColumns, gated>(exec, w, q, y, r);
  }
}

template <class W>
size_t workspace_chosen(const rr_node* node, int32_t n_threads) {
  return static_cast<size_t>(routing_bytes(node)) + workspace_dense<W>(node, n_threads);
}

template <class W>
void run_chosen(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) == 0) return;
  auto* memory = static_cast<char*>(exec->workspace);
  multiply_chosen<W, false>(
      exec, {node->inputs[0], node->inputs[1], node->inputs[2], node->outputs[0], nullptr, memory,
             false, memory + routing_bytes(node)});
}

template <class W>
int supports_chosen(const rr_node* node, char* why, size_t size) {
  const rr_tensor& w = node->inputs[1];
  if (!supports_routing(node, why, size)) return 0;
  if (w.dtype != W::kType || w.layout != RR_LAYOUT_PLAIN) return refuse(why, size, W::kRefusal);
  if (!whole_rows<W>(w)) return refuse(why, size, "w needs dense rows of whole blocks");
  if (!small_enough<W>(node)) return refuse(why, size, "x has more than 4 GiB when quantised");
  return 1;
}

}  // namespace

#define RR_QUANT_PRODUCT(W)                                                                 \
  RR_CUDA_KERNEL(dense_##W, RR_ROW_EXACT, "mul_mat", "cuda", "", 0, supports_dense<W>,      \
                 workspace_dense<W>, run_dense<W>)                                          \
  RR_CUDA_KERNEL(chosen_##W, RR_ROW_EXACT, "mul_mat_id", "cuda", "", 0, supports_chosen<W>, \
                 workspace_chosen<W>, run_chosen<W>)
