// get_rows: decodes table rows, threads split the ids. Of a packed table each row is brought into
// the file's order first.

#include "decode.hpp"
#include "kernel.hpp"
#include "packed_rows.hpp"

namespace {

const riverrun::PackedRows* packed_rows(const rr_tensor& table) {
  const Format* f = format_of(table.dtype);
  if (table.layout == RR_LAYOUT_PLAIN || table.rank != 2 || f == nullptr) return nullptr;
  return riverrun::find_packed_rows(table.dtype, table.layout, table.shape[1], f->values, f->bytes);
}

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &table = node->inputs[0], &ids = node->inputs[1], &y = node->outputs[0];
  if (packed_rows(table) == nullptr && !decodable(table, why, size)) return 0;
  if (ids.dtype != RR_I32) return refuse(why, size, "ids need to be i32");
  if (y.dtype != RR_F32 || !dense_tail(y, 1)) return refuse(why, size, "y needs dense f32 rows");
  return 1;
}

// A row in the file's order for each thread, in whole cache lines.
int64_t row_space(const rr_tensor& table) {
  const Format* f = format_of(table.dtype);
  return (table.shape[1] / f->values * f->bytes + 63) / 64 * 64;
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  const rr_tensor& table = node->inputs[0];
  return packed_rows(table) ? static_cast<size_t>(n_threads * row_space(table)) : 0;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &table = node->inputs[0], &ids = node->inputs[1], &y = node->outputs[0];
  const auto* base = static_cast<const uint8_t*>(table.data);
  const char* list = static_cast<const char*>(ids.data);
  const Format* format = format_of(table.dtype);
  const riverrun::PackedRows* packed = packed_rows(table);
  uint8_t* space = static_cast<uint8_t*>(exec->workspace);
  if (packed) space += exec->thread * row_space(table);
  const Range range = split(exec, real_rows(node, y));
  for (int64_t i = range.begin; i < range.end; ++i) {
    int32_t id;
    memcpy(&id, list + i * ids.strides[0], sizeof id);
    if (id < 0 || id >= table.shape[0]) {
      char message[128];
      snprintf(message, sizeof message, "ids[%lld] is %d, outside [0, %lld)",
               static_cast<long long>(i), id, static_cast<long long>(table.shape[0]));
      exec->fail(exec, message);
      return;
    }
    const uint8_t* row = packed ? space : base + id * table.strides[0];
    if (packed) riverrun::read_packed_row(*packed, base, id, space);
    format->decode(row, reinterpret_cast<float*>(row_ptr(y, i)), table.shape[1]);
  }
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& y = node->outputs[0];
  return static_cast<int32_t>(numel(y) < 65536 ? 1 : y.shape[0]);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "get_rows", supports, workspace, tasks, run)
