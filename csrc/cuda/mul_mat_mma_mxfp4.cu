#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_mxfp4, RR_MXFP4)
