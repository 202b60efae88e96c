#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_bf16, RR_BF16)
