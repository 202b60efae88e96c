#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(wgmma_q6_k, RR_Q6_K)
