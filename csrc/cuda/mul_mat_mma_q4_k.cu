#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_q4_k, RR_Q4_K)
