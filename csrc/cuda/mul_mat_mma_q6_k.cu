#include "mul_mat_mma.cuh"

RR_MMA_PRODUCT(mma_q6_k, RR_Q6_K)
