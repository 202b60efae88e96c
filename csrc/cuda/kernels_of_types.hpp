// Kernels of one type of weights each, which are compiled apart and found by those that use
// several.
#pragma once

#include <stdint.h>

namespace riverrun {

// All of a kind that are linked in. Kernels has `dtype`, and `next`, which is set here.
template <class Kernels>
const Kernels*& first_of() {
  static const Kernels* first = nullptr;
  return first;
}

template <class Kernels>
int add_kernels(Kernels& kernels) {
  kernels.next = first_of<Kernels>();
  first_of<Kernels>() = &kernels;
  return 0;
}

// Those of a type, or null.
template <class Kernels>
const Kernels* kernels_of(uint32_t dtype) {
  const Kernels* found = first_of<Kernels>();
  while (found && found->dtype != dtype) found = found->next;
  return found;
}

}  // namespace riverrun
