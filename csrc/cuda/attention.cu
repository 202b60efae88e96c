// attention: which block computes what. Query vectors (a token's heads that share a key head, of
// consecutive tokens of a sequence) are taken in tiles of R. Few tiles: a block for each split of
// each tile, and a second kernel that merges the splits, in rounds that bound the workspace. Many
// tiles: a block walks over its tile's splits and merges on the way, by the same formula in the
// same order, so that both give the same bits.
#include "attention_tile.cuh"

namespace {

constexpr int64_t kRoundBytes = int64_t{64} << 20;  // of splits' results in one round
constexpr int64_t kTileBytes = int64_t{256} << 20;  // of one tile's, at most
constexpr int64_t kManyTiles = 128;                 // times key heads: enough blocks to walk
constexpr int kMergers = 64;                        // threads, each with one element
constexpr int kBatch = 16;                          // splits' results that are read at a time
constexpr int kMostKey = 576, kMostValue = 512;     // elements a head

struct Task {
  View q, o;
  Pool k, v;
  const int32_t *offsets, *positions, *table;
  int batch, tokens, table_pages, page, kv_heads, group, k_room, splits;
  int64_t pool_pages, limit, window;  // limit: positions of the block table
  Scores scores;
  const float* sinks;  // of each head, or null
  bool causal, tiled;
  Check first, ascending, position, entry;
};

// Where a tile's vectors begin in its sequence, and how many it has; none: there is no such tile.
struct Place {
  int b, first, count;
};

// False if the offsets are bad; tiles are counted over all sequences.
template <int R>
__device__ bool find_tile(const Task& task, int tile, Place& place) {
  place = {0, 0, 0};
  if (task.offsets[0] != 0) {
    report(task.first, task.offsets[0], 0);
    return false;
  }
  for (int b = 0; b < task.batch; ++b) {
    const int from = task.offsets[b], to = task.offsets[b + 1];
    if (from > to || to > task.tokens) {
      report(task.ascending, from, to);
      return false;
    }
    const int vectors = (to - from) * task.group, tiles = (vectors + R - 1) / R;
    if (tile >= 0 && tile < tiles) place = {b, tile * R, min(R, vectors - tile * R)};
    tile -= tiles;
  }
  return true;
}

struct Vector {
  int token, head;
  Span seen;
};

// A member of the group of query heads that share a key head.
__device__ int head_of(const Task& task, int kv_head, int member) {
  return task.tiled ? member * task.kv_heads + kv_head : kv_head * task.group + member;
}

__device__ bool position_of(const Task& task, int token, int& at) {
  at = task.positions[token];
  if (at >= 0 && at < task.limit) return true;
  report(task.position, task.limit, at);
  return false;
}

// Vector i of a sequence at a key head; one whose position is bad sees nothing.
__device__ Vector vector_of(const Task& task, int b, int kv_head, int i) {
  const int token = task.offsets[b] + i / task.group, member = i % task.group;
  Vector v = {token, head_of(task, kv_head, member), {0, 0}};
  int at = 0, newest = 0;
  if (!position_of(task, token, at)) return v;
  if (!position_of(task, task.causal ? token : task.offsets[b + 1] - 1, newest)) return v;
  const int first =
      task.window > 0 && at >= task.window ? at - static_cast<int>(task.window) + 1 : 0;
  if (newest >= first) v.seen = {first, newest + 1};
  return v;
}

__device__ char* at_head(const View& v, int token, int head) {
  return v.data + token * v.strides[0] + head * v.strides[1];
}

// All threads: what the tile's vectors see, their values, and nothing merged yet.
template <int R, int QN>
__device__ void load_tile(const Task& task, const Place& place, int kv_head, const Shared& s,
                          Tile<R>& tile) {
  if (threadIdx.x < R) {
    const int r = threadIdx.x;
    tile.seen[r] =
        r < place.count ? vector_of(task, place.b, kv_head, place.first + r).seen : Span{0, 0};
    tile.run_top[r] = -INFINITY;
    tile.run_total[r] = 0.0f;
  }
  for (int i = threadIdx.x; i < R * task.k_room; i += kThreads) {
    const int r = i / task.k_room, d = i % task.k_room;
    float x = 0.0f;
    if (r < place.count && d < task.k.size) {
      const int vector = place.first + r, member = vector % task.group;
      const int head = head_of(task, kv_head, member);
      const int token = task.offsets[place.b] + vector / task.group;
      x = reinterpret_cast<const float*>(at_head(task.q, token, head))[d];
    }
    s.q[i] = x;
  }
  __syncthreads();
  Span any = {INT32_MAX, 0}, all = {0, INT32_MAX};
  for (int r = 0; r < place.count; ++r) {
    const Span seen = tile.seen[r];
    all = {max(all.first, seen.first), min(all.last, seen.last)};
    if (seen.first < seen.last) any = {min(any.first, seen.first), max(any.last, seen.last)};
  }
  if (threadIdx.x == 0) tile.any = any, tile.all = all;
  __syncthreads();
}

// Where the keys of a split lie, for those that any vector sees and whose page is in the pool.
template <int R, int QN>
__device__ void locate(const Task& task, const Place& place, int base, Tile<R>& tile) {
  if (threadIdx.x < kSplit) {
    const int at = base + threadIdx.x;
    bool seen = false;
    for (int r = 0; r < place.count; ++r)
      seen = seen || (at >= tile.seen[r].first && at < tile.seen[r].last);
    long long row = -1;
    if (seen) {
      const int page = at / task.page;
      const int entry = task.table[static_cast<int64_t>(place.b) * task.table_pages + page];
      if (entry >= 0 && entry < task.pool_pages)
        row = static_cast<long long>(entry) * task.page + at % task.page;
      else
        report(task.entry, task.pool_pages, entry);
    }
    tile.key_at[threadIdx.x] = row < 0 ? -1 : row * task.k.row_bytes;
    tile.value_at[ValueChunks<R, QN>::place_of(threadIdx.x)] =
        row < 0 ? -1 : row * task.v.row_bytes;
  }
  __syncthreads();
}

template <int R, int QN>
__device__ void attend_split(const Task& task, const Place& place, int kv_head, int split,
                             const Shared& s, Tile<R>& tile) {
  const int base = split * kSplit;
  locate<R, QN>(task, place, base, tile);
  attend<R, QN>(task.k, task.k.base + kv_head * task.k.head_bytes, task.v,
                task.v.base + kv_head * task.v.head_bytes, task.k_room, task.scores, base, s, tile);
}

// Results of splits: sums [tile, key head, split, R, Dv], then top and total
// [tile, key head, split, R, 2].
struct Results {
  float *sums, *marks;

