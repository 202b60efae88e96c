// Arithmetic on two halves in a register.
#pragma once

#include "numbers.hpp"

namespace emulate {

// To nearest, by way of a float that is rounded to odd, so that the second rounding is the only
// one that counts.
inline uint16_t double_to_half(double x) {
  float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  if (back != x && back == back && x == x) {
    unsigned bits = same_bits<unsigned>(nearest);
    if (fabs(back) > fabs(x)) --bits;
    nearest = same_bits<float>(bits | 1u);
  }
  return float_to_half(nearest);
}

template <typename Operation>
unsigned each_half(unsigned a, unsigned b, unsigned c, Operation operation) {
  unsigned result = 0;
  for (int i = 0; i < 32; i += 16) {
    const double x = static_cast<double>(half_to_float(static_cast<uint16_t>(a >> i)));
    const double y = static_cast<double>(half_to_float(static_cast<uint16_t>(b >> i)));
    const double z = static_cast<double>(half_to_float(static_cast<uint16_t>(c >> i)));
    result |= static_cast<unsigned>(double_to_half(operation(x, y, z))) << i;
  }
  return result;
}

inline unsigned fma_pairs(unsigned a, unsigned b, unsigned c) {
  return each_half(a, b, c, [](double x, double y, double z) { return x * y + z; });
}

inline unsigned multiply_pairs(unsigned a, unsigned b) {
  return each_half(a, b, 0, [](double x, double y, double) { return x * y; });
}

inline unsigned add_pairs(unsigned a, unsigned b) {
  return each_half(a, b, 0, [](double x, double y, double) { return x + y; });
}

}  // namespace emulate
