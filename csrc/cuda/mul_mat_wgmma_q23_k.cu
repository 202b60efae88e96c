#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_q2_k, RR_Q2_K)
RR_PROMPT_PRODUCTS(prompt_q3_k, RR_Q3_K)
