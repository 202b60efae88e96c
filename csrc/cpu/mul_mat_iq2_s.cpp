// mul_mat with iq2_s weights: 2-bit magnitudes of a larger grid of eight, one scale for 16 values.

#include "mul_mat_grid.hpp"

namespace {

struct Iq2S : Grid<Iq2S, RR_IQ2_S> {
  static constexpr const char* kRefusal = "w is not packed iq2_s";
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq2S)
