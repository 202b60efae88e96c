// Rows of w decoded to f16, with x in f16: more exact than bf16 and in fewer instructions, for
// types whose scales leave no doubt how large values get.
//
// A row of w is multiplied by a power of two that brings its largest possible value below 2^15, a
// row of x by one that does the same with its largest; sums are multiplied by the inverses. While a
// tile's chunks are decoded, the scales of the next tile's rows are looked through.
#pragma once

#include "fragments.cuh"
#include "prompt_half_slabs.cuh"
#include "prompt_rows.cuh"

namespace {

// Of a type: `head`, the bytes that say how large values get, `bound` of them; `load`, scales of
// row r of a lane times `power`; `take`, of its eight fours of values those two of each sub-block
// that are unit u, as operands.
template <uint32_t dtype>
struct Halves;

// The larger of a block's values cannot be beyond d times kMost and dmin times 63 together.
template <int most>
struct AffineHalves {
  unsigned scale[2][2], less[2][2];  // of row and sub-block, twice

  __device__ static unsigned head(const uint8_t* block) { return aligned32(block); }

  __device__ static float bound(unsigned head) {
    return fmaf(static_cast<float>(most), fabsf(low_half(head)), 63.0f * fabsf(high_half(head)));
  }

  __device__ void load(int r, const unsigned char* block, int t, float power) {
    AffineScales of;
    of.load(r, block, t);
    const unsigned d = pair_of(float_to_half(of.d[r] * power));
    const unsigned minimum =
        multiply_pairs(of.minima[r], pair_of(float_to_half(-of.dmin[r] * power)));
#pragma unroll
    for (int h = 0; h < 2; ++h) scale[r][h] = multiply_pairs(of.scale[r][h], d);
    less[r][0] = low_twice(minimum);
    less[r][1] = high_twice(minimum);
  }

  __device__ unsigned value(int r, int h, unsigned code) const {
    return fma_pairs(code, scale[r][h], less[r][h]);
  }
};

template <>
struct Halves<RR_Q4_K> : AffineHalves<63 * 15> {
  // Of bytes 0 and 2 of a word.
  __device__ static unsigned codes(unsigned word, int upper) {
    const unsigned low = mask_into<0x000f000fu, pair_of(kPlus1024)>(word),
                   high = mask_into<0x00f000f0u, pair_of(kPlus1024)>(word);
    return upper ? fma_pairs(high, pair_of(kSixteenth), pair_of(kMinus64))
                 : add_pairs(low, pair_of(kMinus1024));
  }

  __device__ void take(int r, const unsigned char* block, int t, int u, unsigned (&a)[4][4]) const {
    const uint2 both =
        *reinterpret_cast<const uint2*>(block + Block<RR_Q4_K>::kCodes + 32 * t + 8 * u);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const unsigned word = s < 2 ? both.x : both.y;
      a[s][r] = value(r, s % 2, codes(word, s % 2));
      a[s][2 + r] = value(r, s % 2, codes(word >> 8, s % 2));
    }
  }
};

template <>
struct Halves<RR_Q5_K> : AffineHalves<63 * 31> {
  __device__ void take(int r, const unsigned char* block, int t, int u, unsigned (&a)[4][4]) const {
    const uint2 both =
        *reinterpret_cast<const uint2*>(block + Block<RR_Q5_K>::kCodes + 32 * t + 8 * u);
    const uint2 bits = *reinterpret_cast<const uint2*>(block + Block<RR_Q5_K>::kHigh + 8 * u);
    const unsigned turn = static_cast<unsigned>(4 - 2 * t) & 31;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const unsigned word = s < 2 ? both.x : both.y, upper = s < 2 ? bits.x : bits.y;
      const unsigned fifth = __funnelshift_l(upper, upper, turn) >> s % 2;
      const unsigned code = (word >> 4 * (s % 2) & 0x0f0f0f0fu) | (fifth & 0x10101010u);
      a[s][r] = value(r, s % 2, add_pairs(even_bytes(code), pair_of(kMinus1024)));
      a[s][2 + r] = value(r, s % 2, add_pairs(odd_bytes(code), pair_of(kMinus1024)));
    }
  }
};

