#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_iq3_xxs, RR_IQ3_XXS)
RR_PROMPT_PRODUCTS(prompt_iq3_s, RR_IQ3_S)
