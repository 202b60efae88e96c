// Blocks of iq2 and iq3, by a search for the least weighted squared error over whole grids. Formats
// are those of block_grid.hpp. Fitted first are the steps of sub-blocks alone; then they become odd
// multiples of one step, which is fitted to the codes that follow.
//
// Sixteen sub-blocks lie side by side as in fit_lanes.hpp. The cost of an entry is a sum over its
// places, so that sums for all that the lower and the upper half of an entry can be are made once
// for each group of values, and an entry costs one addition.
#pragma once

#include "encode_k.hpp"

namespace {

// A format is a type's Block with store(). kEven says whether eight values have an even number of
// signs.
template <class F>
struct GridTraits {
  static constexpr int kEntries = kGridEntries<F::kType>;
  static constexpr int kBits = 16 / F::kPlaces;  // of a place
  static constexpr int kGroups = F::kWidth / F::kPlaces;
  static constexpr float kLargest = static_cast<float>(F::kMagnitudes[F::kSizes - 1]);
};

// Sub-blocks as magnitudes, and bit i of signs for value i below zero. Where signs are even, the
// value whose sign costs least has the other one, and a magnitude below zero.
template <class F>
struct GridLanes {
  Lanes<F::kWidth> g;
  uint32_t signs[kSub];

  void split_signs() {
    for (int j = 0; j < kSub; ++j) {
      signs[j] = 0;
      for (int i = 0; i < F::kWidth; ++i) {
        if (!(g.x[i][j] < 0)) continue;
        signs[j] |= 1u << i;
        g.x[i][j] = -g.x[i][j];
      }
      for (int first = 0; F::kEven && first < F::kWidth; first += 8) make_even(j, first);
    }
  }

  void make_even(int j, int first) {
    if (!__builtin_parity(signs[j] >> first & 255u)) return;
    int at = first;
    float least = INFINITY;
    for (int i = first; i < first + 8; ++i) {
      const float cost = g.w[i][j] * g.x[i][j] * g.x[i][j];
      if (!(cost < least)) continue;
      least = cost;
      at = i;
    }
    signs[j] ^= 1u << at;
    g.x[at][j] = -g.x[at][j];
  }
};

// What magnitudes of two neighbouring places cost, less the sum of w * x * x: out[a | b << kBits].
template <class F>
inline void pair_costs(const vec* x, const vec* w, vec* out) {
  using T = GridTraits<F>;
  vec cost[2][F::kSizes];
  for (int i = 0; i < 2; ++i) {
    const vec twice = w[i] * x[i] * vec_of(2.0f);
    for (int m = 0; m < F::kSizes; ++m) {
      const vec v = vec_of(static_cast<float>(F::kMagnitudes[m]));
      cost[i][m] = v * (v * w[i] - twice);
    }
  }
  for (int b = 0; b < F::kSizes; ++b)
    for (int a = 0; a < F::kSizes; ++a) out[a | b << T::kBits] = cost[0][a] + cost[1][b];
}

// The same of half an entry, by its byte.
template <class F>
inline void half_costs(const vec* x, const vec* w, vec* out) {
  if constexpr (F::kPlaces == 4) {
    pair_costs<F>(x, w, out);
  } else {
    vec low[16], high[16];
    pair_costs<F>(x, w, low);
    pair_costs<F>(x + 2, w + 2, high);
    for (int b = 0; b < 11; ++b)
      for (int a = 0; a < 11; ++a)
        if (a % 4 < 3 && b % 4 < 3) out[a | b << 4] = low[a] + high[b];
  }
}

// The code of each lane's nearest entry, for values in units of the magnitudes.
template <class F>
inline ivec nearest_entry(const vec* x, const vec* w) {
  vec low[256], high[256];
  half_costs<F>(x, w, low);
  half_costs<F>(x + F::kPlaces / 2, w + F::kPlaces / 2, high);
  // Every fourth entry, from each of the first four on, so that comparisons do not wait for others.
  vec least[4];
  ivec code[4];
  for (int c = 0; c < 4; ++c) {
    least[c] = vec_of(INFINITY);
    code[c] = ivec{};
  }
  for (int e = 0; e < GridTraits<F>::kEntries; e += 4) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const vec cost = low[F::kGrid[e + c] & 255] + high[F::kGrid[e + c] >> 8];
      const ivec better = cost < least[c];
      least[c] = better ? cost : least[c];
      code[c] = better ? ivec{} + (e + c) : code[c];
    }
  }
  for (int c = 1; c < 4; ++c) {
    const ivec better = least[c] < least[0];
    least[0] = better ? least[c] : least[0];
    code[0] = better ? code[c] : code[0];
  }
  return code[0];
}

