// Products with weights of iq2_xxs, iq2_xs, iq2_s, iq3_xxs and iq3_s: codes of grids, looked up in
// the file's own blocks, so that a card holds no more of them than the file.
#include "grid_codes.cuh"
#include "mul_mat_quant_chosen.cuh"

namespace {

template <uint32_t dtype>
struct Grid : Block<dtype> {
  using Part = GridPart<dtype>;
  static constexpr int kOffset = Part::kZero;
  static constexpr bool kApart = Part::kWidth == 16;
  static constexpr Sums kSums = Sums::kInt;

  __device__ static void prepare() {
    load_grid<dtype>();
    __syncthreads();
  }

  __device__ static void slice(const BlockBytes& b, unsigned i, Slice& out) {
    const float d = b.half(Part::kD) * Part::kFactor;
    constexpr int kSides = kApart ? 2 : 1, kWords = 8 / kSides;
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
      const Part part(b.stage + b.at, kApart ? SubBlocks(i).sixteen() + 4 * side : i);
#pragma unroll
      for (int k = 0; k < kWords; ++k)
        out.q[kWords * side + k] = static_cast<int>(part.four(shared_grid<dtype>(), k));
      out.scale[side] = d * static_cast<float>(2 * part.scale() + 1);
    }
  }
};

struct IQ2_XXS : Grid<RR_IQ2_XXS> {
  static constexpr const char* kRefusal = "w is not plain iq2_xxs";
};

struct IQ2_XS : Grid<RR_IQ2_XS> {
  static constexpr const char* kRefusal = "w is not plain iq2_xs";
};

struct IQ2_S : Grid<RR_IQ2_S> {
  static constexpr const char* kRefusal = "w is not plain iq2_s";
};

struct IQ3_XXS : Grid<RR_IQ3_XXS> {
  static constexpr const char* kRefusal = "w is not plain iq3_xxs";
};

struct IQ3_S : Grid<RR_IQ3_S> {
  static constexpr const char* kRefusal = "w is not plain iq3_s";
};

}  // namespace

RR_QUANT_PRODUCT(IQ2_XXS)
RR_QUANT_PRODUCT(IQ2_XS)
RR_QUANT_PRODUCT(IQ2_S)
RR_QUANT_PRODUCT(IQ3_XXS)
RR_QUANT_PRODUCT(IQ3_S)
