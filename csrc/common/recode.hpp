// Matrices of one weight type as matrices of another, by all threads of a pool.
#pragma once

#include <string>

#include "thread_pool.hpp"

namespace riverrun {

// Values and bytes of a block, 0 for a type that rows cannot be made of, or into.
struct BlockSize {
  int64_t values = 0, bytes = 0;
};
BlockSize source_block(uint32_t dtype);
BlockSize result_block(uint32_t dtype);

// n_rows rows of n values. importance: null, or n weights for each matrix of matrix_rows rows.
struct Recoding {
  uint32_t from, to;
  const uint8_t* source;
  uint8_t* result;
  const float* importance;
  int64_t n_rows, matrix_rows, n;
};

// An empty text, or what is wrong with the values of the first bad row that was met.
std::string recode(ThreadPool& pool, const Recoding& job);

}  // namespace riverrun