template <>
struct Halves<RR_Q6_K> : Block<RR_Q6_K> {
  unsigned scale[2][4];  // of 16 values each, twice

  __device__ static unsigned head(const uint8_t* block) { return load16(block + kD); }

  __device__ static float bound(unsigned head) { return 4096.0f * fabsf(low_half(head)); }

  __device__ void load(int r, const unsigned char* block, int t, float power) {
    set_scales(r, load32(block + kScales + 4 * t), load_half(block + kD) * power);
  }

  // Of a lane's four sub-blocks of 16.
  __device__ void set_scales(int r, unsigned scales, float times_power) {
    const unsigned d = pair_of(float_to_half(times_power)), s = scales ^ 0x80808080u;
    const unsigned even = multiply_pairs(add_pairs(even_bytes(s), pair_of(kMinus1152)), d);
    const unsigned odd = multiply_pairs(add_pairs(odd_bytes(s), pair_of(kMinus1152)), d);
    scale[r][0] = low_twice(even);
    scale[r][1] = low_twice(odd);
    scale[r][2] = high_twice(even);
    scale[r][3] = high_twice(odd);
  }

  __device__ void take(int r, const unsigned char* block, int t, int u, unsigned (&a)[4][4]) const {
    const unsigned nibble = t % 2 * 4, odd = reinterpret_cast<uintptr_t>(block) & 2;
    unsigned low[2][2], high[2];
    read_words(block + kCodes + 64 * (t / 2) + 8 * u, odd, nibble, low[0]);
    read_words(block + kCodes + 64 * (t / 2) + 32 + 8 * u, odd, nibble, low[1]);
    read_words(block + kHigh + 32 * (t / 2) + 8 * u, odd, nibble, high);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int h = s % 2;
      const unsigned code =
          (low[h][s / 2] & 0x0f0f0f0fu) | (high[s / 2] << (4 - 2 * h) & 0x30303030u);
      centred(code, pair_of(kMinus1056), scale[r][2 * h + u / 2], a[s][r], a[s][2 + r]);
    }
  }
};

// The same of a row's pieces as they come to shared memory, of which `row` is the row's number in
// its eight. head: from where an eight has it.
template <uint32_t dtype>
struct PieceHalves;

template <>
struct PieceHalves<RR_Q6_K> : Halves<RR_Q6_K> {
  using Rows = Rows8<RR_Q6_K>;
  static constexpr int kHead = Rows::kBehind, kHeadApart = Rows::kLeft;  // bytes: of row 0, of rows

  __device__ static unsigned head(const uint8_t* d) { return load16(d); }

  __device__ void load(int r, const unsigned char* pieces, int row, int t, float power) {
    const unsigned char* scales = pieces + 16 * Rows::kScales;
    set_scales(r, aligned32(scales + 4 * t), load_half(scales + 16 + Rows::kLeft * row) * power);
  }

  __device__ void take(int r, const unsigned char* pieces, int t, int u,
                       unsigned (&a)[4][4]) const {
    const auto eight = [&](int piece) {
      return *reinterpret_cast<const uint2*>(pieces + 16 * (3 * t + piece) + u % 2 * 8);
    };
    const uint2 of[2] = {eight(u / 2), eight(2)};
    const uint2 top = u / 2 ? eight(0) : uint2{};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int h = s % 2;
      const unsigned own = s < 2 ? of[h].x : of[h].y;
      unsigned code = own >> 2;
      if (h == 1 && u / 2 == 1)
        code = s < 2 ? Rows::fourth<0>(top.x, of[0].x, own) : Rows::fourth<0>(top.y, of[0].y, own);
      centred(code & 0x3f3f3f3fu, pair_of(kMinus1056), scale[r][2 * h + u / 2], a[s][r],
              a[s][2 + r]);
    }
  }
};

