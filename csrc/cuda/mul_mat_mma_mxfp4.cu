#include "mul_mat_mma.cuh"

RR_MMA_PRODUCT(mma_mxfp4, RR_MXFP4)