  __device__ static int64_t index(const Task& task, int tile, int kv_head, int split, int r,
                                  int R) {
    return ((static_cast<int64_t>(tile) * task.kv_heads + kv_head) * task.splits + split) * R + r;
  }
};

template <int R, int QN>
__global__ void __launch_bounds__(kThreads, QN <= 64 ? 2 : 1)
    split_kernel(Task task, Results results, int first_tile) {
  enter_grid();
  __shared__ Tile<R> tile;
  const Shared s = shared_parts<R, QN>(task.k_room);
  const int split = blockIdx.x, kv_head = blockIdx.z;
  Place place;
  if (!find_tile<R>(task, first_tile + blockIdx.y, place) || place.count == 0) return;
  load_tile<R, QN>(task, place, kv_head, s, tile);
  if (tile.any.last <= split * kSplit || tile.any.first >= (split + 1) * kSplit) return;
  attend_split<R, QN>(task, place, kv_head, split, s, tile);
  const int64_t at = Results::index(task, blockIdx.y, kv_head, split, 0, R);
  const int size = task.v.size;
  for (int i = threadIdx.x; i < place.count * size; i += kThreads)
    results.sums[at * size + i] = s.sum[i / size * 4 * QN + i % size];
  if (static_cast<int>(threadIdx.x) < place.count) {
    results.marks[2 * (at + threadIdx.x)] = tile.top[threadIdx.x];
    results.marks[2 * (at + threadIdx.x) + 1] = tile.total[threadIdx.x];
  }
}

// An element of the result from the sums over all splits, zero where nothing was seen: a head's
// sink is one more score, whose value is zero.
__device__ float mean(const Task& task, int head, float sum, float top, float total) {
  if (total == 0.0f) return 0.0f;
  if (!task.sinks) return sum / total;
  const float sink = task.sinks[head], highest = fmaxf(top, sink), keep = expf(top - highest);
  return sum * keep / (total * keep + expf(sink - highest));
}

// Elements begin .. end - 1 of the heads of a key head in padding rows become zero.
__device__ void clear_padding(const Task& task, int kv_head, int start, int step, int begin,
                              int end) {
  for (int token = task.offsets[task.batch] + start; token < task.tokens; token += step)
    for (int member = 0; member < task.group; ++member) {
      const int head = kv_head * task.group + member;
      float* o = reinterpret_cast<float*>(at_head(task.o, token, head));
      for (int d = begin + threadIdx.x; d < end; d += blockDim.x) o[d] = 0.0f;
    }
}

// The largest of the tops up to and with this thread's, and `before`.
__device__ float top_so_far(float top, float before) {
  __shared__ float highest[kMergers / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int step = 1; step < kWarp; step *= 2) {
    const float other = __shfl_up_sync(kAllLanes, top, step);
    if (lane >= step) top = fmaxf(top, other);
  }
  if (lane == kWarp - 1) highest[warp] = top;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before = fmaxf(before, highest[w]);
  __syncthreads();
  return fmaxf(before, top);
}

// One vector's splits in ascending order; a thread has one element, for which every factor is the
// one that a block that walks would find.
template <int R>
__global__ void __launch_bounds__(kMergers)
    merge_kernel(Task task, Results results, int first_tile) {
  enter_grid();
  __shared__ float so_far[kMergers], keep[kMergers], take[kMergers], part[kMergers];
  const int tile = blockIdx.x / R, r = blockIdx.x % R, kv_head = blockIdx.y;
  const int begin = blockIdx.z * kMergers, d = begin + threadIdx.x, size = task.v.size;
  Place place;
  if (!find_tile<R>(task, first_tile + tile, place)) return;
  if (first_tile == 0)
    clear_padding(task, kv_head, blockIdx.x, gridDim.x, begin, min(begin + kMergers, size));
  if (r >= place.count) return;
  const Vector v = vector_of(task, place.b, kv_head, place.first + r);
  const int last = (v.seen.last + kSplit - 1) / kSplit;
  const int64_t origin = Results::index(task, tile, kv_head, 0, r, R);
  float sum = 0.0f, total = 0.0f, top = -INFINITY;
  for (int split = v.seen.first / kSplit; split < last; split += kMergers) {
    const int own = split + threadIdx.x, count = min(kMergers, last - split);
    const float* mark = results.marks + 2 * (origin + static_cast<int64_t>(own) * R);
    const float own_top = own < last ? mark[0] : -INFINITY;
    const float up_to = top_so_far(own_top, top);
    so_far[threadIdx.x] = up_to;
    __syncthreads();
    const bool none = threadIdx.x == 0 && split == v.seen.first / kSplit;
    const float before = threadIdx.x == 0 ? top : so_far[threadIdx.x - 1];
    keep[threadIdx.x] = none ? 0.0f : expf(before - up_to);
    take[threadIdx.x] = expf(own_top - up_to);
    part[threadIdx.x] = own < last ? mark[1] : 0.0f;
    __syncthreads();
    for (int i = 0; i < count; i += kBatch) {
      float x[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        x[j] = i + j < count && d < size
                   ? results.sums[(origin + static_cast<int64_t>(split + i + j) * R) * size + d]
                   : 0.0f;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j >= count) break;
        sum = fmaf(x[j], take[i + j], sum * keep[i + j]);
        total = total * keep[i + j] + part[i + j] * take[i + j];
      }
    }
    top = so_far[kMergers - 1];
    __syncthreads();
  }
  float* o = reinterpret_cast<float*>(at_head(task.o, v.token, v.head));
  if (d < size) o[d] = mean(task, v.head, sum, top, total);
}

