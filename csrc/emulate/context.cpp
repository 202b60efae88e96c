#include "context.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define RR_ASAN 1
#else
#define RR_ASAN 0
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__x86_64__)
// Saves what a call must preserve on the current stack, its place in *from, and takes up `to`. The
// floating-point control words stay: all fibers run under the same. It ends in a jump, because the
// processor would mispredict every return to another stack than the call's.
extern "C" void riverrun_emulate_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl riverrun_emulate_switch
.hidden riverrun_emulate_switch
.type riverrun_emulate_switch,@function
riverrun_emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size riverrun_emulate_switch,.-riverrun_emulate_switch
)");
#endif

namespace emulate {
namespace {

constexpr size_t kStack = RR_ASAN ? 512 << 10 : 128 << 10;
constexpr int kSaved = 6;
// Stacks start at different sets of the caches.
constexpr size_t kColour = 448, kColours = 16;

__thread Fiber* starting __attribute__((tls_model("initial-exec")));

}  // namespace

struct Fiber::Context {
#if defined(__x86_64__)
  void *host = nullptr, *fiber = nullptr;
  void to_fiber() { riverrun_emulate_switch(&host, fiber); }
  void to_host() { riverrun_emulate_switch(&fiber, host); }
#else
  ucontext_t host, fiber;
  void to_fiber() { swapcontext(&host, &fiber); }
  void to_host() { swapcontext(&fiber, &host); }
#endif
#if RR_ASAN
  void *host_fake = nullptr, *fiber_fake = nullptr;
  const void* host_stack = nullptr;
  size_t host_size = 0;
#endif
};

Fiber::Fiber(int number) : number_(number), context_(std::make_unique<Context>()) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  mapped_ = kStack + page;
  void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  mprotect(memory_, page, PROT_NONE);
  prepare();
}

Fiber::~Fiber() {
#if RR_ASAN
  ASAN_UNPOISON_MEMORY_REGION(memory_, mapped_);
#endif
  munmap(memory_, mapped_);
}

void Fiber::prepare() {
#if RR_ASAN
  ASAN_UNPOISON_MEMORY_REGION(memory_ + mapped_ - kStack, kStack);
  context_->fiber_fake = nullptr;
#endif
  const size_t colour = static_cast<size_t>(number_) % kColours * kColour;
#if defined(__x86_64__)
  // As after a call: the return address's place is 8 below a multiple of 16.
  void** top = reinterpret_cast<void**>(memory_ + mapped_ - colour - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::main);
  for (int i = 0; i < kSaved; ++i) *--top = nullptr;
  context_->fiber = top;
#else
  getcontext(&context_->fiber);
  context_->fiber.uc_stack.ss_sp = memory_ + mapped_ - kStack;
  context_->fiber.uc_stack.ss_size = kStack - colour / 16 * 16;
  context_->fiber.uc_link = nullptr;
  makecontext(&context_->fiber, &Fiber::main, 0);
#endif
}

void Fiber::reset() {
  job_ = nullptr;
  prepare();
}

void Fiber::main() {
  Fiber* self = starting;
  self->enter_host();
  for (;;) {
    self->job_();
    self->job_ = nullptr;
    self->suspend();
  }
}

// Tells the sanitizer that the switch into this fiber is complete.
void Fiber::enter_host() {
#if RR_ASAN
  Context& c = *context_;
  __sanitizer_finish_switch_fiber(c.fiber_fake, &c.host_stack, &c.host_size);
#endif
}

void Fiber::resume(void (*job)()) {
  if (!job_) job_ = job;
  starting = this;
#if RR_ASAN
  Context& c = *context_;
  __sanitizer_start_switch_fiber(&c.host_fake, memory_ + mapped_ - kStack, kStack);
  c.to_fiber();
  __sanitizer_finish_switch_fiber(c.host_fake, nullptr, nullptr);
#else
  context_->to_fiber();
#endif
}

void Fiber::suspend() {
#if RR_ASAN
  Context& c = *context_;
  __sanitizer_start_switch_fiber(&c.fiber_fake, c.host_stack, c.host_size);
#endif
  context_->to_host();
  enter_host();
}

}  // namespace emulate
