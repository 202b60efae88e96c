// The part of a chunk that needs no state. A block makes a chunk of a key head ready, and what the
// value heads that read it make of it.
#pragma once

#include "gated_delta_net_wgmma.cuh"

namespace {

constexpr int kPrepareThreads = 256;
constexpr int kTogether = kPrepareThreads / kChunk;  // value heads at once: a thread for a row
constexpr int kRelated = kChunk + 4;                 // floats of a row

constexpr int kLower = kBlocks * (kBlocks + 1) / 2;  // blocks on or below the diagonal

// Decays of a value head. D_ij = from_block[i] to_block[i / kBlock][j] where j is of an earlier
// block than i: from that of the last token before i's block to i, and from j to that token.
struct Decays {
  float sum[kChunk], rest[kChunk];  // log2(exp(G)) as the sum of two floats
  float from_block[kChunk], to_block[kBlocks][kChunk];
  float beta[kChunk];
};

template <int S>
struct PrepareShared {
  union {
    Tokens<S> tokens;
    float a[kTogether][kChunk][kRelated];  // [i][j] = A_ij for j < i
  };
  float kk[kChunk][kRelated], qk[kChunk][kRelated];  // [i][j] = k_i k_j, q_i k_j for j <= i
  Decays decays[kTogether];
};

struct Place {
  int key, tokens;
  int64_t row;  // of the first token
};

__device__ inline float4 load_quad(const float* from, bool whole) {
  if (whole) return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], from[1], from[2], from[3]);
}

__device__ inline void load_eight(const float* from, float (&to)[8]) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(to + 4) = *reinterpret_cast<const float4*>(from + 4);
}

// Eight values of a row as images have them: the larger terms and the smaller ones.
struct Eight {
  uint4 high, low;
};

__device__ inline Eight split_eight(const float* x) {
  uint2 pairs[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) pairs[e] = split_pair(x[2 * e], x[2 * e + 1]);
  return {make_uint4(pairs[0].x, pairs[1].x, pairs[2].x, pairs[3].x),
          make_uint4(pairs[0].y, pairs[1].y, pairs[2].y, pairs[3].y)};
}

template <int images>
__device__ inline void store_eight(Terms<images>& to, int row, int first, const Eight& x) {
  const int image = first / kImage, column = image_column(row, first % kImage);
  *reinterpret_cast<uint4*>(&to.high[image].at[row][column]) = x.high;
  *reinterpret_cast<uint4*>(&to.low[image].at[row][column]) = x.low;
}

__device__ inline void load_token(const Heads& from, const Place& place, int i, int key, bool whole,
                                  float (&to)[8]) {
  const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const bool there = i < place.tokens;
  const float* at = from.at(place.row + (there ? i : 0), place.key) + key;
  const float4 first = there ? load_quad(at, whole) : none;
  const float4 second = there ? load_quad(at + 4, whole) : none;
  *reinterpret_cast<float4*>(to) = first;
  *reinterpret_cast<float4*>(to + 4) = second;
}

// meanwhile: what is done while they are on their way.
template <int S, typename F>
__device__ inline void load_tokens(const Task& task, const Place& place, Tokens<S>& shared,
                                   Tokens<S>& ready, F meanwhile) {
  constexpr int kEights = S / 8, kTurns = kChunk * kEights / kPrepareThreads;
  float __align__(16) k[kTurns][8], q[kTurns][8];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int at = turn * kPrepareThreads + threadIdx.x, i = at / kEights, key = at % kEights * 8;
    load_token(task.k, place, i, key, task.whole_tokens, k[turn]);
    load_token(task.q, place, i, key, task.whole_tokens, q[turn]);
  }
  meanwhile();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int at = turn * kPrepareThreads + threadIdx.x, i = at / kEights, key = at % kEights * 8;
    const Eight of_k = split_eight(k[turn]), of_q = split_eight(q[turn]);
    store_eight(shared.k, i, key, of_k);
    store_eight(ready.k, i, key, of_k);
    store_eight(shared.q, i, key, of_q);
    store_eight(ready.q, i, key, of_q);
  }
}

// A warp's 16x16 first operand.
__device__ inline void load_left(unsigned (&to)[4], const Image& image, int row, int column) {
  const int lane = threadIdx.x % kWarp, at = row + lane % 16;
  load_matrix4(to, &image.at[at][image_column(at, column + lane / 16 * 8)]);
}

// One warpgroup relates keys to keys, the other one queries to keys.
template <int S>
__device__ inline void relate_tokens(PrepareShared<S>& shared) {
  const int warp = threadIdx.x / kWarp % 4, lane = threadIdx.x % kWarp;
  const bool queries = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) != 0;
  const Terms<S / kImage>&k = shared.tokens.k, &x = queries ? shared.tokens.q : k;
  unsigned high[S / 16][4], low[S / 16][4];
