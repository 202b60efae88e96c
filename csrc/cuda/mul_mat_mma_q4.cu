#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_q4_0, RR_Q4_0)
RR_MMA_PRODUCT(mma_q4_1, RR_Q4_1)
