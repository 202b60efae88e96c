#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_q4_0, RR_Q4_0)
RR_PROMPT_PRODUCTS(prompt_q4_1, RR_Q4_1)