// Codes of a group of sub-blocks, and the weighted sums over their magnitudes.
template <class F>
struct GridFound {
  alignas(64) int32_t code[GridTraits<F>::kGroups][kSub];
  alignas(64) float xv[kSub], vv[kSub];
};

// Of lanes p and on, with steps whose inverses are given.
template <class F>
inline void find_entries(const GridLanes<F>& lanes, int p, vec inverse, GridFound<F>& found) {
  using T = GridTraits<F>;
  vec xv = {}, vv = {};
  for (int k = 0; k < T::kGroups; ++k) {
    vec x[F::kPlaces], w[F::kPlaces], scaled[F::kPlaces];
    for (int i = 0; i < F::kPlaces; ++i) {
      x[i] = load_vec(lanes.g.x[F::kPlaces * k + i] + p);
      w[i] = load_vec(lanes.g.w[F::kPlaces * k + i] + p);
      scaled[i] = vec_clamp(inverse * x[i], -4096.0f, 4096.0f);
    }
    const ivec code = nearest_entry<F>(scaled, w);
    memcpy(found.code[k] + p, &code, sizeof code);
    ivec entry;
    for (int j = 0; j < kLanes; ++j) entry[j] = F::kGrid[code[j]];
    for (int i = 0; i < F::kPlaces; ++i) {
      const ivec place = entry >> (T::kBits * i) & ((1 << T::kBits) - 1);
      vec v = {};
      for (int m = 0; m < F::kSizes; ++m)
        v = place == m ? vec_of(static_cast<float>(F::kMagnitudes[m])) : v;
      const vec wv = w[i] * v;
      xv += wv * x[i];
      vv += wv * v;
    }
  }
  store_vec(found.xv + p, xv);
  store_vec(found.vv + p, vv);
}

// Steps of sub-blocks alone: the largest magnitude begins as that of the grid times end + i * by,
// for i of -tries .. tries; then steps are those that fit the codes best.
struct GridSearch {
  float end, by;
  int tries, rounds;
};

template <class F>
inline void fit_grid_steps(const GridLanes<F>& lanes, const GridSearch& search, float* steps) {
  GridFound<F> found;
  for (int p = 0; p < kSub; p += kLanes) {
    vec most = {};
    for (int i = 0; i < F::kWidth; ++i) most = vec_max(most, load_vec(lanes.g.x[i] + p));
    const vec inverse = vec_inverse(most);
    vec best = {}, gain = {};
    for (int t = -search.tries; t <= search.tries + search.rounds; ++t) {
      const float part = search.end + search.by * static_cast<float>(t);
      const vec tried =
          t <= search.tries ? vec_of(GridTraits<F>::kLargest * part) * inverse : vec_inverse(best);
      find_entries<F>(lanes, p, tried, found);
      const vec xv = load_vec(found.xv + p), vv = load_vec(found.vv + p), step = xv / vv;
      const ivec better = (vv > vec{}) & (xv > vec{}) & (step * xv > gain);
      best = better ? step : best;
      gain = better ? step * xv : gain;
    }
    store_vec(steps + p, best);
  }
}

