#include "prompt_experts.cuh"

RR_PROMPT_PRODUCTS(prompt_q6_k, RR_Q6_K)
RR_PROMPT_EXPERTS(prompt_q6_k, RR_Q6_K)
