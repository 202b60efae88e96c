// attention: which thread computes what. Items are blocks of query vectors at one key head, taken
// whole where that keeps all threads busy; else (few rows, long context) their splits are shared
// out, and merged after a barrier in the same ascending order.

#include "ops/attention.hpp"

#include "attention_block.hpp"
#include "kernel.hpp"
#include "ragged.hpp"

namespace {

constexpr int64_t kPartialFloats = int64_t{8} << 20;  // no more room is asked for partial sums

struct Task {
  const rr_tensor *q, *k, *v, *o;
  Batch batch;
  const int32_t *positions, *table;
  int64_t page, table_pages, pool_pages, window;
  int64_t kv_heads, group, rows_per_block;  // group: query heads of a key head
  int64_t k_room, v_room;                   // sizes in whole vectors
  float scale, softcap;
  const float* sinks;  // of each head, or null
  bool causal, tiled;

  int64_t splits() const { return (table_pages * page + kSplit - 1) / kSplit; }
  int64_t most_vecs() const { return rows_per_block * group; }
};

Task read_task(const rr_node* node) {
  const rr_tensor* in = node->inputs;
  const int64_t page = attr_int(node, "page", 256);
  const int64_t kv_heads = in[1].shape[1], group = in[0].shape[1] / kv_heads;
  return {&in[0],
          &in[1],
          &in[2],
          &node->outputs[0],
          read_batch(in[3]),
          static_cast<const int32_t*>(in[4].data),
          static_cast<const int32_t*>(in[5].data),
          page,
          in[5].shape[1],
          in[1].shape[0] / page,
          attr_int(node, "window", 0),
          kv_heads,
          group,
          group < kVecs ? kVecs / group : 1,
          padded(in[1].shape[2]),
          padded(in[2].shape[2]),
          static_cast<float>(attr_float(node, "scale", 1.0)),
          static_cast<float>(attr_float(node, "softcap", 0.0)),
          present(in[6]) ? static_cast<const float*>(in[6].data) : nullptr,
          attr_is(node, "mask", "causal"),
          attr_is(node, "heads", "tiled")};
}

// Rows of one sequence at consecutive positions, so that what they see has no gaps.
struct Block {
  int64_t b, row, rows;
  Range seen;

