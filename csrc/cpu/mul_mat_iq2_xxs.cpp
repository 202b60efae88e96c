// mul_mat with iq2_xxs weights: 2-bit magnitudes of a grid of eight, one scale for 32 values.

#include "mul_mat_grid.hpp"

namespace {

struct Iq2Xxs : Grid<Iq2Xxs, RR_IQ2_XXS> {
  static constexpr const char* kRefusal = "w is not packed iq2_xxs";
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq2Xxs)
