// get_rows: a thread decodes 32 values of a block type, or copies as many plain ones as it loads at
// once. Tables of block types may be packed by eight rows.
#include "elementwise.cuh"
#include "rows8.cuh"

namespace {

constexpr int kThreads = 128;

bool decodable(const rr_tensor& table) {
  bool whole = false;
  const bool known = with_type<RR_WEIGHT_TYPES>(table.dtype, [&](auto type) {
    using Of = decltype(type);
    const int64_t width = table.rank == 2 ? table.shape[1] : 0;
    whole = table.rank == 2 && width % Of::kValues == 0 &&
            (width <= Of::kValues || table.strides[1] == Of::kBytes);
  });
  return known && whole && (table.layout == RR_LAYOUT_PLAIN || table.layout == RR_LAYOUT_ROWS8);
}

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &ids = node->inputs[1], &y = node->outputs[0];
  if (!decodable(node->inputs[0]))
    return refuse(
        why, size,
        "table needs to be a matrix of dense rows in whole blocks, of a type that decodes");
  if (ids.dtype != RR_I32) return refuse(why, size, "ids need to be i32");
  if (y.dtype != RR_F32 || !dense_tail(y, 1)) return refuse(why, size, "y needs dense f32 rows");
  return 1;
}

struct Lookup {
  const uint8_t* table;
  const char* ids;
  char* y;
  int64_t table_rows, table_step, ids_step, y_step;  // steps in bytes
  int64_t n, width;
  bool packed;  // by eight rows
};

// The number of row i of those that are looked up; -1 where it is not one of the table's.
__device__ inline int32_t table_row(const Lookup& at, int64_t i, const Check& range) {
  const int32_t id = *reinterpret_cast<const int32_t*>(at.ids + i * at.ids_step);
  if (id >= 0 && id < at.table_rows) return id;
  report(range, i, id);
  return -1;
}

template <uint32_t dtype>
__global__ void __launch_bounds__(kThreads) get_blocks(Lookup at, bool quads, Check range) {
  enter_grid();
  const int64_t u = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t groups = at.width / 32, i = quotient(u, groups), group = u - i * groups;
  if (i >= at.n) return;
  const int32_t row = table_row(at, i, range);
  if (row < 0) return;
  float values[32];
  if (at.packed) {
    const int64_t eight = row / 8 * (at.width / 256) + group / 8;
    Rows8<dtype>::decode32(at.table + eight * 8 * kBytesOf256<dtype>, row % 8,
                           static_cast<int>(group % 8), values);
  } else {
    decode32<dtype>(at.table + row * at.table_step, group, values);
  }
  float* y = reinterpret_cast<float*>(at.y + i * at.y_step) + 32 * group;
#pragma unroll
  for (int j = 0; j < 32; j += 4) {
    if (quads) {
      *reinterpret_cast<float4*>(y + j) =
          make_float4(values[j], values[j + 1], values[j + 2], values[j + 3]);
      continue;
    }
    for (int k = j; k < j + 4; ++k) y[k] = values[k];
  }
}

template <uint32_t dtype>
__device__ inline float plain(const void* row, int64_t i) {
  if constexpr (dtype == RR_F32)
    return static_cast<const float*>(row)[i];
  else if constexpr (dtype == RR_F16)
    return half_to_float(static_cast<const uint16_t*>(row)[i]);
  else
    return bf16_to_float(static_cast<const uint16_t*>(row)[i]);
}

template <uint32_t dtype>
__global__ void __launch_bounds__(kThreads) get_plain(Lookup at, bool quads, Check range) {
  enter_grid();
  using Quad = Pack<char, 4 * Block<dtype>::kBytes>;
  const int64_t u = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t units = quads ? at.width / 4 : at.width, i = quotient(u, units), k = u - i * units;
  if (i >= at.n) return;
  const int32_t number = table_row(at, i, range);
  if (number < 0) return;
  const uint8_t* row = at.table + number * at.table_step;
  float* y = reinterpret_cast<float*>(at.y + i * at.y_step);
  if (quads) {
    const Quad q = reinterpret_cast<const Quad*>(row)[k];
    reinterpret_cast<float4*>(y)[k] = make_float4(plain<dtype>(&q, 0), plain<dtype>(&q, 1),
                                                  plain<dtype>(&q, 2), plain<dtype>(&q, 3));
  } else {
    y[k] = plain<dtype>(row, k);
  }
}

bool aligned(const void* p, int64_t step, int64_t unit) {
  return reinterpret_cast<uintptr_t>(p) % unit == 0 && step % unit == 0;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &table = node->inputs[0], &ids = node->inputs[1], &y = node->outputs[0];
  const Lookup at = {data<const uint8_t>(table),
                     data<const char>(ids),
                     data<char>(y),
                     table.shape[0],
                     table.strides[0],
                     ids.strides[0],
                     y.strides[0],
                     y.shape[0],
                     y.shape[1],
                     table.layout == RR_LAYOUT_ROWS8};
  if (at.n * at.width == 0) return;
  const Check range = check(exec, "ids[%lld] is %lld, outside the table's rows");
  const bool quads = at.width % 4 == 0 && aligned(at.y, at.y_step, 16);
  with_type<RR_WEIGHT_TYPES>(table.dtype, [&](auto type) {
    constexpr uint32_t dtype = decltype(type)::kType;
    if constexpr (Block<dtype>::kValues == 1) {
      const bool whole = quads && aligned(at.table, at.table_step, 4 * Block<dtype>::kBytes);
      const int64_t units = at.n * (whole ? at.width / 4 : at.width);
      const dim3 grid(static_cast<unsigned>(blocks_for(units, kThreads)));
      RR_LAUNCH(exec, get_plain<dtype>, grid, kThreads, 0, at, whole, range);
    } else {
      const dim3 grid(static_cast<unsigned>(blocks_for(at.n * (at.width / 32), kThreads)));
      RR_LAUNCH(exec, get_blocks<dtype>, grid, kThreads, 0, at, quads, range);
    }
  });
}

}  // namespace

RR_CUDA_KERNEL(kernel, RR_ROW_EXACT, "get_rows", "cuda", "", 0, supports, nullptr, run)
