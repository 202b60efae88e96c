// Rows of one weight type as rows of another, with the best instruction set of this processor.
#pragma once

#include <stdint.h>

// What csrc/cpu/recode.cpp registers once per instruction set.
struct RowRecoder {
  const char* isa;
  int priority;
  // Values and bytes of a block of a type that rows can be made of; false for others.
  bool (*takes)(uint32_t dtype, int64_t* values, int64_t* bytes);
  bool (*gives)(uint32_t dtype, int64_t* values, int64_t* bytes);
  // n values, whole blocks of both types; scratch holds n floats. importance: n weights of squared
  // errors, or null. Null, or what is wrong with the values.
  const char* (*row)(uint32_t from, const uint8_t* row, uint32_t to, uint8_t* out,
                     const float* importance, float* scratch, int64_t n);
};

void register_recoder(const RowRecoder* recoder);
