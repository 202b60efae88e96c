#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(prompt_q5_k, RR_Q5_K)
