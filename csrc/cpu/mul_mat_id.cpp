// mul_mat_id with weights in the file's own order: computed in the graph, or without a packed
// layout. A weight row is decoded to f32 once for all rows of x that chose its expert.

#include "mul_mat_id.hpp"

#include "decode.hpp"
#include "kernel.hpp"

namespace {

constexpr int64_t kGroup = 16;  // weight rows that one thread takes

// One expert's matrix.
rr_tensor expert(const rr_tensor& w, int64_t e) {
  rr_tensor out = w;
  out.rank = 2;
  out.data = static_cast<char*>(w.data) + e * w.strides[0];
  for (int axis = 0; axis < 2; ++axis) {
    out.shape[axis] = w.shape[axis + 1];
    out.strides[axis] = w.strides[axis + 1];
  }
  return out;
}

int supports(const rr_node* node, char* why, size_t size) {
  if (!supports_routing(node, why, size)) return 0;
  rr_tensor w = node->inputs[1];
  w.data = nullptr;
  return decodable(expert(w, 0), why, size) ? 1 : 0;
}

size_t row_bytes(const rr_node* node) {
  return static_cast<size_t>(node->inputs[1].shape[2] + 15) / 16 * 64;
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  return static_cast<size_t>(n_threads) * (routing_bytes(node) + row_bytes(node));
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor x = rows_of_pairs(node);
  const rr_tensor &w = node->inputs[1], &y = node->outputs[0];
  char* memory = static_cast<char*>(exec->workspace) +
                 static_cast<size_t>(exec->thread) * (routing_bytes(node) + row_bytes(node));
  float* scratch = reinterpret_cast<float*>(memory + routing_bytes(node));
  Routing routing;
  if (!route(node, exec, memory, &routing)) return;
  clear_unrouted(node, exec);
  const int64_t rows = w.shape[1], k = w.shape[2];
  const Range all = {0, routing.pairs};
  routing.share(exec, all, (rows + kGroup - 1) / kGroup, 0, [&](Segment s, Range groups) {
    const rr_tensor matrix = expert(w, s.expert);
    const int64_t end = groups.end * kGroup < rows ? groups.end * kGroup : rows;
    for (int64_t m = groups.begin * kGroup; m < end; ++m) {
      decode_row(w.dtype, reinterpret_cast<const uint8_t*>(row_ptr(matrix, m)), scratch, k);
      for (int64_t c = s.first; c < s.first + s.n; ++c) {
        const int64_t pair = routing.order[c];
        reinterpret_cast<float*>(row_ptr(y, pair))[m] =
            dot(reinterpret_cast<const float*>(row_ptr(x, pair)), scratch, k);
      }
    }
  });
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& w = node->inputs[1];
  const int64_t work = w.shape[1] * w.shape[2] * numel(node->inputs[2]);
  return work < 32768 ? 1 : INT32_MAX;
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "mul_mat_id", supports, workspace, tasks, run)
