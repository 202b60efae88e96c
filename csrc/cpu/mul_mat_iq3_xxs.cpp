// mul_mat with iq3_xxs weights: 3-bit magnitudes of a grid of four, one scale for 32 values.

#include "mul_mat_grid.hpp"

namespace {

struct Iq3Xxs : Grid<Iq3Xxs, RR_IQ3_XXS> {
  static constexpr const char* kRefusal = "w is not packed iq3_xxs";
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq3Xxs)
