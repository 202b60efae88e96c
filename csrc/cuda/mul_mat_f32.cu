// Products with weights of f32.
#include "mul_mat_float.cuh"

namespace {

struct F32 {
  static constexpr uint32_t kType = RR_F32;
  static constexpr const char* kRefusal = "w is not plain f32";
  static constexpr int kBytes = 4;

  __device__ static float4 four(const uint4& w, int) {
    return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
                       __uint_as_float(w.w));
  }
};

}  // namespace

RR_FLOAT_PRODUCT(F32)
