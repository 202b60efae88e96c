#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(prompt_bf16, RR_BF16)
