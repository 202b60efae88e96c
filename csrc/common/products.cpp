#include "products.hpp"

namespace riverrun {

namespace {

constexpr int kLevels = 8;

// There before any kernel file registers.
const PackedProduct* table[kLevels][kProductTypes];

}  // namespace

void register_product(const PackedProduct* product) {
  table[product->priority / 10][product->dtype] = product;
}

const PackedProduct* find_product(uint32_t dtype, int32_t priority) {
  if (dtype >= kProductTypes) return nullptr;
  for (int level = priority / 10; level >= 0; --level)
    if (table[level][dtype] != nullptr) return table[level][dtype];
  return nullptr;
}

}  // namespace riverrun
