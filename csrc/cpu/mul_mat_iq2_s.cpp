// mul_mat with iq2_s weights: 2-bit magnitudes of a larger grid of eight, one scale for 16 values.

#include "mul_mat_grid.hpp"

namespace {

struct Iq2S : Grid<Iq2S> {
  static constexpr uint32_t kType = RR_IQ2_S;
  static constexpr const char* kRefusal = "w is not packed iq2_s";
  static constexpr int64_t kWeightBytes = 82;
  static constexpr int kSubs = 16, kOffset = 43, kBits = 7;
  static constexpr float kFactor = 0.125f;
  static constexpr GridTable kTable{kIq2Values, kOffset};

  static void take(const uint8_t* row, GridCodes* codes) { grid_iq2_s(row, codes); }
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq2S)