#pragma unroll
  for (int key = 0; key < S; key += 16) {
    load_left(high[key / 16], x.high[key / kImage], warp * 16, key % kImage);
    load_left(low[key / 16], x.low[key / kImage], warp * 16, key % kImage);
  }
  float sums[32];
  products_begin();
#pragma unroll
  for (int key = 0; key < S; key += 16) {
    multiply<64, false>(sums, low[key / 16], k.high, key, key > 0);
    multiply<64, false>(sums, high[key / 16], k.low, key, true);
    multiply<64, false>(sums, high[key / 16], k.high, key, true);
  }
  products_commit();
  products_wait<0>();
  auto& to = queries ? shared.qk : shared.kk;
#pragma unroll
  for (int e = 0; e < 32; e += 2)
    *reinterpret_cast<float2*>(
        &to[warp * 16 + lane / 4 + e / 2 % 2 * 8][e / 4 * 8 + lane % 4 * 2]) =
        make_float2(sums[e], sums[e + 1]);
}

// The value head that is number `index` of those that read a key head.
__device__ inline int value_head(const Task& task, int key, int index) {
  return task.tiled ? index * task.key_heads + key : key * (task.heads / task.key_heads) + index;
}

// Log decays and beta of two tokens of a value head; nothing happens in those that are not there.
struct Gates {
  float g[2], beta[2];
};

// Of warp w the head that is number of + w of those that read the key head.
__device__ inline Gates load_gates(const Task& task, const Place& place, int of) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, index = of + warp;
  Gates gates = {};
  if (warp >= kTogether || index >= task.heads / task.key_heads) return gates;
  const int head = value_head(task, place.key, index);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int64_t at = (place.row + 2 * lane + e) * task.heads + head;
    if (2 * lane + e >= place.tokens) continue;
    gates.g[e] = task.g[at];
    gates.beta[e] = task.beta[at];
  }
  return gates;
}

// By a warp. G in double: a chunk may sum to -6400, and differences are exponents. Below -1e4 a
// decay is 0 as well, and sums of such stay finite.
__device__ inline void sum_decays(const Gates& gates, Decays& decays, Factors& ready) {
  constexpr double kLog2e = 1.4426950408889634;
  const int lane = threadIdx.x % kWarp;
  double of_token[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    of_token[e] = kLog2e * fmaxf(gates.g[e], -1e4f);
    decays.beta[2 * lane + e] = gates.beta[e];
  }
  double sum = of_token[0] + of_token[1];
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const double before = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += before;
  }
  double before_block[kBlocks];  // G of the last token before each
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
    before_block[b] = b == 0 ? 0.0 : __shfl_sync(kAllLanes, sum, b * kBlock / 2 - 1);
  const double last = __shfl_sync(kAllLanes, sum, kWarp - 1);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int i = 2 * lane + e;
    const double g = e == 0 ? sum - of_token[1] : sum;
    const float large = static_cast<float>(g), grown = exp2f(large);
    decays.sum[i] = large;
    decays.rest[i] = static_cast<float>(g - large);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const float apart = static_cast<float>(before_block[b] - g);
      if (b == i / kBlock) decays.from_block[i] = exp2f(-apart);
      if (b > i / kBlock) decays.to_block[b][i] = exp2f(apart);
    }
    ready.taken[i] = make_float2(gates.beta[e], gates.beta[e] * grown);
    ready.grown[i] = grown;
    ready.left[i] = exp2f(static_cast<float>(last - g));
  }
  if (lane == 0) ready.decay = exp2f(static_cast<float>(last));
}

// D_ij for j = first .. first + 7, which are of one block, not behind i's.
__device__ inline void decay_eight(const Decays& decays, int i, int first, float (&to)[8]) {
  if (first / kBlock < i / kBlock) {
    const float from = decays.from_block[i];
    load_eight(&decays.to_block[i / kBlock][first], to);
#pragma unroll
    for (int e = 0; e < 8; ++e) to[e] *= from;
    return;
  }
  float sum[8], rest[8];
  load_eight(&decays.sum[first], sum);
  load_eight(&decays.rest[first], rest);
#pragma unroll
  for (int e = 0; e < 8; ++e)
    to[e] = exp2f(fminf(decays.sum[i] - sum[e] + (decays.rest[i] - rest[e]), 0.0f));
}

