// Single rows out of packed weights, so that a matrix which is both multiplied and looked up, such
// as a tied embedding, is kept once.
#pragma once

#include <stdint.h>

namespace riverrun {

// Where each bit of a row lies in a packed weight; made once for all callers.
struct PackedRows;

// Of rows of cols values in blocks of block_bytes bytes for block_values values. Null where there
// is no packer, or where its layout does not hold the rows' bits in another order.
const PackedRows* find_packed_rows(uint32_t dtype, uint32_t layout, int64_t cols,
                                   int64_t block_values, int64_t block_bytes);

// Row r of a packed weight as it was before.
void read_packed_row(const PackedRows& rows, const void* packed, int64_t r, uint8_t* row);

}  // namespace riverrun
