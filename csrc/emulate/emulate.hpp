// CUDA on the host: what the kernels of csrc/cuda and the executor need to be compiled by a C++
// compiler and run without a GPU, so that their logic is checked where there is none. Blocks run
// one after the other, each thread of a block as a fiber. It is slow, and shows nothing of speed,
// of registers, or of what different warps do at the same time. Static shared memory starts with
// what the block before left there (zero at first), dynamic shared memory with all bits set. A
// thread that spins until another has done something spins for ever.
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
