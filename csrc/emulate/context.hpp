// Fibers: stacks of their own, and the switch between them and the thread that runs them.
#pragma once

#include <stddef.h>

#include <memory>
#include <vector>

namespace emulate {

// A stack on which jobs run, one after the other.
class Fiber {
 public:
  explicit Fiber(int number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Starts `job` here or goes on with the one that was suspended; returns when it has suspended or
  // ended. Called by the thread's own stack only.
  void resume(void (*job)());
  // Back into resume's caller; called by the job.
  void suspend();
  // Forgets a suspended job.
  void reset();

 private:
  static void main();
  void prepare();
  void enter_host();

  struct Context;
  char* memory_;
  size_t mapped_;
  int number_;
  void (*job_)() = nullptr;
  std::unique_ptr<Context> context_;
};

}  // namespace emulate
