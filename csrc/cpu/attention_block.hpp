// The arithmetic of attention: a block of query vectors that share a key head, against one split
// of keys. Splits lie at absolute multiples of kSplit positions, and what is computed for a query
// vector depends neither on the others of its block nor on who computes the other splits.
#pragma once

#include "activation.hpp"
#include "attention_wide.hpp"

namespace {

constexpr int64_t kSplit = 256;
constexpr int64_t kTile = 16;      // keys that are made f32 at a time
constexpr int64_t kVecs = 128;     // query vectors of a block, unless one row has more
constexpr int64_t kManyVecs = 24;  // from so many on, turning keys round pays
constexpr int64_t kManyTile = 32;  // values that are made f32 at a time for many vectors
constexpr int64_t kRoom = kWideKeys > kManyTile ? kWideKeys : kManyTile;
// Up to so many vectors read keys and values as they lie: what is made f32 once would not be read
// often enough to pay for being stored.
constexpr int64_t kFewVecs = kLanes == 4 && !kManyRegisters ? 1 : 4;
constexpr int64_t kAhead = 8;  // rows from the one that is read to the one that is fetched
// Bytes of rows of halves that are asked for in advance.
constexpr int64_t kNear = 4096, kFar = 32768;
constexpr int kQueries = kManyRegisters ? 4 : 2;  // times four keys: sums in registers
constexpr int kChunks = kManyRegisters ? 4 : 2;   // times four queries: sums in registers

// Keys or values of a pool at one key head; stride: bytes from one position to the next.
struct Rows {
  const char* base;
  uint32_t dtype;
  int64_t stride, size;
};

// Keys and values of one sequence.
struct Pool {
  Rows k, v;
  const int32_t* table;
  int64_t page;
};

// Query vectors [count, padded(k.size)]; vector i sees the positions first[i] .. last[i] - 1.
struct Queries {
  int64_t count;
  const float* q;
  const int64_t *first, *last;
  float scale, softcap;
};

// Sum of exp(score - top) and of the values so weighted: acc [count, padded(v.size)].
// Where a vector sees nothing, top is -infinity and the rest zero.
struct Partial {
  float *acc, *top, *total;
};

struct Scratch {
  float* scores;  // [count, kSplit]
  float* tile;    // [kRoom, padded size of a key or value]
  float* turned;  // [kLanes, lane_stride(padded size of a key)]
};

// Rows of the tile of N that starts at position `tile`, for positions first .. last - 1 of it. Rows
// outside repeat one of these: they are computed with, but never read past.
template <int64_t N>
void tile_rows(const Pool& pool, const Rows& rows, int64_t tile, int64_t first, int64_t last,
               bool as_they_lie, float* widened, const char** out) {
  const int64_t room = padded(rows.size), bytes = pool_bytes(rows.dtype, rows.size);
  int64_t page = first / pool.page, in_page = first % pool.page;
  const bool halves = as_they_lie && rows.dtype == RR_F16;  // whose readers ask ahead themselves
  for (int64_t j = first; j < last; ++j) {
    const char* from = rows.base + (pool.table[page] * pool.page + in_page) * rows.stride;
    // A head's rows lie apart, so that the hardware does not see the next ones coming.
    if (!halves && in_page + kAhead < pool.page)
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + kAhead * rows.stride + i);
    float* to = widened + (j - tile) * room;
    if (as_they_lie) {
      out[j - tile] = from;
    } else {
      pool_values(to, from, rows.dtype, rows.size);
      out[j - tile] = reinterpret_cast<const char*>(to);
    }
    if (++in_page < pool.page) continue;
    in_page = 0;
    ++page;
  }
  for (int64_t j = 0; j < N; ++j)
    if (j < first - tile || j >= last - tile) out[j] = out[first - tile];
}

// For each row of a tile of halves two that follow it, which are asked for: at two distances, for
// one core keeps more of the memory system busy so, and in portions among the arithmetic, for a
// core waits with more requests than it can have under way.
struct Ahead {
  const char *near[kTile], *far[kTile];