// Takes the split in tile and s.sum into the sum over the splits before it.
template <int R, int QN>
__device__ void merge(const Place& place, int split, const Shared& s, Tile<R>& tile) {
  if (static_cast<int>(threadIdx.x) < place.count) {
    const int r = threadIdx.x, base = split * kSplit;
    const float before = tile.run_top[r], highest = fmaxf(before, tile.top[r]);
    const bool seen = tile.seen[r].first < base + kSplit && tile.seen[r].last > base;
    const float keep = tile.run_total[r] == 0.0f ? 0.0f : expf(before - highest);
    const float take = expf(tile.top[r] - highest);
    tile.keep[r] = seen ? keep : kUnseen;
    tile.take[r] = take;
    if (seen) {
      tile.run_total[r] = tile.run_total[r] * keep + tile.total[r] * take;
      tile.run_top[r] = highest;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < place.count * QN; i += kThreads) {
    const float keep = tile.keep[i / QN], take = tile.take[i / QN];
    if (keep == kUnseen) continue;
    const float4 run = read_float4(s.run + 4 * i), sum = read_float4(s.sum + 4 * i);
    write_float4(s.run + 4 * i,
                 make_float4(fmaf(sum.x, take, run.x * keep), fmaf(sum.y, take, run.y * keep),
                             fmaf(sum.z, take, run.z * keep), fmaf(sum.w, take, run.w * keep)));
  }
}

template <int R, int QN>
__global__ void __launch_bounds__(kThreads, QN <= 64 ? 2 : 1) walk_kernel(Task task) {
  enter_grid();
  __shared__ Tile<R> tile;
  const Shared s = shared_parts<R, QN>(task.k_room);
  const int kv_head = blockIdx.y, size = task.v.size;
  Place place;
  // The last tiles of a sequence see most: they begin first.
  if (!find_tile<R>(task, gridDim.x - 1 - blockIdx.x, place)) return;
  clear_padding(task, kv_head, blockIdx.x, gridDim.x, 0, size);
  if (place.count == 0) return;
  load_tile<R, QN>(task, place, kv_head, s, tile);
  for (int i = threadIdx.x; i < R * 4 * QN; i += kThreads) s.run[i] = 0.0f;
  for (int split = tile.any.first / kSplit; split * kSplit < tile.any.last; ++split) {
    attend_split<R, QN>(task, place, kv_head, split, s, tile);
    merge<R, QN>(place, split, s, tile);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < place.count * size; i += kThreads) {
    const int r = i / size, d = i % size, vector = place.first + r, member = vector % task.group;
    const int head = head_of(task, kv_head, member);
    const int token = task.offsets[place.b] + vector / task.group;
    reinterpret_cast<float*>(at_head(task.o, token, head))[d] =
        mean(task, head, s.run[r * 4 * QN + d], tile.run_top[r], tile.run_total[r]);
  }
}

// What follows from a node's shapes alone.
struct Shape {
  int64_t tokens, batch, kv_heads, group, splits, values;
  int rows, quads, k_room;  // R, QN, elements of a key in whole runs

  int64_t tiles() const {
    const int64_t apart = tokens * ((group + rows - 1) / rows);
    const int64_t dense = tokens * group / rows + batch;
    return apart < dense ? apart : dense;
  }
  int64_t tile_bytes() const {
    return kv_heads * splits * rows * (values + 2) * static_cast<int64_t>(sizeof(float));
  }
  bool walk() const { return tiles() * kv_heads >= kManyTiles || tile_bytes() > kTileBytes; }
  // Tiles whose splits' results are kept at a time.
  int64_t round() const {
    const int64_t fit = kRoundBytes / tile_bytes(), all = tiles();
    return fit < 1 ? 1 : fit < all ? fit : all;
  }
  int64_t workspace() const { return walk() ? 0 : round() * tile_bytes(); }
};

Shape shape_of(const rr_node* node) {
  const rr_tensor* in = node->inputs;
  const int64_t page = attr_int(node, "page", 256), values = in[2].shape[2];
  Shape s = {};
  s.tokens = in[0].shape[0];
  s.batch = in[3].shape[0] - 1;
  s.kv_heads = in[1].shape[1];
  s.group = in[0].shape[1] / s.kv_heads;
  s.splits = (in[5].shape[1] * page + kSplit - 1) / kSplit;
  s.values = values;
  s.quads = values <= 64 ? 16 : values <= 128 ? 32 : values <= 256 ? 64 : 128;
  s.k_room = static_cast<int>((in[0].shape[2] + kRun - 1) / kRun * kRun);
  s.rows = s.tokens * s.group > 8 * (s.batch < s.tokens ? s.batch : s.tokens) ? 16 : 8;
  return s;
}

// The most shared memory that a block of the current device may have.
int most_shared() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

template <int R, int QN>
void run_sized(const Task& task, Shape shape, const rr_exec* exec) {
  const int bytes =
      Layout<R, QN>::floats(task.k_room, shape.walk()) * static_cast<int>(sizeof(float));
  // Wide heads on cards with less of it: smaller tiles, which give the same bits.
  if constexpr (R == 16) {
    if (bytes + static_cast<int>(sizeof(Tile<R>)) > most_shared()) {
      shape.rows = 8;
      return run_sized<8, QN>(task, shape, exec);
    }
  }
  const unsigned heads = static_cast<unsigned>(shape.kv_heads);
  if (shape.walk()) {
    const dim3 grid(static_cast<unsigned>(shape.tiles()), heads);
    allow_shared(walk_kernel<R, QN>, bytes);
    RR_LAUNCH(exec, (walk_kernel<R, QN>), grid, kThreads, bytes, task);
    return;
  }
  allow_shared(split_kernel<R, QN>, bytes);
  float* sums = static_cast<float*>(exec->workspace);
  const int64_t round = shape.round();
  const Results results = {sums, sums + round * shape.kv_heads * shape.splits * R * shape.values};
  for (int64_t tile = 0; tile < shape.tiles(); tile += round) {
    const int64_t left = shape.tiles() - tile;
    const unsigned tiles = static_cast<unsigned>(left < round ? left : round);
    const dim3 grid(static_cast<unsigned>(shape.splits), tiles, heads);
    const dim3 merging(tiles * R, heads, static_cast<unsigned>(blocks_for(shape.values, kMergers)));
    RR_LAUNCH(exec, (split_kernel<R, QN>), grid, kThreads, bytes, task, results,
              static_cast<int>(tile));
    RR_LAUNCH(exec, merge_kernel<R>, merging, kMergers, 0, task, results, static_cast<int>(tile));
  }
}

template <int R>
void run_rows(const Task& task, const Shape& shape, const rr_exec* exec) {
  if (shape.quads == 16) return run_sized<R, 16>(task, shape, exec);
  if (shape.quads == 32) return run_sized<R, 32>(task, shape, exec);
  if (shape.quads == 64) return run_sized<R, 64>(task, shape, exec);
  run_sized<R, 128>(task, shape, exec);
}

Task read_task(const rr_node* node, const Shape& shape, const rr_exec* exec) {
  const rr_tensor* in = node->inputs;
  Task t = {};
  t.q = view(in[0]);
  t.o = view(node->outputs[0]);
  t.k = pool_of(in[1]);
  t.v = pool_of(in[2]);
  t.offsets = data<const int32_t>(in[3]);
  t.positions = data<const int32_t>(in[4]);
  t.table = data<const int32_t>(in[5]);
  t.batch = static_cast<int>(shape.batch);
  t.tokens = static_cast<int>(shape.tokens);
  t.table_pages = static_cast<int>(in[5].shape[1]);
  t.page = static_cast<int>(attr_int(node, "page", 256));
  t.kv_heads = static_cast<int>(shape.kv_heads);
  t.group = static_cast<int>(shape.group);
  t.k_room = shape.k_room;
  t.splits = static_cast<int>(shape.splits);
  t.pool_pages = in[1].shape[0] / t.page;
  t.limit = static_cast<int64_t>(t.table_pages) * t.page;
  t.window = attr_int(node, "window", 0);
  t.scores = {static_cast<float>(attr_float(node, "scale", 1.0)),
              static_cast<float>(attr_float(node, "softcap", 0.0))};
  t.sinks = present(in[6]) ? data<const float>(in[6]) : nullptr;
  t.causal = attr_is(node, "mask", "causal");
  t.tiled = attr_is(node, "heads", "tiled");
  t.first = check(exec, "'seq_offsets' should be 0 at [0], got %lld");
  t.ascending = check(exec,
                      "'seq_offsets' should be ascending and at most the number of rows, got %lld, "
                      "%lld");
  t.position = check(exec, "'positions' should be in [0, %lld), got %lld");
  t.entry = check(exec, "'block_table' should be in [0, %lld), pages of the pool, got %lld");
  return t;
}

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  if (in[0].dtype != RR_F32 || in[0].rank != 3 || !dense_tail(in[0], 1))
    return refuse(why, size, "q needs to be f32 of rank 3 and dense along the last axis");
  for (int i = 1; i < 3; ++i)
    if (in[i].rank != 3 || !dense_pool(in[i]))
      return refuse(why, size, "k and v need to be dense f32, f16, bf16, q8_0 or q4_0 of rank 3");
  for (int i = 3; i < 6; ++i)
    if (in[i].dtype != RR_I32 || !dense(in[i]))
      return refuse(why, size, "offsets, positions and block table need to be dense i32");
  if (present(in[6]) && (in[6].dtype != RR_F32 || !dense(in[6])))
    return refuse(why, size, "sinks need to be dense f32");
  if (in[1].shape[2] > kMostKey || in[2].shape[2] > kMostValue)
    return refuse(why, size, "a head may have at most 576 elements of keys and 512 of values");
  if (in[5].shape[1] * attr_int(node, "page", 256) > INT32_MAX - kSplit)
    return refuse(why, size, "the block table may hold at most 2^31 positions");
  return 1;
}

void run(const rr_node* node, const rr_exec* exec) {
  const Shape shape = shape_of(node);
  if (shape.tokens == 0) return;
  const Task task = read_task(node, shape, exec);
  if (shape.rows == 16)
    run_rows<16>(task, shape, exec);
  else
    run_rows<8>(task, shape, exec);
}

// Enough for tiles of either size: which it is may depend on the card.
size_t workspace(const rr_node* node, int32_t) {
  Shape shape = shape_of(node);
  if (shape.tokens == 0) return 0;
  const int64_t planned = shape.workspace();
  shape.rows = 8;
  const int64_t smaller = shape.workspace();
  return static_cast<size_t>(planned > smaller ? planned : smaller);
}

}  // namespace

RR_CUDA_KERNEL(kernel, RR_ROW_EXACT, "attention", "cuda", "", 0, supports, workspace, run)
