// scale: y = x * factor + bias, in f64 and rounded once. clamp: x held to a range, NaN stays NaN.
#include "elementwise.cuh"

namespace {

// Memory, not f64, is what limits this on every card.
struct Scaled {
  double factor, bias;
  __device__ float operator()(float x) const {
    return static_cast<float>(static_cast<double>(x) * factor + bias);
  }
};

struct Clamped {
  float low, high;
  __device__ float operator()(float x) const {
    const float y = x < low ? low : x;
    return y > high ? high : y;
  }
};

void run_scale(const rr_node* node, const rr_exec* exec) {
  map_node(node, exec, Scaled{attr_float(node, "factor", 1.0), attr_float(node, "bias", 0.0)});
}

void run_clamp(const rr_node* node, const rr_exec* exec) {
  map_node(node, exec,
           Clamped{static_cast<float>(attr_float(node, "min", -INFINITY)),
                   static_cast<float>(attr_float(node, "max", INFINITY))});
}

}  // namespace

RR_CUDA_KERNEL(scale, RR_ROW_EXACT, "scale", "cuda", "", 0, all_f32, nullptr, run_scale)
RR_CUDA_KERNEL(clamp, RR_ROW_EXACT, "clamp", "cuda", "", 0, all_f32, nullptr, run_clamp)