  // Of the tile at position `tile`, for vectors that see no position from `last` on.
  void find(const Pool& pool, const Rows& rows, int64_t tile, int64_t last) {
    const int64_t bytes = pool_bytes(rows.dtype, rows.size);
    follow(pool, rows, tile + (kNear + bytes - 1) / bytes, last, near);
    follow(pool, rows, tile + (kFar + bytes - 1) / bytes, last, far);
  }

  // Rows of positions `first` on; behind the last one it repeats.
  static void follow(const Pool& pool, const Rows& rows, int64_t first, int64_t last,
                     const char** out) {
    if (first >= last) first = last - 1;
    int64_t page = first / pool.page, in_page = first % pool.page;
    for (int64_t j = 0; j < kTile; ++j) {
      out[j] = rows.base + (pool.table[page] * pool.page + in_page) * rows.stride;
      if (first + j + 1 >= last) continue;
      if (++in_page < pool.page) continue;
      in_page = 0;
      ++page;
    }
  }

  // N bytes from byte `at` of the rows that follow row j.
  template <int64_t N>
  inline __attribute__((always_inline)) void fetch(int64_t j, int64_t at) const {
    for (int64_t i = at; i < at + N; i += 64) {
      __builtin_prefetch(near[j] + i, 0, 3);
      __builtin_prefetch(far[j] + i, 0, 2);
    }
  }
};

template <int Q, typename Row>
void score_tile(const float* q, int64_t room, const char* const* rows, const Ahead& ahead,
                float scale, float* scores) {
  for (int64_t j = 0; j < kTile; j += 4) {
    vec sum[Q][4] = {};
    for (int64_t d = 0; d < room; d += kLanes) {
      if (Row::kAsksAhead && d * Row::kBytes % 64 == 0)
        for (int c = 0; c < 4; ++c) ahead.fetch<64>(j + c, d * Row::kBytes);
      const vec k[4] = {Row::at(rows[j], d), Row::at(rows[j + 1], d), Row::at(rows[j + 2], d),
                        Row::at(rows[j + 3], d)};
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) {
        const vec x = load_vec(q + i * room + d);
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) sum[i][c] = fma_vec(x, k[c], sum[i][c]);
      }
    }
    for (int i = 0; i < Q; ++i) {
      const v4 four = sums(sum[i][0], sum[i][1], sum[i][2], sum[i][3]) * scale;
      memcpy(scores + i * kSplit + j, &four, sizeof four);
    }
  }
}

// A score s becomes cap * tanh(s / cap).
void cap_scores(float* scores, int64_t first, int64_t last, float cap) {
  const int64_t begin = first / kTile * kTile, end = (last + kTile - 1) / kTile * kTile;
  for (int64_t j = begin; j < end; j += kLanes)
    store_vec(scores + j, tanh_vec(load_vec(scores + j) / cap) * cap);
}

// e^x for x of at most 0, and 0 where that is no normal number.
inline vec normal_exp(vec x) {
  const vec y = exp_vec(x);
  return y < 0x1p-126f ? vec{} : y;
}

