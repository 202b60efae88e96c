#include "prompt_experts.cuh"

RR_PROMPT_PRODUCTS(prompt_q4_k, RR_Q4_K)
RR_PROMPT_EXPERTS(prompt_q4_k, RR_Q4_K)
