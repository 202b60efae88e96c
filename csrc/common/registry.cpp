#include "registry.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace {

// Function-local so that kernel files may register in any order of static initialisation.
std::vector<const rr_kernel*>& kernel_table() {
  static std::vector<const rr_kernel*> table;
  return table;
}

std::vector<const rr_packer*>& packer_table() {
  static std::vector<const rr_packer*> table;
  return table;
}

#if defined(__x86_64__) || defined(_M_X64)
// Leaf 7, sub-leaf 1, which compilers' own tests know since GCC 11 only.
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1) return false;
  __get_cpuid_count(7, 1, &a, &b, &c, &d);
  return (a >> 4 & 1) != 0;
}
#elif defined(__aarch64__) && defined(__linux__)
// Numbers of the kernel's interface, which older headers of the C library lack.
bool has_dot_products() {
  return (getauxval(AT_HWCAP) >> 20 & 1) != 0;
}
bool has_matrix_products() {
  return (getauxval(AT_HWCAP2) >> 13 & 1) != 0;
}
#elif defined(__aarch64__) && defined(__APPLE__)
bool has_feature(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dot_products() {
  return has_feature("hw.optional.arm.FEAT_DotProd");
}
bool has_matrix_products() {
  return has_feature("hw.optional.arm.FEAT_I8MM");
}
#elif defined(__aarch64__)
bool has_dot_products() {
  return false;
}
bool has_matrix_products() {
  return false;
}
#endif

std::vector<std::string> detect_isas() {
  std::vector<std::string> found = {"base"};
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx2) found.push_back("avx2");
  if (avx2 && has_avx_vnni()) found.push_back("avxvnni");
  if (avx512) found.push_back("avx512");
  if (avx512 && __builtin_cpu_supports("avx512vnni")) found.push_back("avx512vnni");
#elif defined(__aarch64__)
  if (has_dot_products()) found.push_back("dotprod");
  if (has_dot_products() && has_matrix_products()) found.push_back("i8mm");
#endif
  const char* cap = std::getenv("RIVERRUN_ISA");
  if (cap != nullptr) {
    const auto at = std::find(found.begin(), found.end(), std::string(cap));
    if (at != found.end()) found.erase(at + 1, found.end());
  }
  return found;
}

}  // namespace

extern "C" void rr_register_kernel(const rr_kernel* kernel) {
  kernel_table().push_back(kernel);
}
extern "C" void rr_register_packer(const rr_packer* packer) {
  packer_table().push_back(packer);
}

namespace riverrun {

const std::vector<const rr_kernel*>& all_kernels() {
  static const std::vector<const rr_kernel*> sorted = [] {
    std::vector<const rr_kernel*> table = kernel_table();
    std::sort(table.begin(), table.end(), [](const rr_kernel* a, const rr_kernel* b) {
      const int order = std::string(a->op).compare(b->op);
      return order != 0 ? order < 0 : a->priority > b->priority;
    });
    return table;
  }();
  return sorted;
}

const std::vector<std::string>& usable_isas() {
  static const std::vector<std::string> isas = detect_isas();
  return isas;
}

bool usable(const rr_kernel& kernel) {
  const auto& isas = usable_isas();
  return std::find(isas.begin(), isas.end(), kernel.isa) != isas.end();
}

const KernelTable& KernelTable::builtin() {
  static const KernelTable table = [] {
    KernelTable made;
    for (const rr_kernel* kernel : all_kernels())
      if (usable(*kernel)) made.kernels_.push_back(kernel);
    return made;
  }();
  return table;
}

const KernelTable& KernelTable::all() {
  static const KernelTable table = [] {
    KernelTable made;
    made.kernels_ = all_kernels();
    return made;
  }();
  return table;
}

KernelTable::KernelTable(const rr_plugin& plugin) {
  for (uint32_t i = 0; i < plugin.n_kernels; ++i) {
    const rr_kernel* kernel = plugin.kernels ? plugin.kernels[i] : nullptr;
    const std::string which =
        "kernel " + std::to_string(i) + " of " + std::to_string(plugin.n_kernels);
    if (kernel && kernel->struct_size < sizeof(rr_kernel))
      throw std::invalid_argument(which + " has a struct_size of " +
                                  std::to_string(kernel->struct_size) + ", it should be " +
                                  std::to_string(sizeof(rr_kernel)) + " or more");
    if (!kernel || !kernel->op || !kernel->isa || !kernel->supports || !kernel->run)
      throw std::invalid_argument(which + " is incomplete");
    kernels_.push_back(kernel);
  }
}

namespace {

// Why kernels refused a node: each reason once, with the names of those that gave it.
class Refusals {
 public:
  void add(const std::string& isa, const std::string& reason) {
    const auto same = [&](const Refusal& given) { return given.reason == reason; };
    auto at = std::find_if(all_.begin(), all_.end(), same);
    if (at == all_.end()) at = all_.insert(at, {reason, {}});
    if (std::find(at->isas.begin(), at->isas.end(), isa) == at->isas.end()) at->isas.push_back(isa);
  }

  // "isa, isa: reason; isa: reason", in the order of the kernels.
  std::string text() const {
    std::string all;
    for (const Refusal& given : all_) {
      if (!all.empty()) all += "; ";
      for (const std::string& isa : given.isas) all += (&isa == &given.isas[0] ? "" : ", ") + isa;
      all += ": " + given.reason;
    }
    return all;
  }

 private:
  struct Refusal {
    std::string reason;
    std::vector<std::string> isas;
  };
  std::vector<Refusal> all_;
};

}  // namespace

int KernelTable::find(const rr_node& node, std::string& reasons, bool exact) const {
  char why[256];
  bool named = false;
  int inexact = -1;
  Refusals refusals;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const rr_kernel* kernel = kernels_[i];
    if (std::string(kernel->op) != node.op) continue;
    named = true;
    why[0] = 0;
    if (kernel->supports(&node, why, sizeof why)) {
      if (!exact || (kernel->flags & RR_ROW_EXACT)) return static_cast<int>(i);
      if (inexact < 0) inexact = static_cast<int>(i);
      continue;
    }
    why[sizeof why - 1] = 0;
    refusals.add(kernel->isa, why[0] ? why : "no reason given");
  }
  reasons = named ? refusals.text() : "no kernel of this op";
  return inexact;
}

const rr_packer* find_packer(uint32_t dtype, uint32_t layout) {
  for (const rr_packer* packer : packer_table())
    if (packer->dtype == dtype && packer->layout == layout) return packer;
  return nullptr;
}

}  // namespace riverrun
