#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_iq3_xxs, RR_IQ3_XXS)
RR_MMA_PRODUCT(mma_iq3_s, RR_IQ3_S)
