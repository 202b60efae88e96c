#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_q5_k, RR_Q5_K)
