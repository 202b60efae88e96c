#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(prompt_q4_0, RR_Q4_0)
RR_PROMPT_PRODUCT(prompt_q4_1, RR_Q4_1)
