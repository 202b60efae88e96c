// Products with weights of f16.
#include "mul_mat_float.cuh"

namespace {

struct F16 {
  static constexpr uint32_t kType = RR_F16;
  static constexpr const char* kRefusal = "w is not plain f16";
  static constexpr int kBytes = 2;

  __device__ static float4 four(const uint4& w, int i) {
    const unsigned a = i ? w.z : w.x, b = i ? w.w : w.y;
    return make_float4(
        half_to_float(static_cast<uint16_t>(a)), half_to_float(static_cast<uint16_t>(a >> 16)),
        half_to_float(static_cast<uint16_t>(b)), half_to_float(static_cast<uint16_t>(b >> 16)));
  }
};

}  // namespace

RR_FLOAT_PRODUCT(F16)