// The largest lane, as a tree.
inline float largest(vec v) {
  float lanes[kLanes];
  store_vec(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
  return lanes[0];
}

// Scores become exp(score - top). Positions outside first .. last - 1 count as unseen; those of
// tiles that are not touched are never read. The sums are those of sixteen lanes at every width.
void soften(float* scores, int64_t first, int64_t last, float* top, float* total) {
  constexpr int kParts = 16 / kLanes;
  const int64_t begin = first / kTile * kTile, end = (last + kTile - 1) / kTile * kTile;
  for (int64_t j = begin; j < first; ++j) scores[j] = -INFINITY;
  for (int64_t j = last; j < end; ++j) scores[j] = -INFINITY;
  vec parts[kParts];
  for (int p = 0; p < kParts; ++p) parts[p] = vec_of(-INFINITY);
  for (int64_t j = begin; j < end; j += kTile)
    for (int p = 0; p < kParts; ++p) {
      const vec x = load_vec(scores + j + p * kLanes);
      parts[p] = x > parts[p] ? x : parts[p];
    }
  for (int p = 1; p < kParts; ++p) parts[0] = parts[p] > parts[0] ? parts[p] : parts[0];
  *top = largest(parts[0]);
  for (int p = 0; p < kParts; ++p) parts[p] = vec{};
  for (int64_t j = begin; j < end; j += kTile)
    for (int p = 0; p < kParts; ++p) {
      float* at = scores + j + p * kLanes;
      const vec weight = normal_exp(load_vec(at) - vec_of(*top));
      store_vec(at, weight);
      parts[p] += weight;
    }
  *total = sum16(load16(parts));
}

// acc += sum over tile positions begin .. end - 1 of weight times value row, in this order, for Q
// query vectors and C vectors of the value size.
template <int Q, int C, typename Row>
void add_chunk(const char* const* rows, const Ahead& ahead, int64_t begin, int64_t end,
               const float* weights, float* acc, int64_t room, int64_t at) {
  vec sum[Q][C];
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) sum[i][c] = load_vec(acc + i * room + at + c * kLanes);
  for (int64_t j = begin; j < end; ++j) {
    vec v[C];
    if (Row::kAsksAhead) ahead.fetch<C * kLanes * Row::kBytes>(j, at * Row::kBytes);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) v[c] = Row::at(rows[j], at + c * kLanes);
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) {
      const vec p = vec_of(weights[i * kSplit + j]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[i][c] = fma_vec(p, v[c], sum[i][c]);
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) store_vec(acc + i * room + at + c * kLanes, sum[i][c]);
}

template <int Q, typename Row>
void add_values(const char* const* rows, const Ahead& ahead, int64_t begin, int64_t end,
                const float* weights, float* acc, int64_t room) {
  if (begin >= end) return;
  int64_t at = 0;
  for (; at + kChunks * kLanes <= room; at += kChunks * kLanes)
    add_chunk<Q, kChunks, Row>(rows, ahead, begin, end, weights, acc, room, at);
  for (; at < room; at += kLanes)
    add_chunk<Q, 1, Row>(rows, ahead, begin, end, weights, acc, room, at);
}

Range overlap(int64_t first, int64_t last, int64_t begin, int64_t end) {
  first = first > begin ? first : begin;
  last = last < end ? last : end;
  return {first, last > first ? last : first};
}

// What any vector of the block sees of positions begin .. end - 1: its vectors see ranges without
// gaps between them.
Range seen_by_any(const Queries& block, int64_t begin, int64_t end) {
  Range all = {end, begin};
  for (int64_t i = 0; i < block.count; ++i) {
    const Range seen = overlap(block.first[i], block.last[i], begin, end);
    if (seen.begin == seen.end) continue;
    if (seen.begin < all.begin) all.begin = seen.begin;
    if (seen.end > all.end) all.end = seen.end;
  }
  return all;
}

// Q vectors from vector i on: what all of them see of a tile together, the rest one by one.
template <int Q, int64_t N, typename Row>
void weigh_tile(const Queries& block, int64_t i, int64_t tile, const char* const* rows,
                const Ahead& ahead, const float* weights, float* acc, int64_t room) {
  Range seen[Q], common = {0, N};
  for (int r = 0; r < Q; ++r) {
    seen[r] = overlap(block.first[i + r] - tile, block.last[i + r] - tile, 0, N);
    common = overlap(seen[r].begin, seen[r].end, common.begin, common.end);
  }
  const bool together = common.begin < common.end;
  for (int r = 0; r < Q; ++r)
    add_values<1, Row>(rows, ahead, seen[r].begin, together ? common.begin : seen[r].end,
                       weights + r * kSplit, acc + r * room, room);
  if (!together) return;
  add_values<Q, Row>(rows, ahead, common.begin, common.end, weights, acc, room);
  for (int r = 0; r < Q; ++r)
    add_values<1, Row>(rows, ahead, common.end, seen[r].end, weights + r * kSplit, acc + r * room,
                       room);
}

// The position behind the last that any vector of the block sees.
int64_t seen_to(const Queries& block) {
  int64_t last = 0;
  for (int64_t i = 0; i < block.count; ++i) last = block.last[i] > last ? block.last[i] : last;
  return last;
}

