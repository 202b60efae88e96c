#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(prompt_q2_k, RR_Q2_K)
RR_PROMPT_PRODUCT(prompt_q3_k, RR_Q3_K)
