// What kernels that turn heads by their positions take.
#pragma once

#include "node.hpp"

namespace {

constexpr int kMaxPairs = 512;

inline int64_t sum_of_sections(const rr_attr* sections) {
  int64_t sum = 0;
  for (uint32_t i = 0; i < sections->count; ++i) sum += sections->ints[i];
  return sum;
}

// What a kernel asks of the attributes, for heads of `size` values, of positions and of factors; ""
// when it is given.
inline const char* turning_complaint(const rr_node* node, int64_t size, const rr_tensor& positions,
                                     const rr_tensor& factors) {
  const int64_t n_rot = attr_int(node, "n_rot", 0);
  if (positions.dtype != RR_I32) return "positions need to be i32";
  if (n_rot < 2 || n_rot % 2 != 0 || n_rot > size || n_rot > 2 * kMaxPairs)
    return "n_rot needs to be even, at most the head size and 1024";
  if (present(factors) && !dense(factors)) return "factors need to be dense";
  if (!attr_is(node, "style", "imrope")) {
    if (attr_is(node, "style", "norm") || attr_is(node, "style", "neox")) return "";
    return "style needs to be norm, neox or imrope";
  }
  const rr_attr* sections = find_attr(node, "sections");
  if (!sections || sections->count != 4 || sum_of_sections(sections) <= 0)
    return "imrope needs four sections";
  return "";
}

[[maybe_unused]] inline int supports_rope(const rr_node* node, char* why, size_t size) {
  const rr_tensor& x = node->inputs[0];
  if (x.rank != 3 || x.dtype != RR_F32 || !dense_tail(x, 1))
    return refuse(why, size, "x needs rank 3 and dense f32 rows");
  const char* complaint = turning_complaint(node, x.shape[2], node->inputs[1], node->inputs[2]);
  return *complaint ? refuse(why, size, complaint) : 1;
}

}  // namespace
