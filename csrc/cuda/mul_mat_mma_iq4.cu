#include "mul_mat_mma_chosen.cuh"

RR_MMA_PRODUCT(mma_iq4_nl, RR_IQ4_NL)
RR_MMA_PRODUCT(mma_iq4_xs, RR_IQ4_XS)
