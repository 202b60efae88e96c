// moe_swiglu: gate and up in one product, the product with down, and the weighted sum of a token's
// experts. For one token that sum is formed in the product's launch.
#include "chosen_tiles.cuh"
#include "expert_products.hpp"
#include "mul_mat_group.cuh"
#include "prompt_exact.hpp"

namespace {

constexpr int kSumThreads = 256;

// What the node is about: x [N, K], ids [N, U], experts of F values, y [N, M].
struct Shape {
  const rr_tensor &x, &weights, &ids, &gate, &up, &down;
  int64_t n, pairs, experts, k, f, m;

  explicit Shape(const rr_node* node)
      : x(node->inputs[0]),
        weights(node->inputs[1]),
        ids(node->inputs[2]),
        gate(node->inputs[3]),
        up(node->inputs[4]),
        down(node->inputs[5]),
        n(ids.shape[0]),
        pairs(numel(ids)),
        experts(gate.shape[0]),
        k(gate.shape[2]),
        f(gate.shape[1]),
        m(down.shape[1]) {}
};

// Parts of the workspace, one behind the other.
struct Parts {
  int64_t bytes = 0;

  int64_t take(int64_t more) {
    const int64_t at = bytes;
    bytes += (more + 1023) / 1024 * 1024;
    return at;
  }
};

// rows_in, rows_out: x and what lies between, as products take them; inner: that, f32; each: a row
// of y for each pair.
struct Layout {
  Parts parts;
  int64_t routes, rows_in, inner, rows_out, each;