template <uint32_t dtype, class Tiles>
class HalfRows : public PromptRows<dtype, Tiles> {
  using Base = PromptRows<dtype, Tiles>;
  using Of = std::conditional_t<Tiles::kInPieces, PieceHalves<dtype>, Halves<dtype>>;

 public:
  __device__ HalfRows(const PromptJob<Tiles>& job, unsigned char* shared)
      : Base(job, shared), next_(job.tiles.first()) {
    find_next();
#pragma unroll 8
    for (; chunk_ < next_chunks_; ++chunk_) look(chunk_);
    enter_tile();
    load();
  }

  __device__ void advance() {
    Base::advance();
    bound_ = fmaxf(bound_, Of::bound(head_));
    if (seldom(++chunk_ == chunks_)) enter_tile();
    load();
  }

  __device__ void decode(int u, unsigned (&a)[4][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) halves_.take(r, this->block(r), threadIdx.x % 4, u, a);
  }

  // Of the sums of the tile before the one that is decoded.
  __device__ float factor(int r) const { return inverse_before_[r]; }

 private:
  // Bytes from a row's chunk to its next one.
  __device__ int64_t apart() const { return Chunk<dtype>::bytes + this->job_.w_skip; }

  // Each lane looks through the heads of one of the warp's rows of the next tile.
  __device__ void find_next() {
    scanned_ = nullptr;
    next_chunks_ = 0;
    if (next_ >= this->job_.tiles.number()) return;
    const PromptTile of = this->job_.tiles.tile(next_);
    const int row = first_row(of) + lane_of_warp() % 16;
    if constexpr (Tiles::kInPieces) {
      const PromptWeight& weight = this->job_.weights[of.weight];
      const int at = min(row, weight.m - 1);
      scanned_ = weight.w + at / 8 * this->job_.w_eight + Of::kHead + at % 8 * Of::kHeadApart;
    } else {
      scanned_ = row_of_w(this->job_, of, row);
    }
    scanned_ += of.first * apart();
    next_chunks_ = of.chunks;
  }

  __device__ void look(int chunk) {
    bound_ = fmaxf(bound_, Of::bound(Of::head(scanned_ + chunk * apart())));
  }

  // Goes on to the next tile. Of its chunks those are looked through that are more than the tile
  // before had.
  __device__ void enter_tile() {
#pragma unroll 1
    for (; chunk_ < next_chunks_; ++chunk_) look(chunk_);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned size =
          __float_as_uint(__shfl_sync(kAllLanes, bound_, lane_of_warp() / 4 * 2 + r));
      inverse_before_[r] = inverse_[r];
      inverse_[r] = inverse_power_for(size);
    }
    bound_ = 0.0f;
    chunk_ = 0;
    chunks_ = next_chunks_;
    next_ = this->job_.tiles.after(next_);
    find_next();
  }

  __device__ void load() {
    head_ = chunk_ < next_chunks_ ? Of::head(scanned_ + chunk_ * apart()) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float power = inverse_of_power(inverse_[r]);
      if constexpr (Tiles::kInPieces)
        halves_.load(r, this->block(r), (lane_of_warp() / 4 * 2 + r) % 8, threadIdx.x % 4, power);
      else
        halves_.load(r, this->block(r), threadIdx.x % 4, power);
    }
  }

  int chunk_ = 0, chunks_ = 0;  // which of the tile's chunks is decoded, of so many
  int next_, next_chunks_;      // the tile after it
  const uint8_t* scanned_;      // its row, from its first chunk on
  unsigned head_;               // what was read there last
  float bound_ = 0.0f;          // of what was read there before
  float inverse_[2] = {}, inverse_before_[2];
  Of halves_;
};

}  // namespace