template <typename Row>
void score_all(const Pool& pool, const Queries& block, int64_t tile, const char* const* rows,
               float* scores) {
  const int64_t room = padded(pool.k.size);
  Ahead ahead;
  if (Row::kAsksAhead) ahead.find(pool, pool.k, tile, seen_to(block));
  int64_t i = 0;
  for (; i + kQueries <= block.count; i += kQueries)
    score_tile<kQueries, Row>(block.q + i * room, room, rows, ahead, block.scale,
                              scores + i * kSplit);
  for (; i < block.count; ++i)
    score_tile<1, Row>(block.q + i * room, room, rows, ahead, block.scale, scores + i * kSplit);
}

template <int64_t N, typename Row>
void weigh_all(const Pool& pool, const Queries& block, int64_t tile, const char* const* rows,
               const float* weights, float* acc) {
  const int64_t room = padded(pool.v.size);
  Ahead ahead;
  if (Row::kAsksAhead) ahead.find(pool, pool.v, tile, seen_to(block));
  int64_t i = 0;
  for (; i + 4 <= block.count; i += 4)
    weigh_tile<4, N, Row>(block, i, tile, rows, ahead, weights + i * kSplit, acc + i * room, room);
  for (; i + 2 <= block.count; i += 2)
    weigh_tile<2, N, Row>(block, i, tile, rows, ahead, weights + i * kSplit, acc + i * room, room);
  for (; i < block.count; ++i)
    weigh_tile<1, N, Row>(block, i, tile, rows, ahead, weights + i * kSplit, acc + i * room, room);
}

// run(Row, as_they_lie): how rows are read by so many vectors, and whether in the pool itself.
template <typename Run>
void read_rows(const Rows& rows, int64_t vecs, const Run& run) {
  const bool whole = rows.size == padded(rows.size), few = whole && vecs <= kFewVecs;
  if (few && rows.dtype == RR_F16)
    run(HalfRow{}, true);
  else
    run(FloatRow{}, whole && rows.dtype == RR_F32);
}

// Scores of the block with what it sees of a split.
template <typename Row>
void score_few(const Pool& pool, const Queries& block, int64_t base, Range all, bool as_they_lie,
               const Scratch& scratch) {
  const char* rows[kTile];
  for (int64_t tile = all.begin / kTile * kTile; tile < all.end; tile += kTile) {
    const Range seen = overlap(all.begin, all.end, tile, tile + kTile);
    tile_rows<kTile>(pool, pool.k, tile, seen.begin, seen.end, as_they_lie, scratch.tile, rows);
    score_all<Row>(pool, block, tile, rows, scratch.scores + tile - base);
  }
}

// Whether any of Q vectors from vector i on sees some of positions begin .. end - 1.
template <int Q>
bool any_sees(const Queries& block, int64_t i, int64_t begin, int64_t end) {
  for (int r = 0; r < Q; ++r)
    if (block.first[i + r] < end && block.last[i + r] > begin) return true;
  return false;
}

template <int Q>
int64_t score_turned(const Queries& block, int64_t i, int64_t tile, int64_t room,
                     const Scratch& scratch, float* scores) {
  for (; i + Q <= block.count; i += Q)
    if (any_sees<Q>(block, i, tile, tile + kWideKeys))
      score_wide<Q>(block.q + i * room, room, scratch.turned, block.scale, scores + i * kSplit,
                    kSplit);
  return i;
}

// The same for many vectors.
void score_many(const Pool& pool, const Queries& block, int64_t base, Range all,
                const Scratch& scratch) {
  const char* rows[kWideKeys];
  const int64_t room = padded(pool.k.size);
  const bool direct = pool.k.dtype == RR_F32 && pool.k.size == room;
  for (int64_t tile = all.begin / kWideKeys * kWideKeys; tile < all.end; tile += kWideKeys) {
    const Range seen = overlap(all.begin, all.end, tile, tile + kWideKeys);
    tile_rows<kWideKeys>(pool, pool.k, tile, seen.begin, seen.end, direct, scratch.tile, rows);
    turn_keys(rows, room, scratch.turned);
    float* scores = scratch.scores + tile - base;
    const int64_t i = score_turned<kWideQueries>(block, 0, tile, room, scratch, scores);
    score_turned<1>(block, i, tile, room, scratch, scores);
  }
}

