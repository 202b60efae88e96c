#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_q8_0, RR_Q8_0)
