// The kernels and packers that this build holds, and the ones this processor can run.
#pragma once

#include <string>
#include <vector>

#include "riverrun.h"

namespace riverrun {

// Every kernel of this build, best first within an op, usable here or not.
const std::vector<const rr_kernel*>& all_kernels();

// Instruction-set levels of this processor, lowest first, capped by RIVERRUN_ISA.
const std::vector<std::string>& usable_isas();
bool usable(const rr_kernel& kernel);

// A list of kernels to choose from: this build's, or a plug-in's.
class KernelTable {
 public:
  // This build's kernels that the processor can run, best first within an op.
  static const KernelTable& builtin();
  // All kernels of this build: of a device whose kernels all run wherever one does.
  static const KernelTable& all();
  // A plug-in's kernels in its own order. Throws std::invalid_argument for a damaged table.
  explicit KernelTable(const rr_plugin& plugin);

  const std::vector<const rr_kernel*>& kernels() const { return kernels_; }
  // The index of the first kernel that takes a node, or -1 and why each candidate refused,
  // every reason once. exact: others than row-exact ones only where none of those takes it.
  int find(const rr_node& node, std::string& reasons, bool exact = false) const;

 private:
  KernelTable() = default;
  std::vector<const rr_kernel*> kernels_;
};

const rr_packer* find_packer(uint32_t dtype, uint32_t layout);

}  // namespace riverrun
