// gated_delta_net for prompts, in chunks of 64 tokens on tensor cores. One kernel prepares all
// chunks at once, another takes rows of the state through those of a sequence. Sequences that are
// short, or whose tokens do not all change the committed state, go token by token.
#include <stdlib.h>

#include <algorithm>

#include "gated_delta_net_chunk_prepare.cuh"

namespace {

constexpr int kSlice = 32;  // value rows of a block
constexpr int kWalkThreads =
    256;  // a warp for 16 rows and a quarter of the tokens, and of the keys

template <int S>
struct Walk {
  static constexpr int kKeyStride = S + 8, kTokenStride = kChunk + 8;
  static constexpr int kKeyApart = kSlice * kKeyStride, kTokenApart = kSlice * kTokenStride;
  static constexpr int kBuffer =  // W or Q, or the keys
      2 * (kChunk * kKeyStride > S * kTokenStride ? kChunk * kKeyStride : S * kTokenStride);
  static constexpr int kOwn = S / 4, kOwnTiles = kOwn / kTile;  // keys of a warp
};

template <int S, int buffers>
struct __align__(16) WalkShared {
  uint16_t buffer[buffers][Walk<S>::kBuffer];
  uint16_t m[2][kSlice][Walk<S>::kKeyStride];    // the state before the chunk
  uint16_t v[2][kSlice][Walk<S>::kTokenStride];  // V'
};

// This warp's part in a block's work.
struct WarpPart {
  int rows, quarter;  // rows: its first of the slice; quarter: of tokens and of keys
  int row, column;    // of this lane's values in a tile of a product, which are at_row, at_column
};

__device__ inline WarpPart part_of_warp() {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  return {warp / 4 * kTile, warp % 4, lane / 4, lane % 4 * 2};
}

// Starts to copy rows of `columns` bf16.
template <int columns, int stride>
__device__ inline void fetch_rows(uint16_t* to, const uint16_t* from, int rows) {
  constexpr int kParts = columns / 8;
  for (int at = threadIdx.x; at < rows * kParts; at += kWalkThreads) {
    const int row = at / kParts, part = at % kParts * 8;
    async_copy16(to + row * stride + part, from + row * columns + part);
  }
}

// Stages come in threes for a chunk: W, Q, keys. All threads take part; none is also a group.
template <int S, int buffers>
__device__ inline void fetch_stage(const Ready<S>* chunks, int64_t apart, int stage, int stages,
                                   WalkShared<S, buffers>& shared) {
  if (stage < stages) {
    const Ready<S>& ready = chunks[stage / 3 * apart];
    uint16_t* to = shared.buffer[stage % buffers];
    if (stage % 3 == 0)
      fetch_rows<S, Walk<S>::kKeyStride>(to, ready.w[0][0], 2 * kChunk);
    else if (stage % 3 == 1)
      fetch_rows<S, Walk<S>::kKeyStride>(to, ready.q[0][0], 2 * kChunk);
    else
      fetch_rows<kChunk, Walk<S>::kTokenStride>(to, ready.k[0][0], 2 * S);
  }
  async_copy_commit();
}

// Makes a stage's operands seen, and starts the stage that takes the buffer of the one before.
template <int S, int buffers>
__device__ inline const uint16_t* enter_stage(const Ready<S>* chunks, int64_t apart, int stage,
                                              int stages, WalkShared<S, buffers>& shared) {
  async_copy_wait<buffers - 2>();
  __syncthreads();
  fetch_stage(chunks, apart, stage + buffers - 1, stages, shared);
  return shared.buffer[stage % buffers];
}

// A tile of a product as both terms, where it is to be an operand; rows of `stride` bf16.
__device__ inline void share_tile(const float (&x)[2][4], const WarpPart& part, uint16_t* to,
                                  int stride, int apart) {
#pragma unroll
  for (int e = 0; e < 8; e += 2) {
    const uint2 pair = split_pair(x[e / 4][e % 4], x[e / 4][e % 4 + 1]);
    uint16_t* at = to + (part.row + e / 2 % 2 * 8) * stride + e / 4 * 8 + part.column;
    *reinterpret_cast<unsigned*>(at) = pair.x;
    *reinterpret_cast<unsigned*>(at + apart) = pair.y;
  }
}

// M times this warp's tokens of W or Q.
template <int S, int buffers>
__device__ inline void multiply_state(const WalkShared<S, buffers>& shared, const uint16_t* tokens,
                                      const WarpPart& part, float (&to)[2][4]) {
  using W = Walk<S>;
  float small[2][4] = {};
#pragma unroll
  for (int key = 0; key < S; key += kTile) {
    const Pair m = load_left(&shared.m[0][part.rows][key], W::kKeyStride, W::kKeyApart);
    const uint16_t* tile = tokens + part.quarter * kTile * W::kKeyStride + key;
    multiply_tile(to, small, m, load_right(tile, W::kKeyStride, kChunk * W::kKeyStride));
  }
  add_tile(to, small);
}

__device__ inline Pair read_pair(const uint4& high, const uint4& low) {
  return {{high.x, high.y, high.z, high.w}, {low.x, low.y, low.z, low.w}};
}

// What the tokens of the chunk add to the output, and to this warp's keys of the state.
template <int S, int buffers>
__device__ inline void add_tokens(const WalkShared<S, buffers>& shared, const uint16_t* keys,
                                  const WarpPart& part, const uint4 (&p)[4][2], float (&out)[2][4],
                                  float (&m)[Walk<S>::kOwnTiles][2][4]) {
  using W = Walk<S>;
#pragma unroll
  for (int t = 0; t < kChunk / kTile; ++t) {
    const Pair v = load_left(&shared.v[0][part.rows][t * kTile], W::kTokenStride, W::kTokenApart);
    if (t <= part.quarter) multiply_tile(out, out, v, read_pair(p[t][0], p[t][1]));
#pragma unroll
    for (int n = 0; n < W::kOwnTiles; ++n) {
      const int key = part.quarter * W::kOwn + n * kTile;
      const uint16_t* tile = keys + key * W::kTokenStride + t * kTile;
      multiply_tile(m[n], m[n], v, load_right(tile, W::kTokenStride, S * W::kTokenStride));
    }
  }
}

// Value e of a lane's part of a 16x16 tile, counted from its first.
__device__ inline constexpr int at_row(int e) {
  return e / 2 % 2 * 8;
}

__device__ inline constexpr int at_column(int e) {
  return e / 4 * 8 + e % 2;
}

// This warp's rows of a matrix with rows of `stride` floats, from `column` on.
__device__ inline void load_tile(float (&to)[2][4], const float* from, int stride) {
#pragma unroll
  for (int e = 0; e < 8; e += 2) {
    const float2 x = *reinterpret_cast<const float2*>(from + at_row(e) * stride + at_column(e));
    to[e / 4][e % 4] = x.x;
    to[e / 4][e % 4 + 1] = x.y;
  }
}

__device__ inline void store_tile(float* to, const float (&x)[2][4], int stride) {
#pragma unroll
  for (int e = 0; e < 8; e += 2)
    *reinterpret_cast<float2*>(to + at_row(e) * stride + at_column(e)) =
        make_float2(x[e / 4][e % 4], x[e / 4][e % 4 + 1]);
}

// A sequence's chunks of a launch, and a head's slice of values.
struct Walked {
  int b, head, value;  // value: the first
  int first, count;    // first: among the chunks of the sequence
  int place;           // of that chunk in the workspace
};

__device__ inline Walked walked(const Task& task, int first, int slots) {
  const int slices = task.size / kSlice;
  Walked w = {};
  w.value = static_cast<int>(blockIdx.x) % slices * kSlice;
  w.head = static_cast<int>(blockIdx.x) / slices % task.heads;
  w.b = static_cast<int>(blockIdx.x) / slices / task.heads;
  const int base = chunk_base(task, w.b) - first;
  w.first = max(0, -base);
  w.place = base + w.first;
  w.count = min(chunks_of(task, w.b) - w.first, slots - w.place);
  return w;
}

// O of this warp's tokens; value: the first of its rows.
__device__ inline void store_output(const Task& task, const Walked& w, const WarpPart& part,
                                    int chunk, int value, const float (&out)[2][4]) {
  const int first = chunk * kChunk + part.quarter * kTile + part.column;
  const int left = task.all.batch.length(w.b) - first;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int64_t row = int64_t{task.all.batch.first(w.b)} + first + at_column(e);
    if (at_column(e) < left)
      task.o.at(row, w.head)[value + part.row + at_row(e)] = out[e / 4][e % 4];
  }
}

