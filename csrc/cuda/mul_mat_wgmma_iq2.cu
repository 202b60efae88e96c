#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_iq2_xxs, RR_IQ2_XXS)
RR_PROMPT_PRODUCTS(prompt_iq2_xs, RR_IQ2_XS)
RR_PROMPT_PRODUCTS(prompt_iq2_s, RR_IQ2_S)
