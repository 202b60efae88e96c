#include "mul_mat_mma.cuh"

RR_MMA_PRODUCT(mma_q8_0, RR_Q8_0)
