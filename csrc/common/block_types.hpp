// The blocks of all types of weights.
#pragma once

#include "block_grid.hpp"
#include "block_k.hpp"

// What lookups, products with weights as they are in the file, and recoding read.
#define RR_WEIGHT_TYPES                                                                            \
  RR_F32, RR_F16, RR_BF16, RR_Q4_0, RR_Q4_1, RR_Q5_0, RR_Q5_1, RR_Q8_0, RR_Q2_K, RR_Q3_K, RR_Q4_K, \
      RR_Q5_K, RR_Q6_K, RR_IQ4_NL, RR_IQ4_XS, RR_MXFP4, RR_IQ2_XXS, RR_IQ2_XS, RR_IQ2_S,           \
      RR_IQ3_XXS, RR_IQ3_S
