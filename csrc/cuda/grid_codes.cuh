// Blocks of iq2 and iq3 as bytes of codes: y = d * factor * (2 * s + 1) * (code - zero), with a
// scale s for each part of 32 or 16 values.
//
// A grid's entry is a selector of bytes, or two: digits, each the place of a magnitude. Entries are
// looked up by 32 lanes at 32 places, so products have a copy in shared memory (0.5 to 4 KiB a
// block): constant memory would serve one lane at a time, and the L1 cache a line at a time.
#pragma once

#include "block_grid.hpp"
#include "bytes.cuh"

namespace {

// Entries as devices hold them.
template <typename T, int n>
struct alignas(16) Entries {
  T at[n] = {};
  constexpr explicit Entries(const uint16_t (&grid)[n]) {
    for (int i = 0; i < n; ++i) at[i] = wide(grid[i], T{});
  }
  static constexpr uint16_t wide(uint16_t places, uint16_t) { return places; }
  // Eight digits of two bits become digits of four.
  static constexpr uint32_t wide(uint16_t places, uint32_t) {
    uint32_t digits = 0;
    for (int i = 0; i < 8; ++i) digits |= (places >> 2 * i & 3u) << 4 * i;
    return digits;
  }
};

// Four fields of 7 bits to a byte each.
__device__ inline unsigned spread_sevens(unsigned word) {
  return (word & 0x7fu) | (word << 1 & 0x7f00u) | (word << 2 & 0x7f0000u) |
         (word << 3 & 0x7f000000u);
}

// Signs in 7 bits of each byte: the eighth makes their number even.
__device__ inline unsigned with_eighth(unsigned sevens) {
  unsigned odd = sevens ^ sevens >> 4;
  odd ^= odd >> 2;
  odd ^= odd >> 1;
  return sevens | (odd & 0x01010101u) << 7;
}

// Part p of the block at b, which is 2-byte aligned: kWidth values.
template <uint32_t dtype>
struct GridPart;

// Magnitudes in groups of eight. A digit's third bit is the sign: the table holds the three
// magnitudes, and from place 4 on their negatives.
template <uint32_t dtype>
struct Iq2Part : Block<dtype> {
  using Entry = uint32_t;
  static constexpr int kZero = 43;

  // Codes of the part's values 4i to 4i + 3.
  __device__ unsigned four(const Entry* entries, int i) const {
    constexpr unsigned kPositive = four_values(kIq2Values, 0, kZero),
                       kNegative = four_values(kIq2Values, 8, kZero);
    const auto& self = static_cast<const GridPart<dtype>&>(*this);
    const int eight = i / 2;
    // One byte's signs in halves, then in pairs, then one by one.
    unsigned s = __byte_perm(self.signs, self.signs >> 4, 0x0400u + 0x0101u * eight) & 0x000f000fu;
    s = (s | s << 6) & 0x03030303u;
    s = (s | s << 3) & 0x11111111u;
    const unsigned digits = entries[self.code(eight)] | s << 2;
    return __byte_perm(kPositive, kNegative, digits >> 16 * (i % 2));
  }
};

// Magnitudes in groups of four. Zero is larger than any of them, and 127 - x + 1 is 2 * zero - x.
template <uint32_t dtype>
struct Iq3Part : Block<dtype> {
  using Entry = uint16_t;
  static constexpr int kZero = 64;
  static constexpr unsigned kFirst = four_values(Block<dtype>::kMagnitudes, 0, kZero),
                            kSecond = four_values(Block<dtype>::kMagnitudes, 4, kZero);

  __device__ unsigned four(const Entry* entries, int i) const {
    const auto& self = static_cast<const GridPart<dtype>&>(*this);
    const unsigned s = (self.signs >> 4 * i & 15u) * 0x00204081u & 0x01010101u;
    return (__byte_perm(kFirst, kSecond, entries[self.code(i)]) ^ s * 127u) + s;
  }
};

[[maybe_unused]] __device__ const Entries<uint32_t, 256> kEntriesIq2Xxs(kGridIq2Xxs);
[[maybe_unused]] __device__ const Entries<uint32_t, 512> kEntriesIq2Xs(kGridIq2Xs);
[[maybe_unused]] __device__ const Entries<uint32_t, 1024> kEntriesIq2S(kGridIq2S);
[[maybe_unused]] __device__ const Entries<uint16_t, 256> kEntriesIq3Xxs(kGridIq3Xxs);
[[maybe_unused]] __device__ const Entries<uint16_t, 512> kEntriesIq3S(kGridIq3S);

template <>
struct GridPart<RR_IQ2_XXS> : Iq2Part<RR_IQ2_XXS> {
  unsigned codes, high, signs;

