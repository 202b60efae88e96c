#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_q5_k, RR_Q5_K)
