// delta_mix: gated_delta_net whose operands get their norms and functions on the way from memory,
// with the arithmetic of the ops that op delta_mix is made of.
#include "gated_delta_net.cuh"

namespace {

constexpr int kMemory = 7;  // of the inputs, the first that is no operand of a token or a weight

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  for (int i = 3; i < 5; ++i)
    if (in[i].dtype != RR_F32 || in[i].rank != 2 || !dense_tail(in[i], 1))
      return refuse(why, size, "alpha and beta need dense f32 rows");
  for (int i = 5; i < kMemory; ++i)
    if (in[i].dtype != RR_F32 || in[i].layout != RR_LAYOUT_PLAIN || !dense(in[i]))
      return refuse(why, size, "dt and a need to be dense f32");
  return supports_operands(in, in + kMemory, why, size);
}

void run(const rr_node* node, const rr_exec* exec) {
  Task task = read_task(node, exec, kMemory);
  task.dt = data<const float>(node->inputs[5]);
  task.a = data<const float>(node->inputs[6]);
  task.eps = attr_float(node, "eps", 0.0);
  launch<false, true>(exec, task);
}

}  // namespace

RR_CUDA_KERNEL(delta_mix, RR_ROW_EXACT, "delta_mix", "cuda", "", 0, supports, nullptr, run)
