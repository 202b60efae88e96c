// attention of few queries over caches of codes.
#include "attention_step_run.cuh"

RR_ATTENTION_STEP(attention_q8_0, RR_Q8_0)
RR_ATTENTION_STEP(attention_q4_0, RR_Q4_0)
