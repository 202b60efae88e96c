// The code book of iq4_nl and iq4_xs.
#pragma once

#include "mul_mat_block32.hpp"

namespace {

constexpr int kIq4Offset = 127;
// The values plus kIq4Offset.
constexpr uint8_t kIq4Codes[16] = {0,   23,  44,  62,  78,  92,  105, 117,
                                   128, 140, 152, 165, 180, 196, 216, 240};

}  // namespace
