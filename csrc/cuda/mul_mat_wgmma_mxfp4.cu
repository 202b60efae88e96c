#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_mxfp4, RR_MXFP4)