// A 16x16 block of P and A of a value head, by a warp.
template <int S>
__device__ inline void relate_block(int index, int row, int column, PrepareShared<S>& shared,
                                    Terms<1>& p) {
  const Decays& decays = shared.decays[index];
  const int lane = threadIdx.x % kWarp;
  const int i = row + lane / 2, first = column + lane % 2 * 8;
  float of_p[8], of_a[8], decay[8];
  decay_eight(decays, i, first, decay);
  load_eight(&shared.qk[i][first], of_p);
  load_eight(&shared.kk[i][first], of_a);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    of_p[e] = first + e <= i ? of_p[e] * decay[e] : 0.0f;
    of_a[e] = first + e < i ? of_a[e] * decay[e] * decays.beta[i] : 0.0f;
  }
  float* a = &shared.a[index][i][first];
  *reinterpret_cast<float4*>(a) = make_float4(of_a[0], of_a[1], of_a[2], of_a[3]);
  *reinterpret_cast<float4*>(a + 4) = make_float4(of_a[4], of_a[5], of_a[6], of_a[7]);
  store_eight(p, i, first, split_eight(of_p));
}

// Inverts the blocks on the diagonal of I + A in place, a row for each thread: as x (I + A) is a
// row of I, z_j, the sum of x_k A_kj so far, gives way to x_j in its turn.
__device__ inline void invert_blocks(float (&a)[kChunk][kRelated], int row) {
  const int block = row / kBlock * kBlock;
  float z[kBlock] = {};
#pragma unroll
  for (int k = kBlock - 1; k >= 0; --k) {
    const float x = (block + k == row ? 1.0f : 0.0f) - z[k];
    z[k] = x;
#pragma unroll
    for (int j = 0; j < k; j += 4) {
      const float4 of_k = *reinterpret_cast<const float4*>(&a[block + k][block + j]);
      z[j] = fmaf(x, of_k.x, z[j]);
      if (j + 1 < k) z[j + 1] = fmaf(x, of_k.y, z[j + 1]);
      if (j + 2 < k) z[j + 2] = fmaf(x, of_k.z, z[j + 2]);
      if (j + 3 < k) z[j + 3] = fmaf(x, of_k.w, z[j + 3]);
    }
  }
  __syncwarp();  // a block's rows are of one warp
#pragma unroll
  for (int j = 0; j < kBlock; j += 4)
    *reinterpret_cast<float4*>(&a[row][block + j]) =
        make_float4(z[j], z[j + 1], z[j + 2], z[j + 3]);
}

// A 16x16 tile of sums in a warp's registers: value e % 4 of half e / 4 is of row
// l / 4 + 8 (e / 2 % 2), column 8 (e / 4) + 2 (l % 4) + e % 2.
struct Tile {
  float at[2][4];
};

// to += left right^T, where `right` are rows of floats.
__device__ inline void add_product(Tile& to, const Tile& left, const float (*right)[kRelated],
                                   int column) {
  const int lane = threadIdx.x % kWarp;
  unsigned high[4], low[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float* pair = &left.at[r / 2][r % 2 * 2];
    const uint2 split = split_pair(pair[0], pair[1]);
    high[r] = split.x;
    low[r] = split.y;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned larger[2], smaller[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* pair = &right[half * 8 + lane / 4][column + r * 8 + lane % 4 * 2];
      const uint2 split = split_pair(pair[0], pair[1]);
      larger[r] = split.x;
      smaller[r] = split.y;
    }
    mma_bf16(to.at[half], low, larger);
    mma_bf16(to.at[half], high, smaller);
    mma_bf16(to.at[half], high, larger);
  }
}

// Blocks `of` .. of T in a column of blocks, turned round: block b below the one on the diagonal is
// -T_bb sum of A_bk T_k. By a warp; a: with the blocks on the diagonal inverted.
__device__ inline void invert_column(const float (&a)[kChunk][kRelated], int of,
                                     Tile (&t)[kBlocks]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int row = e / 4 * 8 + lane % 4 * 2 + e % 2, column = lane / 4 + e / 2 % 2 * 8;
    t[0].at[e / 4][e % 4] = a[of * kBlock + row][of * kBlock + column];
  }
#pragma unroll
  for (int b = 1; b < kBlocks; ++b) {
    if (of + b >= kBlocks) continue;
    const float(*rows)[kRelated] = &a[(of + b) * kBlock];
    Tile sum = {};
#pragma unroll
    for (int k = 0; k < b; ++k) add_product(sum, t[k], rows, (of + k) * kBlock);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.at[e / 4][e % 4] = -sum.at[e / 4][e % 4];
    t[b] = {};
    add_product(t[b], sum, rows, (of + b) * kBlock);
  }
}

