// get_rows: decodes table rows in the file's own order, threads split the ids.

#include "decode.hpp"
#include "kernel.hpp"

namespace {

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &ids = node->inputs[1], &y = node->outputs[0];
  if (!decodable(node->inputs[0], why, size)) return 0;
  if (ids.dtype != RR_I32) return refuse(why, size, "ids need to be i32");
  if (y.dtype != RR_F32 || !dense_tail(y, 1)) return refuse(why, size, "y needs dense f32 rows");
  return 1;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &table = node->inputs[0], &ids = node->inputs[1], &y = node->outputs[0];
  const char* base = static_cast<const char*>(table.data);
  const char* list = static_cast<const char*>(ids.data);
  const Format* format = format_of(table.dtype);
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
    format->decode(reinterpret_cast<const uint8_t*>(base + id * table.strides[0]),
                   reinterpret_cast<float*>(row_ptr(y, i)), table.shape[1]);
  }
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& y = node->outputs[0];
  return static_cast<int32_t>(numel(y) < 65536 ? 1 : y.shape[0]);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "get_rows", supports, nullptr, tasks, run)
