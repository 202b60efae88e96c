// What products with one type of packed weights offer to nodes that are fused with them, at one
// instruction-set level: plain functions, so that a fused node's kernel holds no code of any type,
// and its rows may meet weights of several.
#pragma once

#include <stdint.h>

namespace riverrun {

// Rows of x that are prepared and used at a time, at most; values of x that are prepared together,
// at least; rows of weights that lie together.
constexpr int64_t kProductRows = 256, kProductBlock = 32, kProductGroup = 16;

// A kernel's flag beside RR_ROW_EXACT: its packed inputs lie behind each other as far as its
// threads are concerned, each of which begins with its own of equal parts of all their bytes.
constexpr uint32_t kReadsInParts = 4;

// n rows of k values as a product reads them.
struct PreparedRows {
  void* memory;
  int64_t n, k;
};

// Where products of these rows go: row c begins at y + c * stride.
struct ProductRows {
  float* y;
  int64_t stride;  // in bytes
};

constexpr uint32_t kProductTypes = 64;

struct PackedProduct {
  uint32_t dtype;    // below kProductTypes
  int32_t priority;  // of the level
  int64_t (*weight_bytes)(int64_t rows, int64_t k);
  int64_t (*prepared_bytes)(int64_t n, int64_t k);
  // Prepares blocks [begin, end) of row c; values: theirs.
  void (*prepare)(const PreparedRows& x, int64_t c, const float* values, int64_t begin,
                  int64_t end);
  // Products with groups [begin, end) of a weight of so many rows.
  void (*multiply)(const PreparedRows& x, const void* weight, int64_t rows, const ProductRows& y,
                   int64_t begin, int64_t end);
};

// Priorities are multiples of ten, as the build gives them.
void register_product(const PackedProduct* product);
// That of the level with this priority, or of the next lower one that has the type; null for none.
const PackedProduct* find_product(uint32_t dtype, int32_t priority);

}  // namespace riverrun
