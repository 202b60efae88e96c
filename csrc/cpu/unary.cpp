// Functions of single elements.

#include "activation.hpp"
#include "elementwise.hpp"
#include "trig.hpp"

namespace {

// Beyond kFar, and for what is no number, the library's slower reduction.
template <bool cosine>
vec turn_vec(vec x) {
  constexpr int kHalf = kLanes / 2;
  constexpr float kFar = 1e6f;
  typedef float narrow __attribute__((vector_size(4 * kHalf)));
  typedef double wide __attribute__((vector_size(8 * kHalf)));
  typedef int64_t whole __attribute__((vector_size(8 * kHalf)));
  float in[kLanes], out[kLanes];
  store_vec(in, x);
  for (int i = 0; i < kLanes; i += kHalf) {
    narrow part;
    memcpy(&part, in + i, sizeof part);
    wide s, c;
    sine_cosine<wide, whole>(__builtin_convertvector(part, wide), s, c);
    part = __builtin_convertvector(cosine ? c : s, narrow);
    memcpy(out + i, &part, sizeof part);
  }
  for (int i = 0; i < kLanes; ++i) {
    if (fabsf(in[i]) <= kFar) continue;
    const double wide_x = in[i];
    out[i] = static_cast<float>(cosine ? cos(wide_x) : sin(wide_x));
  }
  const vec y = load_vec(out);
  if (cosine) return y;
  return x == 0.0f ? x : y;  // keeps the sign
}

}  // namespace

#define RR_MAP(name, expression, tasks)                       \
  namespace {                                                 \
  void run_##name(const rr_node* node, const rr_exec* exec) { \
    map_unary(node, exec, [](vec x) { return expression; });  \
  }                                                           \
  }                                                           \
  RR_KERNEL(kernel_##name, RR_ROW_EXACT, #name, all_f32, nullptr, tasks, run_##name)

#define RR_UNARY(name, expression) RR_MAP(name, expression, elementwise_tasks)
#define RR_ACTIVATION(name, expression) RR_MAP(name, expression, activation_tasks)

RR_ACTIVATION(silu, silu_vec(x))
RR_ACTIVATION(gelu, gelu_vec(x))
RR_ACTIVATION(gelu_erf, gelu_erf_vec(x))
RR_ACTIVATION(sigmoid, sigmoid_vec(x))
RR_ACTIVATION(softplus, softplus_vec(x))
RR_ACTIVATION(tanh, tanh_vec(x))
RR_UNARY(exp, exp_vec(x))
RR_UNARY(log, log_vec(x))
RR_UNARY(sin, turn_vec<false>(x))
RR_UNARY(cos, turn_vec<true>(x))
RR_UNARY(abs, abs_vec(x))
RR_UNARY(neg, -x)
RR_UNARY(sqr, x* x)
RR_UNARY(sqrt, sqrt_vec(x))
RR_UNARY(relu, x < 0.0f ? vec{} : x)
