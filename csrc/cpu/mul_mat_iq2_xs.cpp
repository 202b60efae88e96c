// mul_mat with iq2_xs weights: 2-bit magnitudes of a grid of eight, one scale for 16 values.

#include "mul_mat_grid.hpp"

namespace {

struct Iq2Xs : Grid<Iq2Xs, RR_IQ2_XS> {
  static constexpr const char* kRefusal = "w is not packed iq2_xs";
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq2Xs)