  __device__ GridPart(const uint8_t* b, int p)
      : codes(load32(b + kCodes + 8 * p)),
        high(load32(b + kSigns + 8 * p)),
        signs(with_eighth(spread_sevens(high))) {}
  __device__ int code(int i) const { return byte_of(codes, i); }
  __device__ int scale() const { return static_cast<int>(high >> 28); }
  __device__ static const Entry* entries() { return kEntriesIq2Xxs.at; }
};

template <>
struct GridPart<RR_IQ2_XS> : Iq2Part<RR_IQ2_XS> {
  unsigned codes, signs;
  int scales;

  __device__ GridPart(const uint8_t* b, int p)
      : codes(load32(b + kCodes + 4 * p)),
        signs(with_eighth((codes >> 9 & 0x7fu) | (codes >> 17 & 0x7f00u))),
        scales(b[kScales + p / 2] >> 4 * (p % 2)) {}
  __device__ int code(int i) const { return static_cast<int>(codes >> 16 * i & 511); }
  __device__ int scale() const { return scales & 15; }
  __device__ static const Entry* entries() { return kEntriesIq2Xs.at; }
};

template <>
struct GridPart<RR_IQ2_S> : Iq2Part<RR_IQ2_S> {
  unsigned codes, signs, upper;
  int scales;

  __device__ GridPart(const uint8_t* b, int p)
      : codes(load16(b + kCodes + 2 * p)),
        signs(load16(b + kSigns + 2 * p)),
        upper(b[kHigh + p / 2] >> 4 * (p % 2)),
        scales(b[kScales + p / 2] >> 4 * (p % 2)) {}
  __device__ int code(int i) const {
    return byte_of(codes, i) | static_cast<int>(upper >> 2 * i & 3) << 8;
  }
  __device__ int scale() const { return scales & 15; }
  __device__ static const Entry* entries() { return kEntriesIq2S.at; }
};

template <>
struct GridPart<RR_IQ3_XXS> : Iq3Part<RR_IQ3_XXS> {
  unsigned codes[2], high, signs;

  __device__ GridPart(const uint8_t* b, int p)
      : codes{load32(b + kCodes + 8 * p), load32(b + kCodes + 8 * p + 4)},
        high(load32(b + kSigns + 4 * p)),
        signs(with_eighth(spread_sevens(high))) {}
  __device__ int code(int i) const { return byte_of(i < 4 ? codes[0] : codes[1], i % 4); }
  __device__ int scale() const { return static_cast<int>(high >> 28); }
  __device__ static const Entry* entries() { return kEntriesIq3Xxs.at; }
};

template <>
struct GridPart<RR_IQ3_S> : Iq3Part<RR_IQ3_S> {
  unsigned codes[2], upper, signs;
  int scales;

  __device__ GridPart(const uint8_t* b, int p)
      : codes{load32(b + kCodes + 8 * p), load32(b + kCodes + 8 * p + 4)},
        upper(b[kHigh + p]),
        signs(load32(b + kSigns + 4 * p)),
        scales(b[kScales + p / 2] >> 4 * (p % 2)) {}
  __device__ int code(int i) const {
    return byte_of(i < 4 ? codes[0] : codes[1], i % 4) | static_cast<int>(upper >> i & 1) << 8;
  }
  __device__ int scale() const { return scales & 15; }
  __device__ static const Entry* entries() { return kEntriesIq3S.at; }
};

// The block's copy of a grid, which load_grid writes.
template <uint32_t dtype>
__device__ inline typename GridPart<dtype>::Entry* shared_grid() {
  using Part = GridPart<dtype>;
  __shared__ __align__(16) typename Part::Entry entries[kGridEntries<dtype>];
  return entries;
}

// By all threads; what they read of it stands behind a barrier.
template <uint32_t dtype>
__device__ inline void load_grid() {
  using Part = GridPart<dtype>;
  constexpr unsigned kPieces = kGridEntries<dtype> * sizeof(typename Part::Entry) / 16;
  auto* to = reinterpret_cast<uint4*>(shared_grid<dtype>());
  const auto* from = reinterpret_cast<const uint4*>(Part::entries());
  for (unsigned i = threadIdx.x; i < kPieces; i += blockDim.x) to[i] = from[i];
}

}  // namespace
