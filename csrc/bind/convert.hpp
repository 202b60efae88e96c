// Python values to nodes and plans: what the modules of all devices share.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "plan.hpp"
#include "prompt_exact.hpp"
#include "registry.hpp"

namespace riverrun {

namespace py = pybind11;

// (dtype id, layout, shape, byte strides), or None for an absent input.
inline rr_tensor to_tensor(const py::handle& item) {
  rr_tensor t{};
  if (item.is_none()) {
    t.dtype = RR_ABSENT;
    return t;
  }
  const auto parts = item.cast<py::tuple>();
  const auto shape = parts[2].cast<std::vector<int64_t>>();
  const auto strides = parts[3].cast<std::vector<int64_t>>();
  if (shape.size() > RR_MAX_RANK || strides.size() != shape.size())
    throw py::value_error("a tensor's shape and strides should have the same rank, at most 6");
  t.dtype = parts[0].cast<uint32_t>();
  t.layout = parts[1].cast<uint32_t>();
  t.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(strides.begin(), strides.end(), t.strides);
  return t;
}

inline std::vector<rr_tensor> to_tensors(const py::list& items) {
  std::vector<rr_tensor> out;
  for (const auto& item : items) out.push_back(to_tensor(item));
  return out;
}

inline std::shared_ptr<NodeData> make_node(const std::string& op, const py::list& inputs,
                                           const py::list& outputs, const py::dict& attributes) {
  auto node = std::make_shared<NodeData>(op, to_tensors(inputs), to_tensors(outputs));
  for (const auto& [key, value] : attributes) {
    const auto name = key.cast<std::string>();
    if (py::isinstance<py::bool_>(value) || py::isinstance<py::int_>(value))
      node->add_int(name, value.cast<int64_t>());
    else if (py::isinstance<py::float_>(value))
      node->add_float(name, value.cast<double>());
    else if (py::isinstance<py::str>(value))
      node->add_text(name, value.cast<std::string>());
    else
      node->add_ints(name, value.cast<std::vector<int64_t>>());
  }
  return node;
}

inline std::vector<Location> to_locations(const py::list& items) {
  std::vector<Location> out;
  for (const auto& item : items) {
    Location at;
    if (!item.is_none()) {
      const auto pair = item.cast<std::pair<int32_t, int64_t>>();
      at.buffer = pair.first;
      at.offset = pair.second;
    }
    out.push_back(at);
  }
  return out;
}

// Text of a kernel's, which may come from outside: bytes that are not UTF-8 become U+FFFD.
inline py::str to_text(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

// A kernel of a table, as Python has it.
struct Kernel {
  const rr_kernel* kernel;
};

// (node, kernel, input locations, output locations, label, rowwise) per step.
inline std::shared_ptr<Plan> make_plan(const py::list& steps, int32_t n_buffers, int max_threads) {
  std::vector<PlanNode> nodes;
  for (const auto& item : steps) {
    const auto parts = item.cast<py::tuple>();
    PlanNode node;
    node.data = parts[0].cast<std::shared_ptr<NodeData>>();
    node.kernel = parts[1].cast<const Kernel&>().kernel;
    node.inputs = to_locations(parts[2].cast<py::list>());
    node.outputs = to_locations(parts[3].cast<py::list>());
    node.label = parts[4].cast<std::string>();
    node.rowwise = parts[5].cast<bool>();
    nodes.push_back(std::move(node));
  }
  return std::make_shared<Plan>(std::move(nodes), n_buffers, max_threads);
}

// (kernel or None, reasons). exact: row-exact kernels come before all others.
inline py::tuple find_kernel(const KernelTable& table, const NodeData& node, bool exact) {
  std::string reasons;
  const int index = table.find(node.view(), reasons, exact);
  if (index < 0) return py::make_tuple(py::none(), to_text(reasons));
  return py::make_tuple(Kernel{table.kernels()[index]}, to_text(reasons));
}

inline py::dict kernel_row(const rr_kernel& kernel) {
  py::dict row;
  row["op"] = to_text(kernel.op);
  row["isa"] = to_text(kernel.isa);
  row["priority"] = kernel.priority;
  row["row_exact"] = (kernel.flags & RR_ROW_EXACT) != 0;
  row["prompt_exact"] = (kernel.flags & (RR_ROW_EXACT | kPromptExact)) != 0;
  row["bound"] = to_text(kernel.bound ? kernel.bound : "");
  return row;
}

inline py::list kernel_rows(const KernelTable& table) {
  py::list rows;
  for (const rr_kernel* kernel : table.kernels()) rows.append(kernel_row(*kernel));
  return rows;
}

inline std::pair<void*, int64_t> memory_of(const py::handle& object, bool writable) {
  const auto info = py::reinterpret_borrow<py::buffer>(object).request(writable);
  return {info.ptr, info.size * info.itemsize};
}

inline size_t packed_bytes(uint32_t dtype, uint32_t layout, int64_t rows, int64_t cols) {
  const rr_packer* found = find_packer(dtype, layout);
  return found ? found->bytes(rows, cols) : 0;
}

inline void pack(uint32_t dtype, uint32_t layout, const py::buffer& plain, const py::buffer& packed,
                 int64_t rows, int64_t cols) {
  const rr_packer* p = find_packer(dtype, layout);
  if (!p) throw py::value_error("no packer for this dtype and layout");
  const auto from = memory_of(plain, false);
  const auto to = memory_of(packed, true);
  if (to.second < static_cast<int64_t>(p->bytes(rows, cols)))
    throw py::value_error("the packed buffer is too small");
  py::gil_scoped_release release;
  p->pack(from.first, to.first, rows, cols);
}

// What every device's module offers beside its way to run plans.
inline void bind_common(py::module_& m) {
  m.attr("abi_version") = RR_ABI_VERSION;
  m.attr("prompt_grid") = kPromptGrid;
  m.def("packed_bytes", &packed_bytes,
        "Bytes of a weight [rows, cols] in a packed layout; 0 where there is no packer.");
  m.def("pack", &pack);
  py::class_<NodeData, std::shared_ptr<NodeData>>(m, "Node", py::module_local())
      .def(py::init(&make_node), py::arg("op"), py::arg("inputs"), py::arg("outputs"),
           py::arg("attributes"));
  py::class_<Kernel>(m, "Kernel", py::module_local())
      .def_property_readonly("op", [](const Kernel& k) { return to_text(k.kernel->op); })
      .def_property_readonly("isa", [](const Kernel& k) { return to_text(k.kernel->isa); })
      .def_property_readonly("priority", [](const Kernel& k) { return k.kernel->priority; })
      .def_property_readonly("row_exact",
                             [](const Kernel& k) { return (k.kernel->flags & RR_ROW_EXACT) != 0; })
      .def_property_readonly(
          "prompt_exact",
          [](const Kernel& k) { return (k.kernel->flags & (RR_ROW_EXACT | kPromptExact)) != 0; })
      .def_property_readonly(
          "bound", [](const Kernel& k) { return to_text(k.kernel->bound ? k.kernel->bound : ""); });
}

// How plans are made and kernels found, of every device's table.
template <class Table>
Table& bind_table(Table& table) {
  return table.def("rows", &kernel_rows, "The facts of its kernels, in the order of the choice.")
      .def("find", &find_kernel, py::arg("node"), py::arg("exact") = false,
           "(kernel or None, reasons) for a node; exact: row-exact kernels first.");
}

}  // namespace riverrun
