// Rows of one weight type as rows of another: decoded to f32, then encoded.

#include "encode_32.hpp"
#include "encode_grid.hpp"
#include "kernel.hpp"
#include "recoder.hpp"

namespace {

// Encodes n finite values, whole blocks. importance may be null. False where a block's scale is
// beyond f16.
typedef bool (*Encode)(const float* x, const float* importance, uint8_t* out, int64_t n);

inline bool encode_f32(const float* x, const float*, uint8_t* out, int64_t n) {
  memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
  return true;
}

inline bool encode_f16(const float* x, const float*, uint8_t* out, int64_t n) {
  bool fits = true;
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t half = f32_to_f16(x[i]);
    fits &= (half & 0x7c00) != 0x7c00;
    memcpy(out + 2 * i, &half, sizeof half);
  }
  return fits;
}

inline bool encode_bf16(const float* x, const float*, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t half = f32_to_bf16(x[i]);
    memcpy(out + 2 * i, &half, sizeof half);
  }
  return true;
}

inline bool encode_rows_q8_0(const float* x, const float*, uint8_t* out, int64_t n) {
  return encode_each<RR_Q8_0, encode_q8_0>(x, out, n);
}

// Without an importance the plain encoder, with one the search.
template <bool (*Plain)(const float*, uint8_t*, int64_t), Encode Search>
inline bool encode_either(const float* x, const float* importance, uint8_t* out, int64_t n) {
  return importance ? Search(x, importance, out, n) : Plain(x, out, n);
}

struct Result {
  uint32_t dtype;
  Encode encode;
};

constexpr Result kResults[] = {
    {RR_F32, encode_f32},
    {RR_F16, encode_f16},
    {RR_BF16, encode_bf16},
    {RR_Q8_0, encode_rows_q8_0},
    {RR_Q4_0, encode_either<encode_each<RR_Q4_0, encode_q4_0>, search_signed_32<RR_Q4_0>>},
    {RR_Q5_0, encode_either<encode_each<RR_Q5_0, encode_q5_0>, search_signed_32<RR_Q5_0>>},
    {RR_Q4_1, encode_either<encode_affine_32<RR_Q4_1>, search_affine_32<RR_Q4_1>>},
    {RR_Q5_1, encode_either<encode_affine_32<RR_Q5_1>, search_affine_32<RR_Q5_1>>},
    {RR_Q2_K, encode_q2_k},
    {RR_Q3_K, encode_q3_k},
    {RR_Q4_K, encode_k_affine<RR_Q4_K>},
    {RR_Q5_K, encode_k_affine<RR_Q5_K>},
    {RR_Q6_K, encode_q6_k},
    {RR_IQ4_NL, encode_iq4_nl},
    {RR_IQ4_XS, encode_iq4_xs},
    {RR_MXFP4, encode_mxfp4},
    {RR_IQ2_XXS, encode_grid<EncodeIq2Xxs, 1>},
    {RR_IQ2_XS, encode_grid<EncodeIq2Xs, 1>},
    {RR_IQ2_S, encode_grid<EncodeIq2S, 2>},
    {RR_IQ3_XXS, encode_grid<EncodeIq3Xxs, 2>},
    {RR_IQ3_S, encode_grid<EncodeIq3S, 2>},
};

const Result* result_of(uint32_t dtype) {
  for (const Result& r : kResults)
    if (r.dtype == dtype) return &r;
  return nullptr;
}

bool takes(uint32_t dtype, int64_t* values, int64_t* bytes) {
  const Format* f = format_of(dtype);
  if (f == nullptr) return false;
  *values = f->values;
  *bytes = f->bytes;
  return true;
}

bool gives(uint32_t dtype, int64_t* values, int64_t* bytes) {
  return result_of(dtype) != nullptr && takes(dtype, values, bytes);
}

const char* recode_row(uint32_t from, const uint8_t* row, uint32_t to, uint8_t* out,
                       const float* importance, float* scratch, int64_t n) {
  decode_row(from, row, scratch, n);
  if (!(peak(scratch, n) < kMost)) return "values should be finite and below 1e9";
  if (!result_of(to)->encode(scratch, importance, out, n))
    return "values should be small enough for f16, which holds 65504 at most";
  return nullptr;
}

const RowRecoder recoder = {RR_ISA, RR_PRIORITY, takes, gives, recode_row};
[[maybe_unused]] const int recoder_registered = (register_recoder(&recoder), 0);

}  // namespace
