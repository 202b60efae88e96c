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
  if (!find_tile(task, R, first_tile + blockIdx.y, place) || place.count == 0) return;
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
  if (!find_tile(task, R, first_tile + tile, place)) return;
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
  if (!find_tile(task, R, gridDim.x - 1 - blockIdx.x, place)) return;
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

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  if (!supports_attention(node, why, size)) return 0;
  if (in[1].shape[2] > kMostKey || in[2].shape[2] > kMostValue)
    return refuse(why, size, "a head may have at most 576 elements of keys and 512 of values");
  if (in[5].shape[1] * attr_int(node, "page", 256) > INT32_MAX - kSplit)
    return refuse(why, size, "the block table may hold at most 2^31 positions");
  return 1;
}

void run(const rr_node* node, const rr_exec* exec) {
  const Shape shape = shape_of(node);
  if (shape.tokens == 0) return;
  Task task = read_task(node, exec);
  task.k_room = shape.k_room;
  task.splits = static_cast<int>(shape.splits);
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
