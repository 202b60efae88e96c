#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_q8_0, RR_Q8_0)