// One or two blocks: each has d, and each sub-block a step of d * kFactor * (2 * scale + 1).
template <class F>
struct GridFit {
  static constexpr int kCount = kSuper / F::kWidth;  // sub-blocks of a block

  GridLanes<F> lanes;
  int blocks;
  float d[2];
  alignas(64) float step[kSub], multiple[kSub];
  GridFound<F> found;

  float unit(int j) const { return d[j / kCount < blocks ? j / kCount : 0] * F::kFactor; }

  static float odd(float x) {
    const float scale = ((x - 1.0f) * 0.5f + 12582912.0f) - 12582912.0f;
    return 2.0f * (scale < 0 ? 0 : scale > 15 ? 15 : scale) + 1.0f;
  }

  void find() {
    for (int j = 0; j < kSub; ++j) step[j] = multiple[j] * unit(j);
    for (int p = 0; p < kSub; p += kLanes)
      find_entries<F>(lanes, p, vec_inverse(load_vec(step + p)), found);
  }

  // The error of sub-block j, less the sum of w * x * x.
  float error(int j) const { return step[j] * (step[j] * found.vv[j] - 2.0f * found.xv[j]); }

  // Sub-blocks take the multiple beside that of their step where that is better.
  void choose(const float* wanted) {
    float best[kSub], least[kSub], start[kSub];
    for (int j = 0; j < kSub; ++j) {
      start[j] = odd(wanted[j] * inverse(unit(j)));
      best[j] = start[j];
      least[j] = INFINITY;
    }
    for (int by = -1; by <= 1; ++by) {
      for (int j = 0; j < kSub; ++j) multiple[j] = odd(start[j] + 2.0f * static_cast<float>(by));
      find();
      for (int j = 0; j < kSub; ++j) {
        if (!(error(j) < least[j])) continue;
        least[j] = error(j);
        best[j] = multiple[j];
      }
    }
    memcpy(multiple, best, sizeof best);
  }

  // d that fits the codes best. False where f16 does not hold it.
  bool refit() {
    for (int i = 0; i < blocks; ++i) {
      float xv = 0, vv = 0;
      for (int j = kCount * i; j < kCount * i + kCount; ++j) {
        xv += multiple[j] * found.xv[j];
        vv += multiple[j] * multiple[j] * found.vv[j];
      }
      if (vv > 0) d[i] = as_f16(xv / vv / F::kFactor);
      if (!fits_f16(d[i])) return false;
    }
    return true;
  }

  bool fit(const GridSearch& search) {
    alignas(64) float wanted[kSub];
    lanes.split_signs();
    fit_grid_steps<F>(lanes, search, wanted);
    for (int i = 0; i < blocks; ++i) {
      float most = 0;
      for (int j = kCount * i; j < kCount * i + kCount; ++j)
        most = wanted[j] > most ? wanted[j] : most;
      d[i] = as_f16(most / (31.0f * F::kFactor));
      if (!fits_f16(d[i])) return false;
    }
    choose(wanted);
    find();
    if (!refit()) return false;
    choose(wanted);
    find();
    if (!refit()) return false;
    find();
    return true;
  }

  uint32_t scale(int j) const { return static_cast<uint32_t>(multiple[j]) / 2; }
  uint32_t code(int j, int k) const { return static_cast<uint32_t>(found.code[k][j]); }
  uint32_t signs(int j, int eight) const { return lanes.signs[j] >> 8 * eight & 255u; }
};

