#include "prompt_experts.cuh"

RR_PROMPT_PRODUCTS(prompt_q5_k, RR_Q5_K)
RR_PROMPT_EXPERTS(prompt_q5_k, RR_Q5_K)
