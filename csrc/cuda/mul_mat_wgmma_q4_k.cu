#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_q4_k, RR_Q4_K)
