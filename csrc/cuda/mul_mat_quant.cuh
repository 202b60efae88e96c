// Products with weights of block types in the file's own order, row-exact for every number of rows.
//
// Rows of x are quantised first. A warp takes one or two rows of w with up to eight rows of x: the
// bytes of a chunk or two at a time come into its part of shared memory in the background, kStages
// of them ahead, and each lane multiplies one slice of a chunk. A row of x meets its slices in the
// same lanes and order, and lanes are summed by the same tree, whatever else the warp computes.
//
// A format W tells kType, kRefusal, kValues and kBytes of a block, kApart and kSums of its slices
// (quantise.cuh), kOffset (what codes exceed values by; with Sums::kInt), and slice(block, i, out),
// which unpacks slice i of a block. Blocks may lie at any multiple of the largest power of two that
// divides kBytes, up to 16. What slice needs in shared memory is put there by prepare(), if W has
// it, which all threads of a block call once.
#pragma once

#include "activation.cuh"
#include "block_types.hpp"
#include "mul_mat_group.cuh"
#include "prepare.cuh"
#include "quantise.cuh"

namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kStages = 4;

// 32 codes as bytes in the order of a slice, and for each half (the first alone where a slice is
// one block) its scale, and its low, to be multiplied with the sum of x.
struct Slice {
  int q[8];
  float scale[2], low[2];
};

// A block of w in shared memory, at any byte.
struct BlockBytes {
  const unsigned char* stage;
  unsigned at;

  __device__ int byte(unsigned i) const { return stage[at + i]; }
  __device__ int signed_byte(unsigned i) const { return static_cast<signed char>(stage[at + i]); }
  // At an even address.
  __device__ float half(unsigned i) const {
    return half_to_float(reinterpret_cast<const uint16_t*>(stage)[(at + i) / 2]);
  }
  // At an address that is a multiple of 4.
  __device__ unsigned word(unsigned i) const {
    return reinterpret_cast<const unsigned*>(stage)[(at + i) / 4];
  }

  // n words from byte i on, where addresses are multiples of `align`.
  template <int align, int n>
  __device__ void words(unsigned i, unsigned (&out)[n]) const {
    if constexpr (align == 16) {
#pragma unroll
      for (int k = 0; k < n; k += 4) {
        const uint4 v = reinterpret_cast<const uint4*>(stage)[(at + i) / 16 + k / 4];
        out[k] = v.x, out[k + 1] = v.y, out[k + 2] = v.z, out[k + 3] = v.w;
      }
    } else if constexpr (align == 8) {
#pragma unroll
      for (int k = 0; k < n; k += 2) {
        const uint2 v = reinterpret_cast<const uint2*>(stage)[(at + i) / 8 + k / 2];
        out[k] = v.x, out[k + 1] = v.y;
      }
    } else if constexpr (align == 4) {
#pragma unroll
      for (int k = 0; k < n; ++k) out[k] = word(i + 4 * k);
    } else {
      const unsigned shift = (at + i) % 4 * 8;
      unsigned low = word(i);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const unsigned high = word(i + 4 * k + 4);
        out[k] = __funnelshift_r(low, high, shift);
        low = high;
      }
    }
  }
};

// 32 codes of 4 bits: all low halves, then all high halves.
[[maybe_unused]] __device__ inline void nibbles(const unsigned (&w)[4], int (&q)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[i] = static_cast<int>(w[i] & 0x0f0f0f0f);
    q[i + 4] = static_cast<int>(w[i] >> 4 & 0x0f0f0f0f);
  }
}

// A weight matrix. Bytes from `end` on do not belong to the tensor.
struct Matrix {
  const unsigned char *data, *end;
  int64_t row_bytes;
  int64_t apart;  // bytes to the matrix that is multiplied beside it, where there is one
  int rows;
  int slices;     // of a row
  bool constant;  // no kernel writes it

  // To matrix number `by` of several, of which `end` is the end of the last.
  __device__ void advance(int64_t by) { data += by * (rows * row_bytes); }
};

template <class W>
constexpr int kChunkBytes = kChunkValues / W::kValues * W::kBytes;

// Chunks that are fetched at a time: more of the smaller ones.
template <class W>
constexpr int kSpan = kChunkBytes<W> > 640 ? 1 : 2;

template <class W>
constexpr int kSpanBytes = kSpan<W> * kChunkBytes<W>;

// Whether all rows start and end on multiples of 16 bytes.
template <class W>
constexpr bool kEven = W::kBytes % 16 == 0;

// Room for a span at any address, in pieces of 16, and for a word that is read beyond it.
template <class W>
constexpr int kStageBytes = kEven<W> ? kSpanBytes<W> : (kSpanBytes<W> + 15 + 15) / 16 * 16 + 16;

template <class W, int rows>
constexpr int kSharedBytes = kWarps * kStages * rows * kStageBytes<W>;