  int64_t first_split() const { return seen.begin / kSplit; }
  int64_t splits() const {
    return seen.begin < seen.end ? (seen.end - 1) / kSplit - first_split() + 1 : 0;
  }
};

Range visible(const Task& task, int64_t b, int64_t row) {
  const int64_t at = task.positions[row];
  const int64_t newest = task.causal ? at : task.positions[task.batch.offsets[b + 1] - 1];
  const int64_t first = task.window > 0 && at >= task.window ? at - task.window + 1 : 0;
  return {first, newest + 1 > first ? newest + 1 : first};
}

// Steps to the next block; false after the last. The first step starts from an empty block.
bool next(const Task& task, Block& block) {
  int64_t b = block.b;
  const int64_t row = block.row + block.rows;
  while (b < task.batch.count && row >= task.batch.offsets[b + 1]) ++b;
  if (b == task.batch.count) return false;
  const int64_t end = task.batch.offsets[b + 1];
  int64_t rows = 1;
  while (rows < task.rows_per_block && row + rows < end &&
         task.positions[row + rows] == int64_t{task.positions[row + rows - 1]} + 1)
    ++rows;
  Range seen = visible(task, b, row);
  if (task.causal) seen.end = visible(task, b, row + rows - 1).end;
  block = {b, row, rows, seen};
  return true;
}

bool check(const Task& task, const rr_exec* exec) {
  if (!check_batch(task.batch, task.q->shape[0], exec)) return false;
  if (!check_indices("positions", task.positions, task.batch.tokens(), task.table_pages * task.page,
                     exec))
    return false;
  for (Block block = {}; next(task, block);) {
    const int32_t* pages = task.table + block.b * task.table_pages;
    if (block.seen.begin == block.seen.end) continue;
    for (int64_t p = block.seen.begin / task.page; p * task.page < block.seen.end; ++p) {
      if (pages[p] >= 0 && pages[p] < task.pool_pages) continue;
      char message[160];
      snprintf(message, sizeof message,
               "'block_table' should be in [0, %lld), pages of the pool, got %d at [%lld, %lld]",
               static_cast<long long>(task.pool_pages), pages[p], static_cast<long long>(block.b),
               static_cast<long long>(p));
      exec->fail(exec, message);
      return false;
    }
  }
  return true;
}

// What one thread works with.
struct Own {
  float *q, *acc, *sum, *top, *total, *sum_top, *sum_total;
  int64_t *first, *last;
  Scratch scratch;
};

int64_t own_floats(const Task& task) {
  const int64_t wide = task.k_room > task.v_room ? task.k_room : task.v_room;
  const int64_t vecs = (task.most_vecs() + 15) / 16 * 16;
  const auto lines = [](int64_t floats) { return (floats + 15) / 16 * 16; };
  return vecs * (task.k_room + 2 * task.v_room + kSplit + 8) + lines(kRoom * wide) +
         kLanes * lane_stride(task.k_room);
}

Own own_part(const Task& task, const rr_exec* exec) {
  const int64_t vecs = (task.most_vecs() + 15) / 16 * 16;
  float* at = static_cast<float*>(exec->workspace) + exec->thread * own_floats(task);
  const auto take = [&at](int64_t floats) {
    float* part = at;
    at += floats;
    return part;
  };
  Own own;
  own.q = take(vecs * task.k_room);
  own.acc = take(vecs * task.v_room);
  own.sum = take(vecs * task.v_room);
  own.top = take(vecs);
  own.total = take(vecs);
  own.sum_top = take(vecs);
  own.sum_total = take(vecs);
  own.first = reinterpret_cast<int64_t*>(take(2 * vecs));
  own.last = reinterpret_cast<int64_t*>(take(2 * vecs));
  own.scratch.scores = take(vecs * kSplit);
  own.scratch.turned = take(kLanes * lane_stride(task.k_room));
  own.scratch.tile = at;
  return own;
}

int64_t head_of(const Task& task, int64_t kv_head, int64_t i) {
  const int64_t in_group = i % task.group;
  return task.tiled ? in_group * task.kv_heads + kv_head : kv_head * task.group + in_group;
}

float* vec_ptr(const Task& task, const rr_tensor& t, const Block& block, int64_t kv_head,
               int64_t i) {
  return reinterpret_cast<float*>(static_cast<char*>(t.data) +
                                  (block.row + i / task.group) * t.strides[0] +
                                  head_of(task, kv_head, i) * t.strides[1]);
}

Queries load_queries(const Task& task, const Block& block, int64_t kv_head, const Own& own) {
  const int64_t count = block.rows * task.group;
  for (int64_t i = 0; i < count; ++i) {
    const Range seen = visible(task, block.b, block.row + i / task.group);
    own.first[i] = seen.begin;
    own.last[i] = seen.end;
    widen(own.q + i * task.k_room, vec_ptr(task, *task.q, block, kv_head, i), RR_F32,
          task.q->shape[2]);
  }
  return {count, own.q, own.first, own.last, task.scale, task.softcap};
}

Rows rows_of(const rr_tensor& pool, int64_t kv_head) {
  return {static_cast<const char*>(pool.data) + kv_head * pool.strides[1], pool.dtype,
          pool.strides[0], pool.shape[2]};
}

Pool pool_of(const Task& task, const Block& block, int64_t kv_head) {
  return {rows_of(*task.k, kv_head), rows_of(*task.v, kv_head),
          task.table + block.b * task.table_pages, task.page};
}

// The result of vector i from the sum over all splits.
void conclude(const Task& task, const Block& block, int64_t kv_head, int64_t i, float* sum,
              float* top, float* total) {
  if (task.sinks) sink(sum, top, total, task.sinks[head_of(task, kv_head, i)], task.v_room);
  finish(sum, *total, vec_ptr(task, *task.o, block, kv_head, i), task.o->shape[2]);
}

void run_item(const Task& task, const Block& block, int64_t kv_head, const Own& own) {
  const Queries queries = load_queries(task, block, kv_head, own);
  const Pool pool = pool_of(task, block, kv_head);
  const Partial part = {own.acc, own.top, own.total};
  memset(own.sum, 0, static_cast<size_t>(queries.count * task.v_room) * sizeof(float));
  for (int64_t i = 0; i < queries.count; ++i) {
    own.sum_top[i] = -INFINITY;
    own.sum_total[i] = 0.0f;
  }
  for (int64_t s = 0; s < block.splits(); ++s) {
    attend(pool, queries, (block.first_split() + s) * kSplit, part, own.scratch);
    for (int64_t i = 0; i < queries.count; ++i)
      merge(own.sum + i * task.v_room, own.sum_top + i, own.sum_total + i,
            part.acc + i * task.v_room, part.top[i], part.total[i], task.v_room);
  }
  for (int64_t i = 0; i < queries.count; ++i)
    conclude(task, block, kv_head, i, own.sum + i * task.v_room, own.sum_top + i,
             own.sum_total + i);
}

// About how long an item takes: its keys are widened once and met by each of its vectors.
int64_t item_cost(const Task& task, const Block& block) {
  return (block.seen.end - block.seen.begin + kTile) * (block.rows * task.group + 4);
}

// Floats of the partial sums of one item for one split.
int64_t partial_floats(const Task& task, const Block& block) {
  return block.rows * task.group * (task.v_room + 2);
}

struct Totals {
  int64_t cost, heaviest, units, partials;
  bool few;  // every block has few vectors, and sees several splits
};

int64_t owner(int64_t before, int64_t cost, int64_t all, int64_t n_threads) {
  return (2 * before + cost) * n_threads / (2 * all);
}

Totals survey(const Task& task, int64_t n_threads) {
  Totals totals = {};
  totals.few = true;
  for (Block block = {}; next(task, block);) {
    totals.few = totals.few && block.rows * task.group <= kFewVecs && block.splits() > 2;
    totals.cost += item_cost(task, block) * task.kv_heads;
    totals.units += block.splits() * task.kv_heads;
    totals.partials += block.splits() * task.kv_heads * partial_floats(task, block);
  }
  int64_t before = 0, thread = 0, load = 0;
  for (Block block = {}; next(task, block);)
    for (int64_t m = 0; m < task.kv_heads; ++m) {
      const int64_t cost = item_cost(task, block), to = owner(before, cost, totals.cost, n_threads);
      load = (to == thread ? load : 0) + cost;
      if (load > totals.heaviest) totals.heaviest = load;
      thread = to;
      before += cost;
    }
  return totals;
}

void run_items(const Task& task, const Totals& totals, const rr_exec* exec, const Own& own) {
  int64_t before = 0;
  for (Block block = {}; next(task, block);)
    for (int64_t m = 0; m < task.kv_heads; ++m) {
      const int64_t cost = item_cost(task, block);
      if (owner(before, cost, totals.cost, exec->n_threads) == exec->thread)
        run_item(task, block, m, own);
      before += cost;
    }
}

Partial partial_at(const Task& task, const Block& block, float* at) {
  const int64_t vecs = block.rows * task.group;
  return {at, at + vecs * task.v_room, at + vecs * (task.v_room + 1)};
}

// Units are in order of block, split and head, for heads lie beside one another: what the first
// one reads brings the others' keys and values nearer, or would take part of the memory's speed.
void run_splits(const Task& task, const Totals& totals, const rr_exec* exec, const Own& own,
                float* partials) {
  const Range units = split(exec, totals.units);
  int64_t unit = 0;
  for (Block block = {}; next(task, block);) {
    const int64_t count = block.splits() * task.kv_heads;
    const Range mine = overlap(units.begin - unit, units.end - unit, 0, count);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t s = i / task.kv_heads, m = i % task.kv_heads, of = m * block.splits() + s;
      attend(pool_of(task, block, m), load_queries(task, block, m, own),
             (block.first_split() + s) * kSplit,
             partial_at(task, block, partials + of * partial_floats(task, block)), own.scratch);
    }
    unit += count;
    partials += count * partial_floats(task, block);
  }
}

