#include "prompt_experts.cuh"

RR_PROMPT_PRODUCTS(prompt_q8_0, RR_Q8_0)
RR_PROMPT_EXPERTS(prompt_q8_0, RR_Q8_0)
