#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_q2_k, RR_Q2_K)
RR_MMA_PRODUCT(mma_q3_k, RR_Q3_K)