// `bytes` bytes to the same address of `stage`, modulo 16; the warp's bytes from `end` on do not
// belong to the tensor.
template <class W>
__device__ inline void fetch(unsigned char* stage, const unsigned char* from, int bytes,
                             const unsigned char* end) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (!kEven<W>) {
    const unsigned shift = reinterpret_cast<uintptr_t>(from) % 16;
    from -= shift;
    bytes += static_cast<int>(shift);
    if (from + ((bytes + 15) & ~15) > end) {
      const int whole = bytes & ~15;
      if (lane < bytes - whole) stage[whole + lane] = from[whole + lane];
      bytes = whole;
    }
  }
  stage += 16 * lane;
  from += 16 * lane;
  const int left = bytes - 16 * lane;
#pragma unroll
  for (int k = 0; k < kStageBytes<W>; k += 16 * kWarp)
    if (k < left) async_copy16(stage + k, from + k);
}

// Integers up to 2^22 in magnitude, added to kBias, are floats of one exponent.
constexpr int kBias = 0x4b400000;

__device__ inline float unbiased(int sum) {
  return __int_as_float(sum) - 12582912.0f;
}

template <class W>
__device__ inline int start_of(float sum) {
  return W::kOffset ? kBias - W::kOffset * __float_as_int(sum) : kBias;
}

__device__ inline int dot_half(const int* q, const int4& x, int sum) {
  return dot4(q[3], x.w, dot4(q[2], x.z, dot4(q[1], x.y, dot4(q[0], x.x, sum))));
}

// sum + the product of a slice with the one at x (this lane's 16 bytes of a record) and meta.
template <class W>
__device__ inline float add_product(const Slice& s, const unsigned char* x,
                                    const unsigned char* meta, float sum) {
  const int4 first = *reinterpret_cast<const int4*>(x);
  const int4 second = *reinterpret_cast<const int4*>(x + kHalfBytes);
  const float2 a = *reinterpret_cast<const float2*>(meta);
  if constexpr (W::kApart) {
    const float2 b = *reinterpret_cast<const float2*>(meta + 8 * kChunkSlices);
    const float u = unbiased(dot_half(s.q, first, start_of<W>(a.y)));
    const float v = unbiased(dot_half(s.q + 4, second, start_of<W>(b.y)));
    const bool low = W::kSums == Sums::kFloat;
    sum = fmaf(a.x, low ? fmaf(s.scale[0], u, s.low[0] * a.y) : s.scale[0] * u, sum);
    return fmaf(b.x, low ? fmaf(s.scale[1], v, s.low[1] * b.y) : s.scale[1] * v, sum);
  } else {
    const int all = dot_half(s.q + 4, second, dot_half(s.q, first, start_of<W>(a.y)));
    const float u = unbiased(all);
    const bool low = W::kSums == Sums::kFloat;
    return fmaf(a.x, low ? fmaf(s.scale[0], u, s.low[0] * a.y) : s.scale[0] * u, sum);
  }
}

// Which rows of w a warp has at a time, a part: `count` neighbours; or, gated, one row and the same
// one of the matrix beside it.
template <int count, bool gated>
struct Parts {
  static constexpr int kApart = gated ? 1 : count;  // rows from part to part

  // Of a row of the part's `r`; one beyond the last is the part's first.
  __device__ static int64_t offset(const Matrix& w, int part, int r) {
    if (gated) return r * w.apart;
    return part * count + r < w.rows ? r * w.row_bytes : 0;
  }
};

// What a warp fetches next: spans of a part of w's rows, then of the part `step` further on.
template <class W, int rows, bool gated>
struct Fetching {
  using Own = Parts<rows, gated>;

  const Matrix& w;
  int step, part;
  int begin = 0;  // of the span, in bytes of a row
  const unsigned char* from = nullptr;

  __device__ Fetching(const Matrix& matrix, int first, int parts_apart)
      : w(matrix), step(parts_apart), part(first) {
    from = w.data + int64_t{part} * Own::kApart * w.row_bytes;
  }

  __device__ void next(unsigned char* set) {
    if (part * Own::kApart < w.rows) {
      const int bytes = min(kSpanBytes<W>, static_cast<int>(w.row_bytes) - begin);
#pragma unroll
      for (int r = 0; r < rows; ++r)
        fetch<W>(set + r * kStageBytes<W>, from + Own::offset(w, part, r), bytes,
                 w.end + (gated ? r * w.apart : 0));
      begin += kSpanBytes<W>;
      from += kSpanBytes<W>;
      if (begin >= w.row_bytes) {
        begin = 0;
        part += step;
        from = w.data + int64_t{part} * Own::kApart * w.row_bytes;
      }
    }
    async_copy_commit();
  }
};

