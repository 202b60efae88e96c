// glu_mul_mat and gated_norm_mul_mat: a launch writes what is multiplied, another has the product.
#include "activation.cuh"
#include "fused_inputs.cuh"
#include "fused_products.cuh"

namespace {

enum class Act { kSilu, kGelu, kSigmoid };

struct GluInput {
  HeadRows gate, up;
  unsigned char* out;
  int64_t rows, blocks;
};

template <Act act>
__device__ inline float gated(float gate, float up) {
  if (act == Act::kSilu) return silu(gate) * up;
  if (act == Act::kGelu) return gelu(gate) * up;
  return up * sigmoid(gate);
}

constexpr int kFusedThreads = 128;

// The row and the block of 256 values of this warp; false beyond the last.
struct OwnBlock {
  int64_t row, block;

  __device__ bool find(int64_t rows, int64_t blocks) {
    const int64_t at = int64_t{blockIdx.x} * (kFusedThreads / kWarp) + threadIdx.x / kWarp;
    row = at / blocks;
    block = at - row * blocks;
    return row < rows;
  }
};

template <Act act>
__global__ void __launch_bounds__(kFusedThreads) glu_step_x(GluInput in) {
  release_short_grid();
  await_grid();
  OwnBlock own;
  if (!own.find(in.rows, in.blocks)) return;
  const int64_t at = own.block * kStepBlock + threadIdx.x % kWarp * 8;
  float v[8], up[8];
  load_eight(in.gate.at(own.row, at), v);
  load_eight(in.up.at(own.row, at), up);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = gated<act>(v[i], up[i]);
  write_step_x(in.out, in.blocks, own.row, own.block, v);
}

struct GatedNormInput {
  HeadRows x, gate;
  NormWeight weight;
  unsigned char* out;
  int64_t rows, blocks;
  RmsFactor factor;  // of a head
};

// The factor of a head of which `lanes` neighbouring lanes have eight values each.
template <typename T>
__device__ inline bool head_factor(const float (&v)[8], int lanes, const RmsFactor& of, T& factor) {
  T sum = squares_of<T>(v);
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return of(sum, factor);
}

// Heads of 8 to 256 values, a power of two.
__global__ void __launch_bounds__(kFusedThreads) gated_norm_step_x(GatedNormInput in) {
  release_short_grid();
  await_grid();
  OwnBlock own;
  if (!own.find(in.rows, in.blocks)) return;
  const int64_t at = own.block * kStepBlock + threadIdx.x % kWarp * 8;
  float v[8], gate[8];
  load_eight(in.x.at(own.row, at), v);
  load_eight(in.gate.at(own.row, at), gate);
  const int lanes = in.x.width / 8;
  float weight[8];
  load_eight(in.weight.data + at % in.x.width, weight);
  float factor;
  double wide = 0.0;
  const bool small = head_factor(v, lanes, in.factor, factor);
  if (!__all_sync(kAllLanes, small)) head_factor(v, lanes, in.factor, wide);
  if (small)
    scale_eight(v, factor, weight);
  else
    scale_eight(v, wide, weight);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = silu(gate[i]) * v[i];
  write_step_x(in.out, in.blocks, own.row, own.block, v);
}

int supports_glu(const rr_node* node, char* why, size_t size) {
  if (!in_heads(node->inputs[0]) || !in_heads(node->inputs[1]))
    return refuse(why, size, "gate and up need to be f32 rows of a multiple of 8 values");
  if (!attr_is(node, "act", "silu") && !attr_is(node, "act", "gelu") &&
      !attr_is(node, "act", "sigmoid"))
    return refuse(why, size, "act needs to be silu, gelu or sigmoid");
  return supports_products(node, 2, why, size);
}

dim3 block_grid(int64_t rows, int64_t blocks) {
  return dim3(static_cast<unsigned>(blocks_for(rows * blocks, kFusedThreads / kWarp)));
}

void run_glu(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) == 0) return;
  const int64_t rows = node->outputs[0].shape[0], blocks = fused_width(node) / kStepBlock;
  const GluInput in = {head_rows(node->inputs[0]), head_rows(node->inputs[1]),
                       static_cast<unsigned char*>(exec->workspace), rows, blocks};
  const dim3 grid = block_grid(rows, blocks);
  if (attr_is(node, "act", "silu"))
    RR_LAUNCH(exec, glu_step_x<Act::kSilu>, grid, kFusedThreads, 0, in);
  else if (attr_is(node, "act", "gelu"))
    RR_LAUNCH(exec, glu_step_x<Act::kGelu>, grid, kFusedThreads, 0, in);
  else
    RR_LAUNCH(exec, glu_step_x<Act::kSigmoid>, grid, kFusedThreads, 0, in);
  launch_products(node, exec, 2);
}

int supports_gated_norm(const rr_node* node, char* why, size_t size) {
  const int64_t width = node->inputs[0].shape[2];
  if (!in_heads(node->inputs[0]) || !in_heads(node->inputs[2]))
    return refuse(why, size, "x and gate need to be f32 heads of a multiple of 8 values");
  if (width > kStepBlock || (width & (width - 1)) != 0)
    return refuse(why, size, "heads need to have 8, 16, .. or 256 values");
  if (!dense(node->inputs[1])) return refuse(why, size, "weight needs to be dense");
  return supports_products(node, 3, why, size);
}

void run_gated_norm(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) == 0) return;
  const int64_t rows = node->outputs[0].shape[0], blocks = fused_width(node) / kStepBlock;
  const rr_tensor& x = node->inputs[0];
  const GatedNormInput in = {head_rows(x),
                             head_rows(node->inputs[2]),
                             norm_weight(node->inputs[1]),
                             static_cast<unsigned char*>(exec->workspace),
                             rows,
                             blocks,
                             {x.shape[2], attr_float(node, "eps", 0.0)}};
  RR_LAUNCH(exec, gated_norm_step_x, block_grid(rows, blocks), kFusedThreads, 0, in);
  launch_products(node, exec, 3);
}

}  // namespace

RR_FUSED_KERNEL(glu_mul_mat, "glu_mul_mat", supports_glu, run_glu)
RR_FUSED_KERNEL(gated_norm_mul_mat, "gated_norm_mul_mat", supports_gated_norm, run_gated_norm)
