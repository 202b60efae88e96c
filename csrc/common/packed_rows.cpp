#include "packed_rows.hpp"

#include <string.h>

#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <tuple>
#include <vector>

#include "registry.hpp"

namespace riverrun {

namespace {

constexpr int64_t kRows = 16;

using Bytes = std::vector<uint8_t>;

int bit(const Bytes& bytes, int64_t i) {
  return bytes[static_cast<size_t>(i / 8)] >> (i % 8) & 1;
}

void set_bit(Bytes& bytes, int64_t i) {
  uint8_t& byte = bytes[static_cast<size_t>(i / 8)];
  byte = static_cast<uint8_t>(byte | 1 << (i % 8));
}

// Up to 8 bits of one byte of a block. In a packed group of 16 rows they lie at
// first + r % 16 * by_row + b * by_block for block b of row r.
struct Piece {
  int64_t first, by_row, by_block;
  int32_t to;  // the first one's place in the block
  uint8_t mask, flip;
};

}  // namespace

// Most packed layouts hold the bits of a weight in another order, some inverted. Which order is
// found by packing numbered bits, so that a packer alone says how its layout looks.
struct PackedRows {
  const rr_packer& packer;
  int64_t cols, blocks, block_bytes, group_bytes;
  std::vector<Piece> pieces;

  int64_t row_bytes() const { return blocks * block_bytes; }
  Bytes group() const { return Bytes(static_cast<size_t>(kRows * row_bytes())); }
  Bytes packed(const Bytes& plain) const;
  std::vector<int64_t> places() const;
  bool learn();
  bool inside(const Piece& piece) const;
  bool holds() const;
};

Bytes PackedRows::packed(const Bytes& plain) const {
  Bytes made(static_cast<size_t>(group_bytes));
  packer.pack(plain.data(), made.data(), kRows, cols);
  return made;
}

// Where the bits of the first block have gone, then those of the block behind it and of the one
// below it; -1 for a bit that is nowhere. All are numbered from 1, and each digit of the numbers
// is packed.
std::vector<int64_t> PackedRows::places() const {
  const int64_t bits = 8 * block_bytes, n = 3 * bits;
  const int64_t starts[] = {0, bits, 8 * row_bytes()};
  const Bytes none = packed(group());
  std::vector<int64_t> number(static_cast<size_t>(8 * group_bytes));
  for (int digit = 0; n >> digit; ++digit) {
    Bytes plain = group();
    for (int64_t i = 0; i < n; ++i)
      if ((i + 1) >> digit & 1 && (blocks > 1 || i / bits != 1))
        set_bit(plain, starts[i / bits] + i % bits);
    const Bytes made = packed(plain);
    for (size_t p = 0; p < number.size(); ++p)
      if (bit(made, static_cast<int64_t>(p)) != bit(none, static_cast<int64_t>(p)))
        number[p] |= int64_t{1} << digit;
  }
  std::vector<int64_t> place(static_cast<size_t>(n), -1);
  for (size_t p = 0; p < number.size(); ++p)
    if (number[p] >= 1 && number[p] <= n)
      place[static_cast<size_t>(number[p] - 1)] = static_cast<int64_t>(p);
  return place;
}

bool PackedRows::learn() {
  const auto bits = static_cast<int32_t>(8 * block_bytes);
  const std::vector<int64_t> place = places();
  const Bytes none = packed(group());
  for (int32_t i = 0; i < bits; ++i) {
    const int64_t first = place[static_cast<size_t>(i)];
    const int64_t behind = blocks > 1 ? place[static_cast<size_t>(bits + i)] : first;
    const int64_t below = place[static_cast<size_t>(2 * bits + i)];
    if (first < 0 || behind < 0 || below < 0) return false;
    const Piece one = {
        first, below - first, behind - first, i, 1, static_cast<uint8_t>(bit(none, first))};
    const int32_t n = pieces.empty() ? 0 : i - pieces.back().to;
    if (i % 8 != 0 && first % 8 != 0 && first == pieces.back().first + n &&
        one.by_row == pieces.back().by_row && one.by_block == pieces.back().by_block) {
      pieces.back().mask = static_cast<uint8_t>(pieces.back().mask | 1 << n);
      pieces.back().flip = static_cast<uint8_t>(pieces.back().flip | one.flip << n);
    } else {
      pieces.push_back(one);
    }
  }
  return true;
}

// Places follow straight lines from row to row and from block to block, so their ends tell.
bool PackedRows::inside(const Piece& piece) const {
  for (const int64_t r : {int64_t{0}, kRows - 1})
    for (const int64_t b : {int64_t{0}, blocks - 1}) {
      const int64_t at = piece.first + r * piece.by_row + b * piece.by_block;
      if (at < 0 || at >= 8 * group_bytes) return false;
    }
  return true;
}

// Whether rows of random bits come back.
bool PackedRows::holds() const {
  for (const Piece& piece : pieces)
    if (!inside(piece)) return false;
  std::mt19937 random(1);
  Bytes plain = group(), row(static_cast<size_t>(row_bytes()));
  for (uint8_t& byte : plain) byte = static_cast<uint8_t>(random());
  const Bytes made = packed(plain);
  for (int64_t r = 0; r < kRows; ++r) {
    read_packed_row(*this, made.data(), r, row.data());
    if (memcmp(row.data(), plain.data() + r * row_bytes(), row.size()) != 0) return false;
  }
  return true;
}

const PackedRows* find_packed_rows(uint32_t dtype, uint32_t layout, int64_t cols,
                                   int64_t block_values, int64_t block_bytes) {
  static std::mutex lock;
  static std::map<std::tuple<uint32_t, uint32_t, int64_t>, std::unique_ptr<PackedRows>> known;
  const rr_packer* packer = find_packer(dtype, layout);
  if (packer == nullptr || cols < 1 || cols % block_values != 0) return nullptr;
  const std::lock_guard<std::mutex> held(lock);
  const auto [at, fresh] = known.try_emplace({dtype, layout, cols});
  if (fresh) {
    const auto group_bytes = static_cast<int64_t>(packer->bytes(kRows, cols));
    auto made = std::make_unique<PackedRows>(
        PackedRows{*packer, cols, cols / block_values, block_bytes, group_bytes, {}});
    if (made->learn() && made->holds()) at->second = std::move(made);
  }
  return at->second.get();
}

void read_packed_row(const PackedRows& rows, const void* packed, int64_t r, uint8_t* row) {
  const uint8_t* group = static_cast<const uint8_t*>(packed) + r / kRows * rows.group_bytes;
  memset(row, 0, static_cast<size_t>(rows.row_bytes()));
  for (int64_t b = 0; b < rows.blocks; ++b)
    for (const Piece& piece : rows.pieces) {
      const int64_t at = piece.first + r % kRows * piece.by_row + b * piece.by_block;
      const int value = (group[at / 8] >> at % 8 ^ piece.flip) & piece.mask;
      uint8_t& byte = row[b * rows.block_bytes + piece.to / 8];
      byte = static_cast<uint8_t>(byte | value << piece.to % 8);
    }
}

}  // namespace riverrun
