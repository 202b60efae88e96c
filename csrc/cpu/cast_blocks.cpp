// cast to block types of 32 values, bit for bit as the codecs encode.

#include "convert.hpp"

namespace {

constexpr int64_t kBlock = 32;
constexpr float kMost = 1e9f;  // magnitudes from here on are refused

// 1 / d, and 0 where d or what it gives is out of range.
float inverse(float d) {
  const float out = 1.0f / d;
  return fabsf(out) < INFINITY ? out : 0.0f;
}

// Stores d; false if it is beyond the range of f16.
bool store_scale(float d, uint8_t* block) {
  const uint16_t half = f32_to_f16(d);
  memcpy(block, &half, sizeof half);
  return (half & 0x7c00) != 0x7c00;
}

// d f16, int8 q; halves round away from zero.
bool encode_q8_0(const float* x, uint8_t* block) {
  float most = 0.0f;
  for (int i = 0; i < kBlock; ++i) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
  const float d = most / 127.0f, factor = inverse(d);
  for (int i = 0; i < kBlock; ++i) {
    const float scaled = x[i] * factor, whole = truncf(scaled);
    block[2 + i] = static_cast<uint8_t>(static_cast<int>(whole + truncf(2.0f * (scaled - whole))));
  }
  return store_scale(d, block);
}

// Codes 0 .. 2 * levels - 1; the first value of largest magnitude gets code 0.
float encode_signed(const float* x, int levels, uint8_t* q) {
  float peak = x[0];
  for (int i = 1; i < kBlock; ++i) peak = fabsf(x[i]) > fabsf(peak) ? x[i] : peak;
  const float d = peak / static_cast<float>(-levels), factor = inverse(d);
  for (int i = 0; i < kBlock; ++i) {
    const int code = static_cast<int>(x[i] * factor + (static_cast<float>(levels) + 0.5f));
    q[i] = static_cast<uint8_t>(code < 0 ? 0 : code > 2 * levels - 1 ? 2 * levels - 1 : code);
  }
  return d;
}

void pack_nibbles(const uint8_t* q, uint8_t* to) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
}

// d f16, nibbles in halves.
bool encode_q4_0(const float* x, uint8_t* block) {
  uint8_t q[kBlock];
  const float d = encode_signed(x, 8, q);
  pack_nibbles(q, block + 2);
  return store_scale(d, block);
}

// d f16, fifth bits, nibbles in halves.
bool encode_q5_0(const float* x, uint8_t* block) {
  uint8_t q[kBlock];
  const float d = encode_signed(x, 16, q);
  uint32_t fifth = 0;
  for (int i = 0; i < kBlock; ++i) fifth |= static_cast<uint32_t>(q[i] >> 4) << i;
  memcpy(block + 2, &fifth, sizeof fifth);
  pack_nibbles(q, block + 6);
  return store_scale(d, block);
}

struct Encoder {
  uint32_t dtype;
  int64_t bytes;
  bool (*encode)(const float* x, uint8_t* block);  // false if the scale does not fit
};

constexpr Encoder kEncoders[] = {
    {RR_Q8_0, 34, encode_q8_0}, {RR_Q5_0, 22, encode_q5_0}, {RR_Q4_0, 18, encode_q4_0}};

const Encoder* encoder_of(uint32_t dtype) {
  for (const Encoder& e : kEncoders)
    if (e.dtype == dtype) return &e;
  return nullptr;
}

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const Encoder* e = encoder_of(y.dtype);
  if (e == nullptr || !castable(x.dtype))
    return refuse(why, size, "casts f32, f16, bf16 and i32 to q8_0, q5_0 and q4_0 only");
  if (x.rank < 1 || x.shape[x.rank - 1] % kBlock != 0)
    return refuse(why, size, "rows need to be whole blocks");
  if (x.shape[x.rank - 1] > kBlock && y.strides[y.rank - 1] != e->bytes)
    return refuse(why, size, "y needs dense rows");
  return 1;
}

void report(const rr_exec* exec, const char* what, double value, int64_t row, int64_t block) {
  char message[160];
  snprintf(message, sizeof message, "%s, got %g in block %lld of row %lld", what, value,
           static_cast<long long>(block), static_cast<long long>(row));
  exec->fail(exec, message);
}

// Values are numbers below kMost in magnitude.
bool in_range(const float* x, int64_t n, float* wrong) {
  for (int64_t i = 0; i < n; ++i) {
    if (fabsf(x[i]) < kMost) continue;
    *wrong = x[i];
    return false;
  }
  return true;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const Encoder* e = encoder_of(y.dtype);
  const int64_t blocks = x.shape[x.rank - 1] / kBlock, step = x.strides[x.rank - 1];
  alignas(64) float values[kChunk];
  const Range part = split(exec, real_rows(node, x) * blocks);
  for (int64_t at = part.begin; at < part.end; ++at) {
    const int64_t r = at / blocks, b = at % blocks;
    float wrong;
    gather(x.dtype, row_ptr(x, r) + b * kBlock * step, step, values, kBlock);
    if (!in_range(values, kBlock, &wrong))
      return report(exec, "'x' should be finite and below 1e9", wrong, r, b);
    uint8_t* block = reinterpret_cast<uint8_t*>(row_ptr(y, r)) + b * e->bytes;
    if (e->encode(values, block)) continue;
    return report(exec, "'x' should be small enough for a block's f16 scale", values[0], r, b);
  }
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "cast", supports, nullptr, elementwise_tasks, run)
