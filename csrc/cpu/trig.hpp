// Sine and cosine in f64.
#pragma once

#include "native_vec.hpp"

namespace {

// Reduced to |r| <= pi/4 with pi/2 in two parts, of which the first has 33 bits, so that |t| up to
// 1.6e6 stays exact; then Taylor polynomials, error below 1e-11. D and L are doubles and 64-bit
// ints of as many lanes as one instruction takes.
template <typename D, typename L>
inline void sine_cosine(D t, D& sine, D& cosine) {
  const double rounder = 6755399441055744.0;  // 1.5 * 2^52 rounds to an integer when added
  const D shifted = t * (2 / 3.14159265358979323846) + rounder;
  const D n = shifted - rounder;
  const D r = (t - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
  const D z = r * r;
  D s = D{} - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  s = s * z * r + r;
  D c = D{} + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  c = c * z + 1.0;
  const L quadrant = (L)shifted;
  const L odd = (quadrant & 1) != 0;
  sine = odd ? c : s;
  cosine = odd ? s : c;
  sine = (quadrant & 2) != 0 ? -sine : sine;
  cosine = ((quadrant + 1) & 2) != 0 ? -cosine : cosine;
}

}  // namespace
