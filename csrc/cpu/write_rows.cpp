// write_rows: threads split the elements of a row, so that of equal indices the last row wins.

#include "ops/write_rows.hpp"

#include "encode.hpp"
#include "kernel.hpp"
#include "pool.hpp"

namespace {

// Round to nearest, ties to even; NaN stays NaN.
hvec to_bf16(vec v) {
  const uvec bits = (uvec)v;
  const uvec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uvec nan = (uvec)((ivec)(bits & 0x7fffffff) > 0x7f800000);
  return __builtin_convertvector((nan & ((bits >> 16) | 64)) | (~nan & rounded), hvec);
}

void narrow_f16(uint16_t* to, const float* from, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store16_f16(to + i, load16(from + i));
  for (; i < n; ++i) to[i] = f32_to_f16(from[i]);
}

void narrow_bf16(uint16_t* to, const float* from, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const hvec h = to_bf16(load_vec(from + i));
    memcpy(to + i, &h, sizeof h);
  }
  for (; i < n; ++i) to[i] = f32_to_bf16(from[i]);
}

void encode_blocks(char* to, const float* from, const Encoder& e, int64_t n) {
  for (int64_t i = 0; i < n; i += kBlock, to += e.bytes)
    e.encode(from + i, reinterpret_cast<uint8_t*>(to));
}

void write(char* to, const float* from, uint32_t dtype, int64_t n) {
  if (in_blocks(dtype)) return encode_blocks(to, from, *encoder_of(dtype), n);
  if (dtype == RR_F16)
    narrow_f16(reinterpret_cast<uint16_t*>(to), from, n);
  else if (dtype == RR_BF16)
    narrow_bf16(reinterpret_cast<uint16_t*>(to), from, n);
  else
    memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

// Elements part.begin .. part.end - 1 of row i, piece by piece between gaps.
void write_part(const rr_tensor& state, const rr_tensor& rows, int64_t i, int64_t to, Range part,
                int64_t piece) {
  char* target = static_cast<char*>(state.data) + to * state.strides[0];
  const int64_t last = rows.shape[rows.rank - 1];
  const int64_t before = i * (numel(rows) / rows.shape[0] / last);
  while (part.begin < part.end) {
    const int64_t at = part.begin % piece;
    const int64_t n = piece - at < part.end - part.begin ? piece - at : part.end - part.begin;
    const char* from = row_ptr(rows, before + (part.begin - at) / last);
    write(target + pool_bytes(state.dtype, part.begin), reinterpret_cast<const float*>(from) + at,
          state.dtype, n);
    part.begin += n;
  }
}

// Blocks hold finite values only. Every thread looks at all rows, so that none writes before
// another finds something.
bool encodable(const rr_tensor& rows, const int32_t* idx, const Encoder& e, const rr_exec* exec) {
  const int64_t n = rows.shape[0], last = rows.shape[rows.rank - 1];
  const int64_t pieces = n > 0 ? n_rows(rows) / n : 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = 0; p < pieces && idx[i] >= 0; ++p) {
      const float most = peak(reinterpret_cast<const float*>(row_ptr(rows, i * pieces + p)), last);
      if (e.takes(most)) continue;
      char message[160];
      snprintf(message, sizeof message,
               "'rows' should be finite and small enough for a block's f16 scale, got a magnitude "
               "of %g in row %lld",
               static_cast<double>(most), static_cast<long long>(i));
      exec->fail(exec, message);
      return false;
    }
  return true;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &state = node->inputs[0], &rows = node->inputs[1];
  const auto* idx = static_cast<const int32_t*>(node->inputs[2].data);
  const int64_t n = rows.shape[0], limit = state.shape[0];
  for (int64_t i = 0; i < n; ++i)
    if (idx[i] >= limit) {
      char message[128];
      snprintf(message, sizeof message, "'idx' should be below %lld, got %d at [%lld]",
               static_cast<long long>(limit), idx[i], static_cast<long long>(i));
      exec->fail(exec, message);
      return;
    }
  const int64_t inner = numel(state) / (limit > 0 ? limit : 1);
  const int64_t piece = dense_tail(rows, rows.rank - 1) ? inner : rows.shape[rows.rank - 1];
  if (inner == 0) return;
  if (in_blocks(state.dtype) && !encodable(rows, idx, *encoder_of(state.dtype), exec)) return;
  const Range part = split(exec, inner, 32);
  for (int64_t i = 0; i < n; ++i)
    if (idx[i] >= 0) write_part(state, rows, i, idx[i], part, piece);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& rows = node->inputs[1];
  if (rows.shape[0] == 0 || numel(rows) < 32768) return 1;
  return static_cast<int32_t>((numel(rows) / rows.shape[0] + 31) / 32);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "write_rows", supports, nullptr, tasks, run)
