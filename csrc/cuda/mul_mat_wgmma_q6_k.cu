#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(prompt_q6_k, RR_Q6_K)
