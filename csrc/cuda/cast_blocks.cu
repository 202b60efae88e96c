// cast to block types of 32 values, bit for bit as the codecs encode; one warp a block.
#include "convert.cuh"
#include "encode.cuh"
#include "rows.cuh"

namespace {

constexpr int kThreads = 256, kBlock = 32;

int bytes_of(uint32_t dtype) {
  switch (dtype) {
    case RR_Q8_0:
      return Block<RR_Q8_0>::kBytes;
    case RR_Q5_0:
      return Block<RR_Q5_0>::kBytes;
    case RR_Q4_0:
      return Block<RR_Q4_0>::kBytes;
    default:
      return 0;
  }
}

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const int bytes = bytes_of(y.dtype);
  if (bytes == 0 || !castable(x.dtype))
    return refuse(why, size, "casts f32, f16, bf16 and i32 to q8_0, q5_0 and q4_0 only");
  if (x.rank < 1 || x.shape[x.rank - 1] % kBlock != 0)
    return refuse(why, size, "rows need to be whole blocks");
  if (x.shape[x.rank - 1] > kBlock && y.strides[y.rank - 1] != bytes)
    return refuse(why, size, "y needs dense rows");
  return 1;
}

// n blocks, `width` to a row; elements of x are `step` bytes apart.
struct Blocks {
  Rows x, y;
  int64_t n, width, step;
  uint32_t of;
};

template <uint32_t dtype>
__global__ void encode_blocks(Blocks blocks, Check finite, Check small) {
  enter_grid();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (at >= blocks.n) return;
  const int64_t row = at / blocks.width, b = at % blocks.width;
  const int lane = threadIdx.x % kWarp;
  const char* from = row_at<char>(blocks.x, row) + (b * kBlock + lane) * blocks.step;
  const float value = element(blocks.of, from), end = extreme(value), most = fabsf(end);
  if (encodes<dtype>(most))
    encode<dtype>(value, end, row_at<uint8_t>(blocks.y, row) + b * Block<dtype>::kBytes);
  else if (lane == 0 && most < kMost)
    report(small, b, row);
  else if (lane == 0)
    report(finite, b, row);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const int last = x.rank - 1;
  const Blocks blocks = {rows_of(x),      rows_of(y), numel(x) / kBlock, x.shape[last] / kBlock,
                         x.strides[last], x.dtype};
  if (blocks.n == 0) return;
  const Check finite =
      check(exec, "'x' should be finite and below 1e9, which block %lld of row %lld is not");
  const Check small = check(exec,
                            "'x' should be small enough for a block's f16 scale, which block "
                            "%lld of row %lld is not");
  const dim3 grid(static_cast<unsigned>(blocks_for(blocks.n, kThreads / kWarp)));
  if (y.dtype == RR_Q8_0)
    RR_LAUNCH(exec, encode_blocks<RR_Q8_0>, grid, kThreads, 0, blocks, finite, small);
  else if (y.dtype == RR_Q5_0)
    RR_LAUNCH(exec, encode_blocks<RR_Q5_0>, grid, kThreads, 0, blocks, finite, small);
  else
    RR_LAUNCH(exec, encode_blocks<RR_Q4_0>, grid, kThreads, 0, blocks, finite, small);
}

}  // namespace

RR_CUDA_KERNEL(kernel, RR_ROW_EXACT, "cast", "cuda", "", 0, supports, nullptr, run)