// Adds the values that the block sees of a split, in tiles of N.
template <int64_t N, typename Row>
void add_seen(const Pool& pool, const Queries& block, int64_t base, Range all, bool as_they_lie,
              float* acc, const Scratch& scratch) {
  const char* rows[N];
  for (int64_t tile = all.begin / N * N; tile < all.end; tile += N) {
    const Range seen = overlap(all.begin, all.end, tile, tile + N);
    tile_rows<N>(pool, pool.v, tile, seen.begin, seen.end, as_they_lie, scratch.tile, rows);
    weigh_all<N, Row>(pool, block, tile, rows, scratch.scores + tile - base, acc);
  }
}

// The block against the split that starts at position `base`.
void attend(const Pool& pool, const Queries& block, int64_t base, const Partial& out,
            const Scratch& scratch) {
  const Range all = seen_by_any(block, base, base + kSplit);
  const bool many = block.count >= kManyVecs;
  if (many)
    score_many(pool, block, base, all, scratch);
  else
    read_rows(pool.k, block.count, [&](auto row, bool as_they_lie) {
      score_few<decltype(row)>(pool, block, base, all, as_they_lie, scratch);
    });
  for (int64_t i = 0; i < block.count; ++i) {
    const Range seen = overlap(block.first[i], block.last[i], base, base + kSplit);
    out.top[i] = -INFINITY;
    out.total[i] = 0.0f;
    if (seen.begin == seen.end) continue;
    float* scores = scratch.scores + i * kSplit;
    if (block.softcap > 0.0f) cap_scores(scores, seen.begin - base, seen.end - base, block.softcap);
    soften(scores, seen.begin - base, seen.end - base, out.top + i, out.total + i);
  }
  const int64_t floats = block.count * padded(pool.v.size);
  memset(out.acc, 0, static_cast<size_t>(floats) * sizeof(float));
  read_rows(pool.v, block.count, [&](auto row, bool as_they_lie) {
    if (many)
      add_seen<kManyTile, FloatRow>(pool, block, base, all, as_they_lie, out.acc, scratch);
    else
      add_seen<kTile, decltype(row)>(pool, block, base, all, as_they_lie, out.acc, scratch);
  });
}

// Takes the next split's part of one vector into the sum over the splits before it.
void merge(float* acc, float* top, float* total, const float* next_acc, float next_top,
           float next_total, int64_t room) {
  if (next_total == 0.0f) return;
  const float highest = *top > next_top ? *top : next_top;
  const float keep = *total == 0.0f ? 0.0f : exp16(splat(*top - highest))[0];
  const float take = exp16(splat(next_top - highest))[0];
  for (int64_t i = 0; i < room; i += kLanes)
    store_vec(acc + i,
              fma_vec(load_vec(next_acc + i), vec_of(take), load_vec(acc + i) * vec_of(keep)));
  *total = *total * keep + next_total * take;
  *top = highest;
}

// Takes one more score into the sum, whose value is zero. Nothing changes where nothing was seen.
void sink(float* acc, float* top, float* total, float score, int64_t room) {
  if (*total == 0.0f) return;
  const float highest = *top > score ? *top : score;
  const float keep = exp16(splat(*top - highest))[0];
  for (int64_t i = 0; i < room; i += kLanes) store_vec(acc + i, load_vec(acc + i) * vec_of(keep));
  *total = *total * keep + exp16(splat(score - highest))[0];
  *top = highest;
}

// The weighted mean of `size` values; zeros where nothing was seen.
void finish(const float* acc, float total, float* o, int64_t size) {
  const int64_t whole = size / kLanes * kLanes;
  const float divisor = total == 0.0f ? 1.0f : total;
  for (int64_t i = 0; i < whole; i += kLanes) store_vec(o + i, load_vec(acc + i) / vec_of(divisor));
  if (whole < size) store_vec(o + whole, load_vec(acc + whole) / vec_of(divisor), size - whole);
}

}  // namespace
