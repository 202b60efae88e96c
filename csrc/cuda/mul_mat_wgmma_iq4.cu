#include "mul_mat_id_wgmma.cuh"

RR_PROMPT_PRODUCTS(prompt_iq4_nl, RR_IQ4_NL)
RR_PROMPT_PRODUCTS(prompt_iq4_xs, RR_IQ4_XS)
