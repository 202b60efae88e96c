#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_q5_0, RR_Q5_0)
RR_PROMPT_PRODUCTS(prompt_q5_1, RR_Q5_1)