void merge_splits(const Task& task, const rr_exec* exec, const Own& own, float* partials) {
  const Range vecs = split(exec, task.batch.tokens() * task.kv_heads * task.group);
  int64_t before = 0;
  for (Block block = {}; next(task, block);)
    for (int64_t m = 0; m < task.kv_heads; ++m) {
      const int64_t count = block.rows * task.group;
      const Range mine = overlap(vecs.begin - before, vecs.end - before, 0, count);
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        memset(own.sum, 0, static_cast<size_t>(task.v_room) * sizeof(float));
        float top = -INFINITY, total = 0.0f;
        for (int64_t s = 0; s < block.splits(); ++s) {
          const Partial part = partial_at(task, block, partials + s * partial_floats(task, block));
          merge(own.sum, &top, &total, part.acc + i * task.v_room, part.top[i], part.total[i],
                task.v_room);
        }
        conclude(task, block, m, i, own.sum, &top, &total);
      }
      before += count;
      partials += block.splits() * partial_floats(task, block);
    }
}

void clear_padding(const Task& task, const rr_exec* exec) {
  const rr_tensor& o = *task.o;
  const Range rows = split(exec, o.shape[0] - task.batch.tokens());
  for (int64_t i = rows.begin; i < rows.end; ++i)
    for (int64_t h = 0; h < o.shape[1]; ++h)
      memset(
          static_cast<char*>(o.data) + (task.batch.tokens() + i) * o.strides[0] + h * o.strides[1],
          0, static_cast<size_t>(o.shape[2]) * sizeof(float));
}