  Layout(int64_t of_routes, int64_t of_rows_in, int64_t of_inner, int64_t of_rows_out,
         int64_t of_each)
      : routes(parts.take(of_routes)),
        rows_in(parts.take(of_rows_in)),
        inner(parts.take(of_inner)),
        rows_out(parts.take(of_rows_out)),
        each(parts.take(of_each)) {}
};

rr_tensor floats(void* at, int64_t rows, int64_t columns) {
  rr_tensor t{};
  t.dtype = RR_F32;
  t.rank = 2;
  t.shape[0] = rows;
  t.shape[1] = columns;
  t.strides[0] = 4 * columns;
  t.strides[1] = 4;
  t.data = at;
  return t;
}

// y[n] = the sum over u of weights[n, u] each[n, u], without pairs that have no expert. Grid:
// columns, rows.
__global__ void __launch_bounds__(kSumThreads)
    add_weighted(const float* each, const float* weights, const int* ids, int used, int experts,
                 Rows y, int m) {
  enter_grid();
  const int at = static_cast<int>(blockIdx.x * kSumThreads + threadIdx.x);
  if (at >= m) return;
  const int64_t first = int64_t{blockIdx.y} * used;
  float total = 0.0f;
  for (int u = 0; u < used; ++u) {
    const int id = ids[first + u];
    if (id >= 0 && id < experts) total += each[(first + u) * m + at] * weights[first + u];
  }
  row_at(y, blockIdx.y)[at] = total;
}

void launch_sum(const rr_exec* exec, const Shape& s, const float* each, const rr_tensor& y) {
  const dim3 grid(static_cast<unsigned>(blocks_for(s.m, kSumThreads)), static_cast<unsigned>(s.n));
  RR_LAUNCH(exec, add_weighted, grid, kSumThreads, 0, each, data<const float>(s.weights),
            data<const int>(s.ids), static_cast<int>(s.pairs / s.n), static_cast<int>(s.experts),
            rows_of(y), static_cast<int>(s.m));
}

// Both kinds of kernels: products of rows `inner` rows.
template <class Kernels>
void run_parts(const rr_exec* exec, const Shape& s, const Layout& at, int64_t inner,
               const Kernels& first, const Kernels& second, const rr_tensor& y, bool summed) {
  auto* memory = static_cast<uint8_t*>(exec->workspace);
  riverrun::ChosenProduct product{};
  product.x = s.x;
  product.w = s.up;
  product.gate = &s.gate;
  product.ids = s.ids;
  product.y = floats(memory + at.inner, inner, s.f);
  product.routes = memory + at.routes;
  product.rows = memory + at.rows_in;
  first.multiply(exec, product);
  product.x = product.y;
  product.w = s.down;
  product.gate = nullptr;
  product.rows = memory + at.rows_out;
  product.routed = true;
  if constexpr (std::is_same_v<Kernels, riverrun::StepExperts>)
    if (summed) return second.add_up(exec, {product, data<const float>(s.weights), data<float>(y)});
  product.y = floats(memory + at.each, s.pairs, s.m);
  second.multiply(exec, product);
  launch_sum(exec, s, data<const float>(product.y), y);
}

int supports_shapes(const Shape& s, const rr_tensor& y, char* why, size_t size) {
  if (s.x.dtype != RR_F32 || !dense_tail(s.x, 1) || !dense_tail(y, 1))
    return refuse(why, size, "x and y need dense f32 rows");
  if (!dense(s.weights)) return refuse(why, size, "weights need to be dense");
  if (s.ids.dtype != RR_I32 || !dense(s.ids)) return refuse(why, size, "ids need to be dense i32");
  if (s.gate.dtype != s.up.dtype) return refuse(why, size, "gate and up are of different types");
  for (const rr_tensor* w : {&s.gate, &s.up, &s.down})
    if (w->layout != RR_LAYOUT_PLAIN) return refuse(why, size, "w is not plain");
  if (s.pairs > INT32_MAX / 2 || s.m > INT32_MAX || s.n > 65535 || s.experts > kMostExperts)
    return refuse(why, size, "too large");
  if (s.f == 0 || s.k == 0) return refuse(why, size, "no values to multiply");
  return 1;
}

constexpr const char* kTypes = "no kernels for experts of these types";

bool summed_at_once(const Shape& s) {
  return s.n == 1 && s.pairs <= riverrun::kMostSummed;
}

Layout step_layout(const Shape& s, const riverrun::StepExperts& first,
                   const riverrun::StepExperts& second) {
  return {routing_bytes(s.experts, s.pairs), first.row_bytes(s.n, s.k), 4 * s.pairs * s.f,
          second.row_bytes(s.pairs, s.f), summed_at_once(s) ? 0 : 4 * s.pairs * s.m};
}

int supports_step(const rr_node* node, char* why, size_t size) {
  const Shape s(node);
  if (!supports_shapes(s, node->outputs[0], why, size)) return 0;
  const auto *first = riverrun::kernels_of<riverrun::StepExperts>(s.gate.dtype),
             *second = riverrun::kernels_of<riverrun::StepExperts>(s.down.dtype);
  if (!first || !second || !first->takes(s.gate) || !second->takes(s.down))
    return refuse(why, size, kTypes);
  if (first->row_bytes(s.n, s.k) > UINT32_MAX || second->row_bytes(s.pairs, s.f) > UINT32_MAX)
    return refuse(why, size, "x has more than 4 GiB when quantised");
  return 1;
}

size_t workspace_step(const rr_node* node, int32_t) {
  const Shape s(node);
  return static_cast<size_t>(step_layout(s,
                                         *riverrun::kernels_of<riverrun::StepExperts>(s.gate.dtype),
                                         *riverrun::kernels_of<riverrun::StepExperts>(s.down.dtype))
                                 .parts.bytes);
}

void run_step(const rr_node* node, const rr_exec* exec) {
  const Shape s(node);
  if (s.m == 0 || s.pairs == 0) return;
  const auto &first = *riverrun::kernels_of<riverrun::StepExperts>(s.gate.dtype),
             &second = *riverrun::kernels_of<riverrun::StepExperts>(s.down.dtype);
  run_parts(exec, s, step_layout(s, first, second), s.pairs, first, second, node->outputs[0],
            summed_at_once(s));
}

Layout prompt_layout(const Shape& s, const riverrun::PromptExperts& first,
                     const riverrun::PromptExperts& second) {
  const ChosenCut cut = {s.pairs, s.experts};
  return {cut.table_bytes(), first.row_bytes(s.pairs, s.experts, s.k), 4 * cut.rows() * s.f,
          second.row_bytes(s.pairs, s.experts, s.f), 4 * s.pairs * s.m};
}

int supports_prompt(const rr_node* node, char* why, size_t size) {
  const Shape s(node);
  if (!supports_shapes(s, node->outputs[0], why, size)) return 0;
  if (!takes_prompt(s.ids, s.experts, why, size)) return 0;
  if (rows_of(s.x).axes > 1) return refuse(why, size, "x needs evenly spaced rows");
  const auto *first = riverrun::kernels_of<riverrun::PromptExperts>(s.gate.dtype),
             *second = riverrun::kernels_of<riverrun::PromptExperts>(s.down.dtype);
  if (!first || !second) return refuse(why, size, kTypes);
  if (!first->served()) return refuse(why, size, "needs products of warpgroups");
  return 1;
}

size_t workspace_prompt(const rr_node* node, int32_t) {
  const Shape s(node);
  return static_cast<size_t>(
      prompt_layout(s, *riverrun::kernels_of<riverrun::PromptExperts>(s.gate.dtype),
                    *riverrun::kernels_of<riverrun::PromptExperts>(s.down.dtype))
          .parts.bytes);
}

void run_prompt(const rr_node* node, const rr_exec* exec) {
  const Shape s(node);
  if (s.m == 0 || s.pairs == 0) return;
  const auto &first = *riverrun::kernels_of<riverrun::PromptExperts>(s.gate.dtype),
             &second = *riverrun::kernels_of<riverrun::PromptExperts>(s.down.dtype);
  run_parts(exec, s, prompt_layout(s, first, second), ChosenCut{s.pairs, s.experts}.rows(), first,
            second, node->outputs[0], false);
}

}  // namespace

RR_CUDA_KERNEL(moe_swiglu_step, RR_ROW_EXACT, "moe_swiglu", "cuda", "", 5, supports_step,
               workspace_step, run_step)
RR_CUDA_KERNEL(moe_swiglu_prompt, riverrun::kPromptExact, "moe_swiglu", "wgmma",
               "products of a prompt: 4e-3 of a row's norm", 20, supports_prompt, workspace_prompt,
               run_prompt)
