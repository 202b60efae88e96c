// cast to block types of 32 values, bit for bit as the codecs encode.

#include "convert.hpp"
#include "encode.hpp"

namespace {

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const Encoder* e = encoder_of(y.dtype);
  if (e == nullptr || !castable(x.dtype))
    return refuse(why, size, "casts f32, f16, bf16 and i32 to q8_0, q5_0 and q4_0 only");
  if (x.rank < 1 || x.shape[x.rank - 1] % kBlock != 0)
    return refuse(why, size, "rows need to be whole blocks");
  if (x.shape[x.rank - 1] > kBlock && y.strides[y.rank - 1] != e->bytes)
    return refuse(why, size, "y needs dense rows");
  return 1;
}

void report(const rr_exec* exec, const char* what, double value, int64_t row, int64_t block) {
  char message[160];
  snprintf(message, sizeof message, "%s, got %g in block %lld of row %lld", what, value,
           static_cast<long long>(block), static_cast<long long>(row));
  exec->fail(exec, message);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const Encoder* e = encoder_of(y.dtype);
  const int64_t blocks = x.shape[x.rank - 1] / kBlock, step = x.strides[x.rank - 1];
  alignas(64) float values[kChunk];
  const Range part = split(exec, real_rows(node, x) * blocks);
  for (int64_t at = part.begin; at < part.end; ++at) {
    const int64_t r = at / blocks, b = at % blocks;
    gather(x.dtype, row_ptr(x, r) + b * kBlock * step, step, values, kBlock);
    const float most = peak(values, kBlock);
    if (!(most < kMost)) return report(exec, "'x' should be finite and below 1e9", most, r, b);
    if (!e->takes(most))
      return report(exec, "'x' should be small enough for a block's f16 scale", most, r, b);
    e->encode(values, reinterpret_cast<uint8_t*>(row_ptr(y, r)) + b * e->bytes);
  }
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "cast", supports, nullptr, elementwise_tasks, run)
