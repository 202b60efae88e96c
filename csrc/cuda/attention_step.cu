// attention of few queries over caches of two bytes an element.
#include "attention_step_run.cuh"

RR_ATTENTION_STEP(attention_f16, RR_F16)
RR_ATTENTION_STEP(attention_bf16, RR_BF16)
