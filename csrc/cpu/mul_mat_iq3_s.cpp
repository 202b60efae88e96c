// mul_mat with iq3_s weights: 3-bit magnitudes of a larger grid of four, one scale for 32 values.

#include "mul_mat_grid.hpp"

namespace {

struct Iq3S : Grid<Iq3S, RR_IQ3_S> {
  static constexpr const char* kRefusal = "w is not packed iq3_s";
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq3S)
