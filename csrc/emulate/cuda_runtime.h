// Found instead of the CUDA toolkit's header where kernels are emulated.
#pragma once

#include "emulate.hpp"