// A block for each sequence, head and slice of its values. `all`: chunks first .. first + slots - 1
// of the line.
template <int S, int buffers>
__global__ void __launch_bounds__(kWalkThreads, buffers > 2 ? 1 : 2)
    walk_chunks(Task task, const Ready<S>* all, int first, int slots) {
  using W = Walk<S>;
  enter_grid();
  if (!sequences_fit(task.all)) return;
  const Walked w = walked(task, first, slots);
  if (w.count <= 0) return;
  auto& shared = *reinterpret_cast<WalkShared<S, buffers>*>(dynamic_shared());
  const Ready<S>* chunks = all + int64_t{w.place} * task.heads + w.head;
  const int stages = 3 * w.count;
#pragma unroll
  for (int s = 0; s < buffers - 1; ++s) fetch_stage(chunks, task.heads, s, stages, shared);
  const WarpPart part = part_of_warp();
  const int value = w.value + part.rows;
  float* state = task.all.kept.plane(w.b, task.all.kept.source(w.b)) +
                 (int64_t{w.head} * S + value + part.row) * S + part.quarter * W::kOwn +
                 part.column;
  float m[W::kOwnTiles][2][4];
#pragma unroll
  for (int n = 0; n < W::kOwnTiles; ++n) load_tile(m[n], state + n * kTile, S);
  for (int c = 0, stage = 0; c < w.count; ++c) {
    const Ready<S>& ready = chunks[int64_t{c} * task.heads];
#pragma unroll
    for (int n = 0; n < W::kOwnTiles; ++n)
      share_tile(m[n], part, &shared.m[0][part.rows][part.quarter * W::kOwn + n * kTile],
                 W::kKeyStride, W::kKeyApart);
    float u[2][4], known[2][4] = {}, out[2][4] = {};
    load_tile(u, &ready.u[value + part.row][part.quarter * kTile + part.column], kChunk);
    const uint16_t* tokens = enter_stage(chunks, task.heads, stage++, stages, shared);
    multiply_state(shared, tokens, part, known);
#pragma unroll
    for (int e = 0; e < 8; ++e) u[e / 4][e % 4] -= known[e / 4][e % 4];
    share_tile(u, part, &shared.v[0][part.rows][part.quarter * kTile], W::kTokenStride,
               W::kTokenApart);
    uint4 p[kChunk / kTile][2] = {};
#pragma unroll
    for (int t = 0; t < kChunk / kTile; ++t)
      for (int term = 0; term < 2; ++term)
        if (t <= part.quarter) p[t][term] = ready.p[part.quarter][t][term][threadIdx.x % kWarp];
    const float decay = ready.decay;
    tokens = enter_stage(chunks, task.heads, stage++, stages, shared);
    multiply_state(shared, tokens, part, out);
#pragma unroll
    for (int n = 0; n < W::kOwnTiles; ++n)
      for (int e = 0; e < 8; ++e) m[n][e / 4][e % 4] *= decay;
    tokens = enter_stage(chunks, task.heads, stage++, stages, shared);
    add_tokens(shared, tokens, part, p, out, m);
    store_output(task, w, part, w.first + c, value, out);
  }
#pragma unroll
  for (int n = 0; n < W::kOwnTiles; ++n) store_tile(state + n * kTile, m[n], S);
}

