#include "mul_mat_wgmma.cuh"

RR_PROMPT_PRODUCT(prompt_mxfp4, RR_MXFP4)