__device__ inline void store_column(const Tile (&t)[kBlocks], int of, Terms<1>& to) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    if (of + b >= kBlocks) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = (of + b) * kBlock + e / 4 * 8 + lane % 4 * 2 + e % 2;
      const int column = image_column(row, of * kBlock + lane / 4 + e / 2 % 2 * 8);
      const float x = t[b].at[e / 4][e % 4];
      const uint16_t high = float_to_bf16(x);
      to.high[0].at[row][column] = high;
      to.low[0].at[row][column] = float_to_bf16(x - bf16_to_float(high));
    }
  }
}

template <int S>
__device__ inline Terms<1>& t_of(PrepareShared<S>& shared, int index) {
  return *reinterpret_cast<Terms<1>*>(&shared.a[index]);
}

// T of `count` heads, each in place of its A.
template <int S>
__device__ inline void invert(PrepareShared<S>& shared, int count) {
  static_assert(sizeof(Terms<1>) <= sizeof shared.a[0], "T takes the place of A");
  constexpr int kWarps = kPrepareThreads / kWarp, kTurns = kTogether * kBlocks / kWarps;
  const int index = threadIdx.x / kChunk, warp = threadIdx.x / kWarp;
  if (index < count) invert_blocks(shared.a[index], threadIdx.x % kChunk);
  __syncthreads();
  // The first columns of a head are the longest: who had one of them gets a short one next.
  const auto job_of = [](int turn, int warp) {
    return turn * kWarps + (turn % 2 == 0 ? warp : kWarps - 1 - warp);
  };
  Tile t[kTurns][kBlocks];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int job = job_of(turn, warp);
    if (job < count * kBlocks) invert_column(shared.a[job / kBlocks], job % kBlocks, t[turn]);
  }
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int job = job_of(turn, warp);
    if (job < count * kBlocks) store_column(t[turn], job % kBlocks, t_of(shared, job / kBlocks));
  }
  __syncthreads();
}

__device__ inline void copy_blocks(const Terms<1>& from, Terms<1>& to) {
#pragma unroll
  for (int at = threadIdx.x; at < kChunk * kChunk / 8; at += kPrepareThreads) {
    const int i = at / 8, first = at % 8 * 8, column = image_column(i, first);
    if (first / kBlock > i / kBlock) continue;
    const auto copy = [&](const Image& of, Image& in) {
      *reinterpret_cast<uint4*>(&in.at[i][column]) =
          *reinterpret_cast<const uint4*>(&of.at[i][column]);
    };
    copy(from.high[0], to.high[0]);
    copy(from.low[0], to.low[0]);
  }
}

// A block for each chunk of `first` .. and key head.
template <int S>
__global__ void __launch_bounds__(kPrepareThreads, 2)
    prepare_tokens(Task task, Tokens<S>* tokens, Relations* relations, Factors* factors,
                   int first) {
  enter_grid();
  if (!sequences_fit(task.all)) return;
  const int slot = first + blockIdx.x, b = sequence_at(task, slot);
  if (b < 0) return;
  const int token = (slot - chunk_base(task, b)) * kChunk;
  Place place;
  place.key = blockIdx.y;
  place.tokens = min(kChunk, task.all.batch.length(b) - token);
  place.row = int64_t{task.all.batch.first(b)} + token;
  auto& shared = *align_images<PrepareShared<S>>(dynamic_shared());
  const int heads = task.heads / task.key_heads, warp = threadIdx.x / kWarp;
  const auto ready_at = [&](int index) {
    return int64_t{blockIdx.x} * task.heads + value_head(task, place.key, index);
  };
  const auto decay = [&](int of, const Gates& gates) {
    if (warp < min(kTogether, heads - of))
      sum_decays(gates, shared.decays[warp], factors[ready_at(of + warp)]);
  };
  const Gates gates = load_gates(task, place, 0);
  load_tokens(task, place, shared.tokens, tokens[int64_t{blockIdx.x} * task.key_heads + place.key],
              [&] { decay(0, gates); });
  share_with_products();
  __syncthreads();
  relate_tokens(shared);
  for (int of = 0; of < heads; of += kTogether) {
    const int count = min(kTogether, heads - of);
    if (of > 0) decay(of, load_gates(task, place, of));
    __syncthreads();
    for (int job = warp; job < count * kLower; job += kPrepareThreads / kWarp) {
      const int index = job / kLower, block = job % kLower;
      const int row = (block >= 1) + (block >= 3) + (block >= 6);
      const int column = block - row * (row + 1) / 2;
      relate_block(index, row * kBlock, column * kBlock, shared, relations[ready_at(of + index)].p);
    }
    __syncthreads();
    invert(shared, count);
    for (int index = 0; index < count; ++index)
      copy_blocks(t_of(shared, index), relations[ready_at(of + index)].t);
  }
}

}  // namespace
