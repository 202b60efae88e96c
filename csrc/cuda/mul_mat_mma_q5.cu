#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_q5_0, RR_Q5_0)
RR_MMA_PRODUCT(mma_q5_1, RR_Q5_1)