// Values of chunks have only been checked emulated so far: on a card they are there for the asking.
bool asked_for() {
#ifdef RR_EMULATE
  return true;
#else
  const char* asked = getenv("RIVERRUN_CUDA_CHUNKED");
  return asked && strcmp(asked, "1") == 0;
#endif
}

int supports(const rr_node* node, char* why, size_t size) {
  if (!supports_pass(node, why, size)) return 0;
  const rr_tensor* in = node->inputs;
  if (in[2].shape[2] != 64 && in[2].shape[2] != 128)
    return refuse(why, size, "chunks are for heads of 64 or 128 values");
  if (!asked_for()) return refuse(why, size, "chunks need RIVERRUN_CUDA_CHUNKED=1");
  if (in[3].rank != 2) return refuse(why, size, "chunks need one decay for all keys of a head");
  if (in[7].rank != 2) return refuse(why, size, "chunks leave no states after single tokens");
  if (in[2].shape[0] < 2 * kChunk) return refuse(why, size, "chunks are for 128 rows or more");
  return 1;
}

// Chunks go through the workspace in rounds of so many.
template <int S>
int64_t chunks_at_once(const rr_node* node) {
  const int64_t most = int64_t{64} << 20, of_head = sizeof(Ready<S>);
  const int64_t all = most_chunks(node->inputs[2].shape[0], node->inputs[6].shape[0]);
  const int64_t fit = most / (of_head * node->inputs[2].shape[1]);
  return std::max<int64_t>(1, std::min(fit, all));
}

