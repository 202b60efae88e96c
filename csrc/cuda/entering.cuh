// Rows that enter a pool at given places.
#pragma once

#include "kernel.cuh"

namespace {

// idx: the place of each of n rows, of `limit` places, none where it is negative. unfit: for each
// row whether the pool's blocks cannot hold it; null where that is not known before.
struct Entering {
  const int32_t* idx;
  int* unfit;
  int64_t n, limit;
  Check index;
};

[[maybe_unused]] inline Entering entering(const rr_exec* exec, const rr_tensor& idx, int64_t limit,
                                          int* unfit = nullptr) {
  return {data<const int32_t>(idx), unfit, idx.shape[0], limit,
          check(exec, "'idx' should be below %lld, got %lld")};
}

// Whether row i is to be written: no row has a bad index or unfit values, and no later row goes to
// the same place. The same in all threads of a block, which all take part.
__device__ inline bool enters(const Entering& to, int64_t i) {
  __shared__ int stop;
  if (threadIdx.x == 0) stop = 0;
  __syncthreads();
  const int own = to.idx[i];
  for (int64_t j = threadIdx.x; j < to.n; j += blockDim.x) {
    const int other = to.idx[j];
    if (other >= to.limit) report(to.index, to.limit, other);
    if (other >= to.limit || (to.unfit && to.unfit[j]) || (j > i && other == own))
      atomicMax(&stop, 1);
  }
  __syncthreads();
  return own >= 0 && stop == 0;
}

// Element e of a row of a plain type.
template <uint32_t dtype>
__device__ inline void store(char* to, int64_t e, float x) {
  if (dtype == RR_F32)
    reinterpret_cast<float*>(to)[e] = x;
  else
    reinterpret_cast<uint16_t*>(to)[e] = dtype == RR_F16 ? float_to_half(x) : float_to_bf16(x);
}

}  // namespace
