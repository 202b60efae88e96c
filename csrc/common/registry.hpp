// The kernels and packers that this build holds, and the ones this processor can run.
#pragma once

#include <string>
#include <vector>

#include "riverrun.h"

namespace riverrun {

const std::vector<const rr_kernel*>& all_kernels();

// Instruction-set levels of this processor, lowest first, capped by RIVERRUN_ISA.
const std::vector<std::string>& usable_isas();
bool usable(const rr_kernel& kernel);

// The best usable kernel for a node, or null with each candidate's reason.
const rr_kernel* find_kernel(const rr_node& node, std::string& reasons);
const rr_packer* find_packer(uint32_t dtype, uint32_t layout);

}  // namespace riverrun
