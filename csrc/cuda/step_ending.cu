// What the launch of a step's products ends with: the rows that the next node multiplies.
#include "counters.cuh"
#include "fused_inputs.cuh"
#include "fused_products.cuh"

namespace {

using riverrun::StepEnding;
using riverrun::StepInput;
using riverrun::StepProduct;

// With more rows, or with short ones, a launch of its own is faster: products are short then, and
// its blocks share the rows out.
constexpr int64_t kMostEndedRows = 1, kLeastEndedBlocks = 16;

// Whether t is n rows of what this product makes.
bool is_product(const rr_tensor& t, const StepProduct& of, int64_t n) {
  return t.data == of.y && t.dtype == RR_F32 && t.rank == 2 && t.shape[0] == n &&
         t.shape[1] == of.w->shape[0] && (n == 1 || t.strides[0] == of.y_row * 4);
}

// The rows of the next node and what is computed of them, but not where they go; kNone for a node
// that begins with anything else.
StepEnding beginning(const rr_node& next, const StepProduct* products, int count, int64_t n) {
  StepEnding ending = {};
  const rr_tensor* in = next.inputs;
  if (count == 1 && strcmp(next.op, "add_norm_mul_mats") == 0 && is_product(in[1], *products, n)) {
    ending.kind = StepEnding::kAddNorm;
    ending.sum = data<float>(next.outputs[1]);
    ending.weight = data<const float>(in[2]);
  } else if (count == 2 && strcmp(next.op, "glu_mul_mat") == 0 &&
             is_product(in[0], products[0], n) && is_product(in[1], products[1], n)) {
    ending.kind = StepEnding::kGlu;
    ending.act = static_cast<int>(act_of(&next));
  }
  ending.first = data<const char>(in[0]), ending.second = data<const char>(in[1]);
  ending.first_row = in[0].strides[0], ending.second_row = in[1].strides[0];
  return ending;
}

}  // namespace

StepEnding riverrun::next_ending(const rr_exec* exec, const StepProduct* products, int count,
                                 const StepInput& x) {
  const CountingExec& own = counting(exec);
  const rr_node* next = own.next;
  if (!next || x.n > kMostEndedRows || next->n_inputs < 2) return {};
  StepEnding ending = beginning(*next, products, count, x.n);
  const int64_t k = fused_width(next), blocks = k / kStepBlock;
  if (ending.kind == StepEnding::kNone || blocks < kLeastEndedBlocks || blocks > kCounters ||
      numel(next->outputs[0]) == 0)
    return {};
  const auto half = static_cast<int64_t>(exec->workspace_bytes / 2 / kHalvesDivide * kHalvesDivide);
  if (step_x_bytes(x.n, x.k) + step_squares_bytes(x.n, x.k) > half) return {};
  if (step_x_bytes(x.n, k) + step_squares_bytes(x.n, k) > half) return {};
  auto* begin = static_cast<unsigned char*>(exec->workspace);
  ending.x = x.x < begin + half ? begin + half : begin;
  ending.blocks = static_cast<int>(blocks);
  ending.arrivals = static_cast<unsigned>(count * kStepBlock);
  ending.counters = own.counters;
  *own.ended = {next, ending.x};
  return ending;
}

const unsigned char* riverrun::ended_for(const rr_exec* exec, const rr_node* node) {
  const Ended& ended = *counting(exec).ended;
  return ended.node == node ? ended.x : nullptr;
}
