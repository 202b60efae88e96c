// cont and cast: copies to row-major order and to other element types.

#include "ops/cont.hpp"

#include "convert.hpp"

namespace {

void run_cont(const rr_node* node, const rr_exec* exec) {
  copy_elements(node->outputs[0], node->inputs[0], node->rows, exec);
}

// Towards zero, held to the range of i32; NaN gives 0.
int32_t to_i32(float x) {
  if (!(x == x)) return 0;
  if (x >= 2147483648.0f) return INT32_MAX;
  if (x < -2147483648.0f) return INT32_MIN;
  return static_cast<int32_t>(x);
}

void encode(uint32_t dtype, const float* from, void* to, int64_t n) {
  auto* half = static_cast<uint16_t*>(to);
  auto* whole = static_cast<int32_t*>(to);
  for (int64_t i = 0; i < n; i += 16) {
    if (dtype == RR_F32)
      store16(static_cast<float*>(to) + i, load16(from + i));
    else if (dtype == RR_F16)
      store16_f16(half + i, load16(from + i));
    else if (dtype == RR_BF16)
      for (int64_t j = i; j < i + 16; ++j) half[j] = f32_to_bf16(from[j]);
    else
      for (int64_t j = i; j < i + 16; ++j) whole[j] = to_i32(from[j]);
  }
}

void run_cast(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (x.dtype == y.dtype) return copy_elements(y, x, node->rows, exec);
  const rr_tensor* of[] = {&y, &x};
  const Walk walk = make_walk(of, 2, node->rows);
  const int64_t y_bytes = element_bytes(y.dtype);
  each_run<2>(walk, split(exec, walk.size, 64), [&](char** p, const int64_t* step, int64_t n) {
    alignas(64) char raw[kChunk * 4];
    alignas(64) float wide[kChunk];
    char* const packed = raw;
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t part = n - i < kChunk ? n - i : kChunk;
      gather(x.dtype, p[1] + i * step[1], step[1], wide, part);
      encode(y.dtype, wide, raw, part);
      char* const out[] = {p[0] + i * step[0], packed};
      const int64_t out_step[] = {step[0], y_bytes};
      copy_run(out, out_step, part, y_bytes);
    }
  });
}

}  // namespace

RR_KERNEL(cont, RR_ROW_EXACT, "cont", supports_cont, nullptr, elementwise_tasks, run_cont)
RR_KERNEL(cast, RR_ROW_EXACT, "cast", supports_cast, nullptr, elementwise_tasks, run_cast)
