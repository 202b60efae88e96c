// mul_mat with iq3_s weights: 3-bit magnitudes of a larger grid of four, one scale for 32 values.

#include "mul_mat_grid.hpp"

namespace {

struct Iq3S : Grid<Iq3S> {
  static constexpr uint32_t kType = RR_IQ3_S;
  static constexpr const char* kRefusal = "w is not packed iq3_s";
  static constexpr int64_t kWeightBytes = 110;
  static constexpr int kSubs = 8, kOffset = 15, kBits = 5;
  static constexpr float kFactor = 1.0f;
  static constexpr GridTable kTable{kIq3SValues, kOffset};

  static void take(const uint8_t* row, GridCodes* codes) { grid_iq3_s(row, codes); }
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq3S)
