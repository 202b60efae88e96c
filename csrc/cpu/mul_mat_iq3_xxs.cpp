// mul_mat with iq3_xxs weights: 3-bit magnitudes of a grid of four, one scale for 32 values.

#include "mul_mat_grid.hpp"

namespace {

struct Iq3Xxs : Grid<Iq3Xxs> {
  static constexpr uint32_t kType = RR_IQ3_XXS;
  static constexpr const char* kRefusal = "w is not packed iq3_xxs";
  static constexpr int64_t kWeightBytes = 98;
  static constexpr int kSubs = 8, kOffset = 62, kBits = 7;
  static constexpr float kFactor = 0.25f;
  static constexpr GridTable kTable{kIq3XxsValues, kOffset};

  static void take(const uint8_t* row, GridCodes* codes) { grid_iq3_xxs(row, codes); }
};

}  // namespace

RR_QUANTISED_PRODUCT(Iq3Xxs)
