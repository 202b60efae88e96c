// mul_mat with iq2_xxs weights: 2-bit magnitudes of a grid of eight, one scale for 32 values.

#include "mul_mat_grid.hpp"

namespace {

struct Iq2Xxs : Grid<Iq2Xxs> {
  static constexpr uint32_t kType = RR_IQ2_XXS;
  static constexpr const char* kRefusal = "w is not packed iq2_xxs";
  static constexpr int64_t kWeightBytes = 66;
  static constexpr int kSubs = 8, kOffset = 43, kBits = 7;
  static constexpr float kFactor = 0.125f;
  static constexpr GridTable kTable{kIq2Values, kOffset};

  static void take(const uint8_t* row, GridCodes* codes) { grid_iq2_xxs(row, codes); }
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq2Xxs)