int64_t room_for_partials(const Task& task) {
  const int64_t all = task.q->shape[0] * task.q->shape[1] * task.splits() * (task.v_room + 2);
  return all < kPartialFloats ? all : kPartialFloats;
}

void run(const rr_node* node, const rr_exec* exec) {
  const Task task = read_task(node);
  if (!check(task, exec)) return;
  const Own own = own_part(task, exec);
  const Totals totals = survey(task, exec->n_threads);
  const bool uneven = totals.heaviest * exec->n_threads > totals.cost + totals.cost / 8;
  const bool together = totals.few && task.kv_heads > 1;
  if ((uneven || together) && totals.partials <= room_for_partials(task)) {
    float* partials = static_cast<float*>(exec->workspace) + exec->n_threads * own_floats(task);
    run_splits(task, totals, exec, own, partials);
    exec->barrier(exec);
    merge_splits(task, exec, own, partials);
  } else {
    run_items(task, totals, exec, own);
  }
  clear_padding(task, exec);
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  const Task task = read_task(node);
  return static_cast<size_t>(n_threads * own_floats(task) + room_for_partials(task)) *
         sizeof(float);
}

int32_t tasks(const rr_node* node) {
  const Task task = read_task(node);
  const int64_t vecs = task.q->shape[0] * task.q->shape[1];
  const int64_t keys = task.table_pages * task.page;
  if (vecs * keys * (task.k_room + task.v_room) < (1 << 18)) return 1;
  const int64_t units = vecs * task.splits();
  return static_cast<int32_t>(units < 4096 ? units : 4096);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "attention", supports_attention, workspace, tasks, run)