// Adds the products of this lane's slices in a span of `rows` rows of w, from the first of them
// in shared memory, with `columns` rows of x. shifts: of each row's bytes in its stage.
template <class W, int columns, int rows>
__device__ inline void add_span(const unsigned char* set, const unsigned (&shifts)[rows],
                                int slices, const unsigned char* x,
                                const unsigned (&x_rows)[columns], float (&sums)[rows * columns]) {
  constexpr int kBlockSlices = W::kValues / 32, kRecord = kRecordBytes<W::kApart>;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned char* meta = x + 2 * kHalfBytes - 8 * lane;
#pragma unroll(columns == 1 ? kSpan<W> : 1)
  for (int chunk = 0; chunk < kSpan<W>; ++chunk) {
    if (chunk * kChunkSlices + static_cast<int>(lane) >= slices) return;
    Slice unpacked[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const unsigned at = lane / kBlockSlices * W::kBytes + chunk * kChunkBytes<W>;
      const BlockBytes block = {set + r * kStageBytes<W>, kEven<W> ? at : shifts[r] + at};
      W::slice(block, lane % kBlockSlices, unpacked[r]);
    }
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const unsigned row = columns == 1 ? 0 : x_rows[c];
#pragma unroll
      for (int r = 0; r < rows; ++r)
        sums[r * columns + c] = add_product<W>(unpacked[r], x + row + chunk * kRecord,
                                               meta + row + chunk * kRecord, sums[r * columns + c]);
    }
  }
}

// Rows of w, `rows` at a time, with a group of up to `columns` rows of x; by one warp, which takes
// part `first` of the rows and every `step`-th from there. gated: y has silu of w's products times
// those of the matrix beside it.
template <class W, int columns, int rows, bool gated = false, class Group>
__device__ inline void multiply(const Matrix& w, const Quantised& x, const Rows& y,
                                const Group& group, int first, int step) {
  using Own = Parts<rows, gated>;
  static_assert(!gated || rows == 2, "a row of each");
  const int lane = threadIdx.x % kWarp;
  constexpr int kSet = rows * kStageBytes<W>, kRecords = kSpan<W> * kRecordBytes<W::kApart>;
  unsigned char* sets = dynamic_shared() + threadIdx.x / kWarp * kStages * kSet;

  unsigned x_rows[columns];
#pragma unroll
  for (int c = 0; c < columns; ++c)
    x_rows[c] = static_cast<unsigned>(group.x_row(min(c, group.count - 1)) * x.stride);
  const unsigned char* x_lane = x.data + (columns == 1 ? x_rows[0] : 0) + 16 * lane;

  constexpr int kShare = kWarp / (rows * columns);
  const int own = lane / kShare, own_column = own % columns;
  const bool writes = lane % kShare == 0 && own_column < group.count && !(gated && lane >= 16);

  // Constants are on their way while the kernels before this one still write x.
  if (!w.constant) await_grid();
  Fetching<W, rows, gated> fetching(w, first, step);
#pragma unroll
  for (int s = 0; s < kStages; ++s) fetching.next(sets + s * kSet);
  prepare<W>(0);
  if (w.constant) await_grid();

  unsigned char *set = sets, *last = sets + (kStages - 1) * kSet;
  for (int part = first; part * Own::kApart < w.rows; part += step) {
    float sums[rows * columns] = {};
    unsigned shifts[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r)
      shifts[r] = static_cast<unsigned>((reinterpret_cast<uintptr_t>(w.data) +
                                         int64_t{part} * Own::kApart * w.row_bytes +
                                         Own::offset(w, part, r)) %
                                        16);
    const unsigned char* at = x_lane;
    for (int slices = w.slices; slices > 0; slices -= kSpan<W> * kChunkSlices) {
      async_copy_wait<kStages - 1>();
      __syncwarp();
      add_span<W, columns, rows>(set, shifts, slices, at, x_rows, sums);
      __syncwarp();
      fetching.next(set);
      set = set == last ? sets : set + kSet;
      at += kRecords;
      if constexpr (!kEven<W>)
#pragma unroll
        for (int r = 0; r < rows; ++r) shifts[r] = (shifts[r] + kSpanBytes<W>) % 16;
    }
    float sum = warp_sums<rows * columns>(sums);
    if constexpr (gated) sum = silu(sum) * __shfl_down_sync(kAllLanes, sum, kWarp / 2);
    const int row = part * Own::kApart + (gated ? 0 : own / columns);
    if (writes && row < w.rows) row_at(y, group.y_row(own_column))[row] = sum;
  }
}

__device__ inline int own_warp() {
  return static_cast<int>(blockIdx.y * kWarps + threadIdx.x / kWarp);
}

__device__ inline int all_warps() {
  return static_cast<int>(gridDim.y) * kWarps;
}

template <int columns>
constexpr int kRowsAtOnce = columns == 1 ? 1 : 2;