inline void put_bytes(uint32_t word, int n, uint8_t* to) {
  for (int i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(word >> 8 * i & 255u);
}

// Four times 7 bits of signs, and the scale above.
template <class F>
inline void put_signs_and_scale(const GridFit<F>& f, int j, uint8_t* to) {
  uint32_t word = f.scale(j) << 28;
  for (int k = 0; k < 4; ++k) word |= (f.signs(j, k) & 127u) << 7 * k;
  put_bytes(word, 4, to);
}

// Two scales a byte.
template <class F>
inline void store_scales(const GridFit<F>& f, int first, uint8_t* to) {
  for (int j = 0; j < f.kCount; j += 2)
    to[j / 2] = static_cast<uint8_t>(f.scale(first + j) | f.scale(first + j + 1) << 4);
}

struct EncodeIq2Xxs : Block<RR_IQ2_XXS> {
  static void store(const GridFit<EncodeIq2Xxs>& f, int first, uint8_t* b) {
    for (int j = 0; j < 8; ++j, b += 8) {
      for (int k = 0; k < 4; ++k) put_bytes(f.code(first + j, k), 1, b + kCodes + k);
      put_signs_and_scale(f, first + j, b + kSigns);
    }
  }
};

struct EncodeIq2Xs : Block<RR_IQ2_XS> {
  static void store(const GridFit<EncodeIq2Xs>& f, int first, uint8_t* b) {
    for (int j = 0; j < 16; ++j)
      for (int k = 0; k < 2; ++k)
        put_bytes(f.code(first + j, k) | (f.signs(first + j, k) & 127u) << 9, 2,
                  b + kCodes + 4 * j + 2 * k);
    store_scales(f, first, b + kScales);
  }
};

struct EncodeIq2S : Block<RR_IQ2_S> {
  static void store(const GridFit<EncodeIq2S>& f, int first, uint8_t* b) {
    memset(b + kHigh, 0, 8);
    for (int i = 0; i < 32; ++i) {
      const uint32_t code = f.code(first + i / 2, i % 2);
      put_bytes(code, 1, b + kCodes + i);
      put_bytes(f.signs(first + i / 2, i % 2), 1, b + kSigns + i);
      b[kHigh + i / 4] |= static_cast<uint8_t>(code >> 8 << i % 4 * 2);
    }
    store_scales(f, first, b + kScales);
  }
};

struct EncodeIq3Xxs : Block<RR_IQ3_XXS> {
  static void store(const GridFit<EncodeIq3Xxs>& f, int first, uint8_t* b) {
    for (int j = 0; j < 8; ++j) {
      for (int k = 0; k < 8; ++k) put_bytes(f.code(first + j, k), 1, b + kCodes + 8 * j + k);
      put_signs_and_scale(f, first + j, b + kSigns + 4 * j);
    }
  }
};

struct EncodeIq3S : Block<RR_IQ3_S> {
  static void store(const GridFit<EncodeIq3S>& f, int first, uint8_t* b) {
    memset(b + kHigh, 0, 8);
    for (int j = 0; j < 8; ++j) {
      for (int k = 0; k < 8; ++k) {
        const uint32_t code = f.code(first + j, k);
        put_bytes(code, 1, b + kCodes + 8 * j + k);
        b[kHigh + j] |= static_cast<uint8_t>(code >> 8 << k);
      }
      put_bytes(f.lanes.signs[first + j], 4, b + kSigns + 4 * j);
    }
    store_scales(f, first, b + kScales);
  }
};

constexpr GridSearch kGridSearch = {0.95f, 0.04f, 5, 2};

template <class F, int Means>
inline bool encode_grid(const float* x, const float* importance, uint8_t* b, int64_t n) {
  constexpr int kAtOnce = kSub * F::kWidth;
  for (int64_t at = 0; at < n; at += kAtOnce) {
    GridFit<F> f;
    f.blocks = kAtOnce > kSuper && n - at > kSuper ? 2 : 1;
    load_lanes(x + at, importance ? importance + at : nullptr, n - at, kSuper, spread_weight,
               given_spread<Means>, f.lanes.g);
    if (!f.fit(kGridSearch)) return false;
    for (int i = 0; i < f.blocks; ++i, b += F::kBytes) {
      store_scale(f.d[i], b + F::kD);
      F::store(f, f.kCount * i, b);
    }
  }
  return true;
}

}  // namespace
