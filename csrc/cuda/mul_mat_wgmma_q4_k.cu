#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(prompt_q4_k, RR_Q4_K)
