#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_q6_k, RR_Q6_K)
