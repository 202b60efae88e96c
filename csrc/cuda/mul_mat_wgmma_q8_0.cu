#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(wgmma_q8_0, RR_Q8_0)
