// What the launch of a step's products ends with: the row that the next node normalises and
// multiplies.
#include "counters.cuh"
#include "fused_products.cuh"

namespace {

using riverrun::StepEnding;
using riverrun::StepInput;
using riverrun::StepProduct;

// Shorter rows have a launch of their own: products are short then, too, and their last block takes
// as long for the end of them as a launch does.
constexpr int64_t kLeastBlocks = 16;

// Whether t is the row that this product makes.
bool is_product(const rr_tensor& t, const StepProduct& of) {
  return t.data == of.y && t.dtype == RR_F32 && t.rank == 2 && t.shape[0] == 1 &&
         t.shape[1] == of.w->shape[0];
}

}  // namespace

StepEnding riverrun::next_ending(const rr_exec* exec, const StepProduct* products, int count,
                                 const StepInput& x) {
  const rr_node* next = cuda(exec).next;
  if (!next || x.n != 1 || count != 1 || strcmp(next->op, "add_norm_mul_mats") != 0 ||
      !is_product(next->inputs[1], *products))
    return {};
  const int64_t k = fused_width(next), blocks = k / kStepBlock;
  if (blocks < kLeastBlocks || blocks > kCounters || numel(next->outputs[0]) == 0) return {};
  const auto half = static_cast<int64_t>(exec->workspace_bytes / 2 / kHalvesDivide * kHalvesDivide);
  if (step_x_bytes(x.n, x.k) + step_squares_bytes(x.n, x.k) > half) return {};
  if (step_x_bytes(x.n, k) + step_squares_bytes(x.n, k) > half) return {};
  auto* begin = static_cast<unsigned char*>(exec->workspace);
  const rr_tensor* in = next->inputs;
  const StepEnding ending = {data<const float>(in[0]),
                             data<const float>(in[1]),
                             data<float>(next->outputs[1]),
                             data<const float>(in[2]),
                             x.x < begin + half ? begin + half : begin,
                             static_cast<int>(blocks),
                             counters(exec)};
  *cuda(exec).ended = {next, ending.x};
  return ending;
}

const unsigned char* riverrun::ended_for(const rr_exec* exec, const rr_node* node) {
  const Ended& ended = *cuda(exec).ended;
  return ended.node == node ? ended.x : nullptr;
}
