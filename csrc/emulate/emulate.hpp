// CUDA on the host: what the kernels of csrc/cuda and the executor need to be compiled by a C++
// compiler and run without a GPU, so that their logic is checked where there is none. Blocks run
// one after the other, each thread of a block as a fiber. It is slow, and shows nothing of speed,
// of registers, or of what different warps do at the same time.
#pragma once

#include <math.h>
#include <stdint.h>

#include "atomics.hpp"
#include "fibers.hpp"
#include "intrinsics.hpp"
#include "language.hpp"
#include "matrix.hpp"
#include "numbers.hpp"
#include "runtime.hpp"
#include "warp.hpp"