// Blocks of a multiprocessor, by the registers that they need.
template <class W, int columns>
constexpr int kBlocksAtOnce = columns == 1          ? 7
                              : columns == 2        ? 6
                              : columns == 4        ? 4
                              : W::kType == RR_Q5_K ? 3
                                                    : 4;

template <class W, int columns>
__global__ __launch_bounds__(kThreads, (kBlocksAtOnce<W, columns>)) void multiply_dense(Matrix w,
                                                                                        Quantised x,
                                                                                        Rows y) {
  release_grid();
  const int64_t first = int64_t{blockIdx.x} * columns;
  const DenseGroup group = {first, static_cast<int>(min(x.rows - first, int64_t{columns}))};
  multiply<W, columns, kRowsAtOnce<columns>>(w, x, y, group, own_warp(), all_warps());
}

template <class W>
inline Matrix matrix_of(const rr_tensor& w) {
  const int64_t k = w.shape[w.rank - 1], rows = w.shape[w.rank - 2];
  const int64_t row_bytes = k / W::kValues * W::kBytes;
  const unsigned char* data = static_cast<const unsigned char*>(w.data);
  return {data,
          data + n_rows(w) * row_bytes,
          row_bytes,
          0,
          static_cast<int>(rows),
          static_cast<int>(k / 32),
          w.constant != 0};
}

template <class W, int columns>
inline void launch_dense(const rr_exec* exec, const Matrix& w, const Quantised& x, const Rows& y) {
  constexpr int kRows = kRowsAtOnce<columns>, kShared = kSharedBytes<W, kRows>;
  const int64_t groups = blocks_for(x.rows, columns);
  const dim3 grid(static_cast<unsigned>(groups), row_blocks(exec, blocks_for(w.rows, kRows), kWarps,
                                                            groups, kBlocksAtOnce<W, columns>));
  RR_LAUNCH(exec, (multiply_dense<W, columns>), grid, kThreads, kShared, w, x, y);
}

template <class W>
inline Quantised quantised(const rr_tensor& x, void* memory) {
  return {static_cast<unsigned char*>(memory), quantised_bytes<W::kApart>(x.shape[x.rank - 1]),
          n_rows(x)};
}

template <class W>
size_t workspace_dense(const rr_node* node, int32_t) {
  const rr_tensor& x = node->inputs[0];
  return static_cast<size_t>(n_rows(x) * quantised_bytes<W::kApart>(x.shape[x.rank - 1]));
}

template <class W>
void run_dense(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (numel(y) == 0) return;
  const Matrix w = matrix_of<W>(node->inputs[1]);
  const Quantised q = quantised<W>(x, exec->workspace);
  const dim3 grid(static_cast<unsigned>(quantise_blocks(x)));
  if (!is_prepared(exec, x, kQuantisedForm<W::kApart, W::kSums>))
    RR_LAUNCH(exec, (quantise_rows<W::kApart, W::kSums>), grid, kQuantiseThreads, 0, floats_of(x),
              q);
  if (q.rows == 1) return launch_dense<W, 1>(exec, w, q, rows_of(y));
  if (q.rows == 2) return launch_dense<W, 2>(exec, w, q, rows_of(y));
  if (q.rows <= 4) return launch_dense<W, 4>(exec, w, q, rows_of(y));
  launch_dense<W, 8>(exec, w, q, rows_of(y));
}

// Whether the kernels' 32-bit offsets reach all of the quantised x.
template <class W>
bool small_enough(const rr_node* node) {
  return workspace_dense<W>(node, 1) <= UINT32_MAX;
}

// Whether w's last axes are rows of whole blocks without gaps.
template <class W>
bool whole_rows(const rr_tensor& w) {
  const int64_t k = w.shape[w.rank - 1], rows = w.shape[w.rank - 2];
  const int64_t row_bytes = k / W::kValues * W::kBytes;
  if (w.layout != RR_LAYOUT_PLAIN) return false;
  if (k == 0 || k % W::kValues != 0 || k > INT32_MAX || rows > INT32_MAX / 2) return false;
  if (rows > 1 && w.strides[w.rank - 2] != row_bytes) return false;
  return k == W::kValues || w.strides[w.rank - 1] == W::kBytes;
}

template <class W>
int supports_dense(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  if (w.dtype != W::kType || w.layout != RR_LAYOUT_PLAIN || w.rank != 2)
    return refuse(why, size, W::kRefusal);
  if (!whole_rows<W>(w)) return refuse(why, size, "w needs dense rows of whole blocks");
  if (!small_enough<W>(node)) return refuse(why, size, "x has more than 4 GiB when quantised");
  if (x.dtype != RR_F32 || !dense_tail(x, 1) || !dense_tail(y, 1))
    return refuse(why, size, "x and y need dense f32 rows");
  return 1;
}

}  // namespace
