#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_q6_k, RR_Q6_K)
