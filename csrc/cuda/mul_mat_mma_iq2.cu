#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_iq2_xxs, RR_IQ2_XXS)
RR_MMA_PRODUCT(mma_iq2_xs, RR_IQ2_XS)
RR_MMA_PRODUCT(mma_iq2_s, RR_IQ2_S)