template <int S>
size_t workspace_of(const rr_node* node) {
  return static_cast<size_t>(chunks_at_once<S>(node) * node->inputs[2].shape[1]) * sizeof(Ready<S>);
}

size_t workspace(const rr_node* node, int32_t) {
  return node->inputs[2].shape[2] == 64 ? workspace_of<64>(node) : workspace_of<128>(node);
}

int64_t shared_limit() {
  int device = 0, limit = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return limit;
}

template <int S, int buffers>
void launch_walk(const rr_exec* exec, const Task& task, const Ready<S>* ready, int first,
                 int slots) {
  constexpr int kBytes = sizeof(WalkShared<S, buffers>);
  const dim3 grid(static_cast<unsigned>(task.all.batch.count * task.heads * (S / kSlice)));
  allow_shared(walk_chunks<S, buffers>, kBytes);
  RR_LAUNCH(exec, (walk_chunks<S, buffers>), grid, kWalkThreads, kBytes, task, ready, first, slots);
}

template <int S>
void run_chunks(const rr_node* node, const rr_exec* exec, const Task& task) {
  constexpr int kBytes = sizeof(Scratch<S>);
  constexpr int kDeep = 4;  // buffers where a multiprocessor has but one block
  const int64_t blocks = int64_t{task.all.batch.count} * task.heads * (S / kSlice);
  const bool deep = blocks <= cuda(exec).multiprocessors &&
                    shared_limit() >= static_cast<int64_t>(sizeof(WalkShared<S, kDeep>)) + 1024;
  allow_shared(prepare_chunks<S>, kBytes);
  auto* ready = static_cast<Ready<S>*>(exec->workspace);
  const int64_t all = most_chunks(task.all.batch.rows, task.all.batch.count);
  const int64_t at_once = chunks_at_once<S>(node);
  for (int64_t at = 0; at < all; at += at_once) {
    const int first = static_cast<int>(at), slots = static_cast<int>(std::min(at_once, all - at));
    const dim3 chunks(static_cast<unsigned>(slots), static_cast<unsigned>(task.heads));
    RR_LAUNCH(exec, (prepare_chunks<S>), chunks, 2 * S, kBytes, task, ready, first);
    if (deep)
      launch_walk<S, kDeep>(exec, task, ready, first, slots);
    else
      launch_walk<S, 2>(exec, task, ready, first, slots);
  }
}

void run(const rr_node* node, const rr_exec* exec) {
  Task task = read_task(node, exec);
  task.chunk = task.whole_state ? kChunk : 0;
  if (task.size == 64) {
    launch_pass<Shape<8, 2, 1>, false>(exec, task);
    if (task.chunk > 0) run_chunks<64>(node, exec, task);
  } else {
    launch_pass_128<false>(exec, task);
    if (task.chunk > 0) run_chunks<128>(node, exec, task);
  }
}

}  // namespace

RR_CUDA_KERNEL(gated_delta_net_chunked, 0, "gated_delta_net", "chunked",
               "NMSE 1e-9: operands of two bf16, and sums of a chunk in another order", 10,
               supports, workspace, run)
