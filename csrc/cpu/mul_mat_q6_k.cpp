// mul_mat with q6_k weights: 256 values, d f16, sixteen int8 scales s, 6-bit q.
// y = d * s_j * (q - 32) in sub-block j of 16 values.
//
// A group is a table of d [block][row], then per block of k the scales [16][row] and for each
// sub-block three vectors [row][4]: their low six bits are q for k = 0 .. 3, 4 .. 7 and 8 .. 11 of
// the sub-block, their top two bits together q for k = 12 .. 15 (bits 5-4, 3-2, 1-0).

#include "mul_mat_quant.hpp"

namespace {

struct Q6_K {
  static constexpr uint32_t kType = RR_Q6_K;
  static constexpr const char* kRefusal = "w is not packed q6_k";
  static constexpr int64_t kWeightBlock = 256, kWeightBytes = 210, kUnit = 256 + 48 * 64;
  static constexpr int kExtras = 2;
  static constexpr bool kHalves = true;

  static int64_t group_bytes(int64_t k) { return scale_table(k / 256) + k / 256 * kUnit; }

  static void extras(v4, i4x32 low, i4x32 high, i4x32* words) {
    words[0] = kIntBias - 32 * low;
    words[1] = kIntBias - 32 * high;
  }

  // A block's 256 codes q.
  static void unpack_row(const uint8_t* row, uint8_t* codes) {
    for (int part = 0; part < 8; ++part) {
      const uint8_t* low = row + 64 * (part / 4) + 32 * (part % 2);
      const uint8_t* high = row + 128 + 32 * (part / 4);
      const int low_shift = part % 4 / 2 * 4, high_shift = part % 4 * 2;
      for (int i = 0; i < 32; ++i)
        codes[32 * part + i] =
            static_cast<uint8_t>((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4);
    }
  }

  static void pack_row(const uint8_t* row, uint8_t* group, int64_t lane, int64_t blocks) {
    uint8_t* unit = group + scale_table(blocks);
    for (int64_t b = 0; b < blocks; ++b, row += kWeightBytes, unit += kUnit) {
      memcpy(group + 32 * b + 2 * lane, row + 208, 2);
      uint8_t codes[256];
      unpack_row(row, codes);
      for (int j = 0; j < 16; ++j) {
        unit[16 * j + lane] = row[192 + j];
        uint8_t* out = unit + 256 + 192 * j + 4 * lane;
        const uint32_t top = static_cast<uint32_t>(load_int(codes + 16 * j + 12));
        for (int v = 0; v < 3; ++v) {
          const uint32_t pair = top >> (4 - 2 * v) & 0x03030303;
          const uint32_t four = static_cast<uint32_t>(load_int(codes + 16 * j + 4 * v)) | pair << 6;
          memcpy(out + 64 * v, &four, sizeof four);
        }
      }
    }
  }

  RR_INLINE static void unpack(const uint8_t* at, Bytes (&w)[4]) {
    const Bytes a = b_load(at), b = b_load(at + 64), c = b_load(at + 128), six = b_splat(63);
    w[0] = b_and(a, six);
    w[1] = b_and(b, six);
    w[2] = b_and(c, six);
    const Bytes upper = b_select(b_splat(0x30), b_shr<2>(a), b_shr<4>(b));
    w[3] = b_and(b_select(b_splat(0x3c), upper, b_shr<6>(c)), six);
  }

  // One sub-block: sums of (q - 32) * x.
  template <int C>
  RR_INLINE static void sub_block(const uint8_t* at, const XBlock<C>& x, int half,
                                  Ints (&whole)[C]) {
    Bytes w[4];
    unpack(at, w);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) whole[c] = i_splat(x.word(half, c));
    dots<6, 4>([&](int i) { return w[i]; }, x.q() + 16 * half, whole);
  }

  template <int C>
  static void tile(const TileJob& job) {
    const uint8_t* scales = job.group + 32 * (job.begin / 8);
    const uint8_t* unit = job.group + scale_table(job.blocks / 8) + kUnit * (job.begin / 8);
    XBlock<C> x = {job.x + job.begin * C * Columns<Q6_K>::kRecord};
    Floats sums[C];
    clear(sums);
    for (int64_t b = job.begin; b < job.end; b += 8, unit += kUnit, scales += 32) {
      const Floats d = f_from_f16(scales);
      for (int j = 0; j < 8; ++j) {
        const uint8_t* at = unit + 256 + 384 * j;
        const Floats first = f_mul(f_from_i8(unit + 32 * j), d);
        const Floats second = f_mul(f_from_i8(unit + 32 * j + 16), d);
        const Floats first_taken = surplus(first), second_taken = surplus(second);
        Ints whole[C];
        Floats part[C];
        sub_block<C>(at, x, 0, whole);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) part[c] = i_scaled(whole[c], first, first_taken);
        sub_block<C>(at + 192, x, 1, whole);
        fetch_ahead<384, C <= 4 ? 64 : 192>(job, at);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          part[c] = f_add(part[c], i_scaled(whole[c], second, second_taken));
          sums[c] = f_fma(part[c], f_splat(x.scale(c)), sums[c]);
        }
        x.at += C * Columns<Q6_K>::kRecord;
      }
    }
    finish<C>(sums, job);
  }
};

}  // namespace

RR_QUANTISED_PRODUCT(Q6_K)
