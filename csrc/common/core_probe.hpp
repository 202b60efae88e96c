// What one core does: its clock, the products that it reaches at best, the instructions it ran.
#pragma once

#include <stdint.h>

namespace riverrun {

// Cycles a second of the calling thread's core: additions that wait for each other, one a cycle.
double clock_rate();

struct Peak {
  const char* instruction;  // "" where no loop is known for the level
  double rate;              // products a second
};

// Products of integers on registers alone with the dot instruction of the highest instruction set
// in use, each with the sum that it cannot do without. wide: for weights of 8 bits, whose products
// need more room than 16 bits.
Peak dot_peak(bool wide);

// Counts the instructions of the calling thread outside the kernel, where the system lets it.
class Instructions {
 public:
  Instructions();
  ~Instructions();
  Instructions(const Instructions&) = delete;
  Instructions& operator=(const Instructions&) = delete;
  int64_t count() const;  // since it was made; -1 where they are not counted

 private:
  int file_ = -1;
};

}  // namespace riverrun
