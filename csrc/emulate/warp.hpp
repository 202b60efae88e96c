// What the lanes of a warp do together.
#pragma once

#include "fibers.hpp"

namespace emulate {

template <typename T>
struct Exchange {
  T value, result;
  int source;
};

template <typename T>
void finish_exchange(void* const* lanes, unsigned mask) {
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1u)) continue;
    Exchange<T>& mine = *static_cast<Exchange<T>*>(lanes[i]);
    // What a lane outside the mask gives is undefined: something that hardly looks right.
    if (mask >> mine.source & 1u)
      mine.result = static_cast<const Exchange<T>*>(lanes[mine.source])->value;
    else
      memset(&mine.result, 0xFF, sizeof(T));
  }
}

// Short integers are shuffled as int.
template <typename T>
using Shuffled = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, int, T>;

template <typename T>
T exchange(unsigned mask, T value, int source) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "shuffles take int, long long, float and double");
  Exchange<T> mine{value, value, source};
  collective(mask, &mine, &finish_exchange<T>);
  return mine.result;
}

struct Vote {
  bool value;
  unsigned result;
};

inline void finish_vote(void* const* lanes, unsigned mask) {
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1u) bits |= static_cast<unsigned>(static_cast<Vote*>(lanes[i])->value) << i;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1u) static_cast<Vote*>(lanes[i])->result = bits;
}

template <typename T, typename Combine>
void finish_reduction(void* const* lanes, unsigned mask) {
  bool first = true;
  T total{};
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1u)) continue;
    const T value = *static_cast<const T*>(lanes[i]);
    total = first ? value : Combine{}(total, value);
    first = false;
  }
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1u) *static_cast<T*>(lanes[i]) = total;
}

template <typename T, typename Combine>
T reduce(unsigned mask, T value) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>,
                "reductions of a warp take int and unsigned");
  collective(mask, &value, &finish_reduction<T, Combine>);
  return value;
}

struct Sum {
  // As unsigned: sums of int wrap around on the device.
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
  }
};

struct Most {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

struct Least {
  template <typename T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

inline void finish_nothing(void* const*, unsigned) {}

}  // namespace emulate

template <typename T>
emulate::Shuffled<T> __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = emulate::lane(), first = lane & ~(width - 1);
  return emulate::exchange<emulate::Shuffled<T>>(mask, value, first + (source & (width - 1)));
}

template <typename T>
emulate::Shuffled<T> __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = emulate::lane(), last = lane | (width - 1), source = lane ^ bits;
  return emulate::exchange<emulate::Shuffled<T>>(mask, value, source > last ? lane : source);
}

template <typename T>
emulate::Shuffled<T> __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = emulate::lane(), last = lane | (width - 1);
  const int source = lane + static_cast<int>(delta);
  return emulate::exchange<emulate::Shuffled<T>>(mask, value, source > last ? lane : source);
}

template <typename T>
emulate::Shuffled<T> __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = emulate::lane(), first = lane & ~(width - 1);
  const int source = lane - static_cast<int>(delta);
  return emulate::exchange<emulate::Shuffled<T>>(mask, value, source < first ? lane : source);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  emulate::Vote vote{predicate != 0, 0};
  emulate::collective(mask, &vote, &emulate::finish_vote);
  return vote.result;
}

inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}

inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulate::collective(mask, nullptr, &emulate::finish_nothing);
}

template <typename T>
T __reduce_add_sync(unsigned mask, T value) {
  return emulate::reduce<T, emulate::Sum>(mask, value);
}

template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
  return emulate::reduce<T, emulate::Most>(mask, value);
}

template <typename T>
T __reduce_min_sync(unsigned mask, T value) {
  return emulate::reduce<T, emulate::Least>(mask, value);
}
