#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(prompt_q8_0, RR_Q8_0)
